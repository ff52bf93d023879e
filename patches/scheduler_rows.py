"""Hooks on the scheduler's process: requests, batches, sampling, verification, results; and on the CPU engine."""

from __future__ import annotations

from .hook import Hook

SCHEDULER = (
    Hook(
        "managers.scheduler.Scheduler.init_tokenizer", "scheduler.init_tokenizer",
        "the tokenizer is known from here on, and the model is not loaded yet",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_init_info", "scheduler.get_init_info",
        "tells the launching process that the hooks are in place",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.init_request_dispatcher", "ends.init_request_dispatcher",
        "a dispatcher takes more messages, and is made here",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler._poll_timeout_aborts", "ends.poll_timeout_aborts",
        "what one rank decides by the clock, and all ranks do in the same step; sglang has it for its own timeouts",
        "self",
    ),
    Hook(
        "managers.schedule_batch.Req.__init__", "scheduler.init_request",
        "a request gets its budget where it is made, of a session too; 0.5.22 has no extension point for that",
        "self, rid, origin_input_text, origin_input_ids, sampling_params, return_logprob, top_logprobs_num, "
        "dllm_config, token_ids_logprob, return_sampling_mask, sampling_logprobs_mode, return_flat_raw_top_logprobs, "
        "stream, origin_input_ids_unpadded, lora_id, input_embeds, positional_embed_overrides, token_type_ids, "
        "session, custom_logit_processor, require_reasoning, return_hidden_states, return_routed_experts, "
        "routed_experts_start_len, return_indexer_topk, eos_token_ids, bootstrap_host, bootstrap_port, "
        "bootstrap_room, disagg_mode, routed_dp_rank, disagg_prefill_dp_rank, kv_hints, vocab_size, priority, "
        "metrics_collector, extra_key, routing_key, dimensions, http_worker_ipc, time_stats, "
        "return_pooled_hidden_states, multi_item_delimiter_indices, token_indices_to_pool, decision_layout, "
        "session_id, cache_salt",
    ),
    Hook(
        "dllm.mixin.scheduler.SchedulerDllmMixin.validate_dllm_request", "scheduler.validate_dllm_request",
        "the one check that every request passes in the scheduler, with a 400 as its answer: requests that come past "
        "the tokenizer manager (gRPC, Rust) are refused here",
        "self, req",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_prefill",
        "stops.process_batch_result", "what a step forced is told after its stops were looked for",
        "self, batch, result",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode",
        "stops.process_batch_result", "the same for a decoding step",
        "self, batch, result",
    ),
    Hook(
        "managers.schedule_batch.Req._check_str_based_finish", "stops.check_str_based_finish",
        "stop strings are looked for in all of a response's text; there is no extension point",
        "self, new_accepted_len",
    ),
    Hook(
        "managers.schedule_batch.Req._check_token_based_finish", "stops.check_token_based_finish",
        "the same for stop ids",
        "self, new_accepted_tokens",
    ),
    Hook(
        "managers.schedule_batch.Req.check_match_stop_str_prefix", "stops.check_match_stop_str_prefix",
        "a stream waits while its text may become a stop string",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_output_streamer_class", "scheduler.get_output_streamer_class",
        "sglang's extension point for fields of a response",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler._add_request_to_queue", "one_step.add_request_to_queue",
        "from here on a prefill can be made of a request; ids that are forced at once become a part of it",
        "self, req, is_retracted",
    ),
    Hook(
        "managers.schedule_batch.ScheduleBatch.prepare_for_extend", "one_step.prepare_for_extend",
        "it counts what the cache had of the prompt, and cannot tell forced ids from it",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_new_batch_prefill", "one_step.get_new_batch_prefill",
        "where it is decided that a batch is read instead of a decoding step; there is no extension point",
        "self, running_batch",
    ),
    Hook(
        "managers.scheduler.Scheduler.process_batch_result", "one_step.process_batch_result",
        "a step in flight brings a token that its request has already",
        "self, batch, result",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "speculation.resolve_spec_v2_tokens",
        "a processed round with its requests; the metrics reporter is given sums, without what was proposed",
        "self, result, batch",
    ),
    Hook(
        "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
        "speculation.report_decode_stats",
        "the decode log line and the gauges of a draft's acceptance, in one function",
        "self, can_run_cuda_graph, running_batch, num_generated_tokens",
    ),
    Hook(
        "model_executor.forward_batch_info.ForwardBatch.init_new", "forward_batch.init_new",
        "the last place on the host that knows a step's requests; the sampling observer only sees logits",
        "batch, model_runner, *, capture_hidden_mode, return_hidden_states_before_norm, extend_position_info, "
        "spec_mrope_positions, kv_loc_plan, write_cols",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner._init_post_memory_pool_components",
        "sampling.init_post_memory_pool_components",
        "the slots are known from here on",
        "self",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner.prewarm_sampling", "sampling.prewarm_sampling",
        "sglang's place to warm the sampling path, on the stream that runs steps, before the server is ready",
        "self",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner.sample", "sampling.sample",
        "the step as a whole: the sampling observer is one slot, off under speculation, and comes before the grammar",
        "self, logits_output, forward_batch",
    ),
    Hook(
        "layers.sampler.Sampler._preprocess_logits", "sampling.preprocess_logits",
        "the last place before the draw; masking earlier would let a grammar leave a forced row without any id",
        "self, logits, sampling_info",
    ),
    Hook(
        "layers.sampler.Sampler.forward", "sampling.forward",
        "the token that stands in the output must be known before anything else reads the sampled one",
        "self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions, *, "
        "logprob_logits",
    ),
    Hook(
        "speculative.eagle_utils.eagle_sample", "verification.eagle_sample",
        "the verification that all tree and chain drafts share; it never calls the sampler or a logits processor",
        "verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k, *, watermark_state, "
        "watermark_full_mask",
    ),
    Hook(
        "speculative.ngram_worker.NGRAMWorker._prepare_draft_tokens", "ngram.prepare_draft_tokens",
        "the corpus has not seen a stop message that is new; there is no extension point between it and the tree",
        "self, batch",
    ),
    Hook(
        "speculative.eagle_utils.alloc_for_spec_decode", "speculation.alloc_for_spec_decode",
        "a round without drafts is to cost no more than a plain one; preparing a round is sglang's own",
        "tree_cache, req_to_token_pool, *, reqs, req_pool_indices, cur_kv_lens, cur_kv_lens_cpu, nxt_kv_lens, "
        "nxt_kv_lens_cpu, num_needed_tokens, batch",
    ),
    Hook(
        "model_executor.cpu_graph_runner.register_fake_ops", "cpu_engine.register_fake_ops",
        "the published wheel has no CPU operators to describe to torch.compile, and the runner describes them anyway",
        "tp_size",
    ),
    Hook(
        "distributed.parallel_state.init_model_parallel_group", "cpu_engine.init_model_parallel_group",
        "tensor parallelism on CPUs takes NCCL wherever that can be imported",
        "group_ranks, local_rank, backend, use_pynccl, use_custom_allreduce, use_message_queue_broadcaster, "
        "group_name, use_mscclpp, use_torch_symm_mem_allreduce, recovered_rank, rank_offset, max_world_size",
    ),
)
