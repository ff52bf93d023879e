"""The table of hooks on sglang: what is wrapped, by what, why, and the signature it was written against.

Targets are below `sglang.srt`. The releases that were read, and the digest of each place in them, are in
`sglang_ext/compat/known.txt`. At start every source is checked, every signature in every process that needs the hooks,
and a server whose table does not fit or was not applied does not start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    api_contract,
    cpu_engine,
    detectors,
    forward_batch,
    launch,
    metrics,
    ollama,
    one_step,
    request_models,
    sampling,
    scheduler,
    server_args,
    server_info,
    speculation,
    stops,
    tokenizer_manager,
    usage,
    verification,
)
from .hook import Hook


def _fields(target: str, function: Callable[[Any], None], reason: str, without: str | None = None) -> Hook:
    """A row for a request or response model (pydantic)."""
    return Hook(target, function, reason, "", kind="fields", without=without)


HOOKS = (
    Hook(
        "server_args.prepare_server_args", server_args.prepare_server_args,
        "takes our flags off the command line: sglang's are compiled when it is imported",
        "argv",
    ),
    Hook(
        "entrypoints.engine.Engine._launch_subprocesses", launch.launch_subprocesses,
        "checks settings and hooks before anything is started; nothing official runs there",
        "server_args, init_tokenizer_manager_func, run_scheduler_process_func, run_detokenizer_process_func, "
        "port_args, placement_group",
    ),
    Hook(
        "entrypoints.engine._wait_for_scheduler_ready", launch.wait_for_scheduler_ready,
        "refuses a scheduler that runs without the hooks",
        "scheduler_pipe_readers, scheduler_procs",
    ),
    Hook(
        "managers.data_parallel_controller.DataParallelController._record_scheduler_init_infos",
        launch.record_scheduler_init_infos,
        "the same for the schedulers of a data parallel controller",
        "self, infos",
        without=launch.NO_DATA_PARALLEL, needed=launch.has_controller,
    ),
    Hook(
        "managers.data_parallel_controller.DataParallelController.get_init_info", launch.controller_init_info,
        "the controller, having checked its schedulers, answers for them",
        "self",
        without=launch.NO_DATA_PARALLEL, needed=launch.has_controller,
    ),
    _fields("entrypoints.openai.protocol.ChatCompletionRequest", request_models.read_wish,
            "a request model drops unknown fields in silence"),
    _fields("entrypoints.openai.protocol.CompletionRequest", request_models.read_wish,
            "a request model drops unknown fields in silence"),
    _fields("entrypoints.openai.protocol.ResponsesRequest", request_models.read_wish,
            "a request model drops unknown fields in silence"),
    _fields("entrypoints.ollama.protocol.OllamaChatRequest", request_models.read_wish,
            "a request model drops unknown fields in silence"),
    _fields("entrypoints.ollama.protocol.OllamaGenerateRequest", ollama.read_generate_wish,
            "the same, and it knows no effort"),
    _fields("entrypoints.anthropic.protocol.AnthropicThinkingParam", request_models.check_budget_tokens,
            "a request model makes an integer of what is none"),
    _fields("entrypoints.anthropic.protocol.AnthropicMessagesRequest", request_models.read_wish,
            "a request model drops unknown fields in silence"),
    Hook(
        "entrypoints.openai.protocol.ChatCompletionRequest.to_sampling_params", request_models.to_sampling_params,
        "the request's fields become sampling parameters here; there is no extension point",
        "self, stop, model_generation_config, tool_call_constraint, renderer_handles_response_format",
    ),
    Hook(
        "entrypoints.openai.serving_completions.OpenAIServingCompletion._build_sampling_params",
        request_models.build_sampling_params,
        "the same for completions",
        "self, request",
    ),
    Hook(
        "entrypoints.openai.protocol.ResponsesRequest.to_sampling_params", request_models.to_sampling_params,
        "the same for responses",
        "self, default_max_tokens, default_params, stop, tool_call_constraint",
    ),
    Hook(
        "entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request",
        request_models.convert_to_internal_request,
        "the first place that knows request and served family: only some families read a template's argument",
        "self, request, raw_request",
    ),
    Hook(
        "entrypoints.ollama.serving.OllamaServing.handle_chat", ollama.handle_chat,
        "it renders its prompt without any argument, and drops `think`",
        "self, request, raw_request",
    ),
    Hook(
        "entrypoints.ollama.serving.OllamaServing.handle_generate", ollama.handle_generate,
        "it drops `think`, and has no answer to a request that is refused",
        "self, request, raw_request",
    ),
    _fields("entrypoints.ollama.protocol.OllamaChatResponse", usage.allow_think,
            "a response model writes no key that it does not know"),
    _fields("entrypoints.ollama.protocol.OllamaGenerateResponse", usage.allow_think,
            "a response model writes no key that it does not know"),
    Hook(
        "entrypoints.anthropic.serving.AnthropicServing._convert_to_chat_completion_request",
        request_models.convert_messages_request,
        "sglang only warns that `thinking.budget_tokens` is not enforced",
        "self, anthropic_request",
    ),
    Hook(
        "entrypoints.api_contract.generate_contract_error", api_contract.generate_contract_error,
        "the schema of /generate is closed; budgets are checked before a stream begins",
        "body",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor",
        tokenizer_manager.init_tokenizer_and_processor,
        "the tokenizer is known from here on; there is no later event",
        "self",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.generate_request", tokenizer_manager.generate_request,
        "sglang refuses its own `max_thinking_tokens` unless a grammar backend enforces it; here the budget does",
        "self, obj, request",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
        tokenizer_manager.create_tokenized_object,
        "every request in Python passes here; `preferred_sampling_params` is merged shallowly, and the OpenAI "
        "endpoints always send `custom_params`, so a default set there would be lost",
        "self, obj, input_text, input_ids, input_embeds, mm_inputs, token_type_ids",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        usage.update_request_meta_info,
        "sglang's extension point for request metadata, which otherwise makes lists of what comes per step",
        "self, meta_info, state, customized_info, index, finish_reason",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        speculation.calculate_spec_decoding_metrics,
        "it counts every position of a verification as proposed",
        "self, meta_info, recv_obj, i",
    ),
    _fields("entrypoints.openai.protocol.UsageInfo", usage.allow_think,
            "a response model writes no key that it does not know"),
    _fields("entrypoints.openai.protocol.ChatCompletionResponse", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.openai.protocol.ChatCompletionStreamResponse", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.openai.protocol.CompletionResponse", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.openai.protocol.CompletionStreamResponse", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.openai.protocol.ResponsesResponse", usage.allow_think_in_responses,
            "it writes its usage in a form of its own"),
    _fields("entrypoints.openai.protocol.ResponsesLifecycleEvent", usage.rebuild,
            "it writes its response as that was when compiled", without="events hold the response as a dictionary"),
    _fields("entrypoints.anthropic.protocol.AnthropicUsage", usage.allow_think,
            "a response model writes no key that it does not know"),
    _fields("entrypoints.anthropic.protocol.AnthropicMessagesResponse", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.anthropic.protocol.MessageDeltaEvent", usage.rebuild,
            "it writes its usage as that was when compiled"),
    _fields("entrypoints.openai.protocol.ModelCard", server_info.add_to_model_card,
            "nothing else that a client reads tells what a server accepts"),
    _fields("entrypoints.openai.protocol.ModelList", usage.rebuild,
            "it writes its cards as they were when compiled"),
    Hook(
        "entrypoints.openai.protocol.UsageInfo.__init__", usage.construct_usage,
        "the one place that the usage of every OpenAI endpoint passes",
        "self, **data",
    ),
    Hook(
        "entrypoints.openai.usage_processor.UsageProcessor.calculate_streaming_usage", usage.calculate_streaming_usage,
        "sums the choices of a stream in the order in which they began",
        "prompt_tokens, reasoning_tokens, completion_tokens, cached_tokens, n_choices, enable_cache_report, "
        "image_tokens, audio_tokens, video_tokens",
    ),
    Hook(
        "entrypoints.anthropic.serving._anthropic_usage_from_openai", usage.anthropic_usage,
        "the one place that the usage of /v1/messages passes",
        "usage, *, include_input, include_output, force_zero_output",
    ),
    Hook(
        "parser.reasoning_parser.ReasoningParser.__init__", detectors.init,
        "the one place where a response's parser is made, with its request; a detector of our own under another name "
        "would be asked for by nobody",
        ("self, model_type, stream_reasoning, force_reasoning, request, tokenizer, tool_call_parser_active, prefix",
         "self, model_type, stream_reasoning, force_reasoning, request, tokenizer, tool_call_parser_active"),
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector._detect_and_parse_impl", detectors.detect_and_parse,
        "what every tag parser takes a whole response apart with: one notion of thinking for budget and parser",
        "self, text",
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector._parse_streaming_increment_impl",
        detectors.parse_streaming_increment,
        "the same for a stream",
        "self, new_text",
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector.finish", detectors.finish,
        "the same for what waits at a stream's end",
        "self",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.init_metric_collector_watchdog",
        metrics.init_metric_collector_watchdog,
        "sglang's collector can be replaced, not joined; the multiprocess directory is known from here on",
        "self",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.collect_metrics", metrics.collect_metrics,
        "where sglang counts finished requests; its collector is not given their results",
        "self, state, recv_obj, i",
    ),
    Hook(
        "utils.common.build_server_info", server_info.build_server_info,
        "the answer of /server_info; there is no extension point",
        "server_args, scheduler_info",
    ),
    Hook(
        "managers.scheduler.Scheduler.init_tokenizer", scheduler.init_tokenizer,
        "the tokenizer is known from here on, and the model is not loaded yet",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_init_info", scheduler.get_init_info,
        "tells the launching process that the hooks are in place",
        "self",
    ),
    Hook(
        "managers.schedule_batch.Req.__init__", scheduler.init_request,
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
        "dllm.mixin.scheduler.SchedulerDllmMixin.validate_dllm_request", scheduler.validate_dllm_request,
        "the one check that every request passes in the scheduler, with a 400 as its answer: requests that come past "
        "the tokenizer manager (gRPC, Rust) are refused here",
        "self, req",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_prefill",
        stops.process_batch_result, "what a step forced is told after its stops were looked for",
        "self, batch, result",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode",
        stops.process_batch_result, "the same for a decoding step",
        "self, batch, result",
    ),
    Hook(
        "managers.schedule_batch.Req._check_str_based_finish", stops.check_str_based_finish,
        "stop strings are looked for in all of a response's text; there is no extension point",
        "self, new_accepted_len",
    ),
    Hook(
        "managers.schedule_batch.Req._check_token_based_finish", stops.check_token_based_finish,
        "the same for stop ids",
        "self, new_accepted_tokens",
    ),
    Hook(
        "managers.schedule_batch.Req.check_match_stop_str_prefix", stops.check_match_stop_str_prefix,
        "a stream waits while its text may become a stop string",
        "self",
    ),
    Hook(
        "managers.detokenizer_manager.DetokenizerManager.trim_matched_stop", stops.trim_matched_stop,
        "it cuts a response at the first place where a stop string stands, also in text that the server wrote",
        "self, output, finished_reason, no_stop_trim",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_output_streamer_class", scheduler.get_output_streamer_class,
        "sglang's extension point for fields of a response",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler._add_request_to_queue", one_step.add_request_to_queue,
        "from here on a prefill can be made of a request; ids that are forced at once become a part of it",
        "self, req, is_retracted",
    ),
    Hook(
        "managers.schedule_batch.ScheduleBatch.prepare_for_extend", one_step.prepare_for_extend,
        "it counts what the cache had of the prompt, and cannot tell forced ids from it",
        "self",
    ),
    Hook(
        "managers.scheduler.Scheduler.get_new_batch_prefill", one_step.get_new_batch_prefill,
        "where it is decided that a batch is read instead of a decoding step; there is no extension point",
        "self, running_batch",
    ),
    Hook(
        "managers.scheduler.Scheduler.process_batch_result", one_step.process_batch_result,
        "a step in flight brings a token that its request has already",
        "self, batch, result",
    ),
    Hook(
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        speculation.resolve_spec_v2_tokens,
        "a processed round with its requests; the metrics reporter is given sums, without what was proposed",
        "self, result, batch",
    ),
    Hook(
        "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
        speculation.report_decode_stats,
        "the decode log line and the gauges of a draft's acceptance, in one function",
        "self, can_run_cuda_graph, running_batch, num_generated_tokens",
    ),
    Hook(
        "model_executor.forward_batch_info.ForwardBatch.init_new", forward_batch.init_new,
        "the last place on the host that knows a step's requests; the sampling observer only sees logits",
        "batch, model_runner, *, capture_hidden_mode, return_hidden_states_before_norm, extend_position_info, "
        "spec_mrope_positions, kv_loc_plan, write_cols",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner._init_post_memory_pool_components",
        sampling.init_post_memory_pool_components,
        "the slots are known from here on",
        "self",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner.prewarm_sampling", sampling.prewarm_sampling,
        "sglang's place to warm the sampling path, on the stream that runs steps, before the server is ready",
        "self",
    ),
    Hook(
        "model_executor.model_runner.ModelRunner.sample", sampling.sample,
        "the step as a whole: the sampling observer is one slot, off under speculation, and comes before the grammar",
        "self, logits_output, forward_batch",
    ),
    Hook(
        "layers.sampler.Sampler._preprocess_logits", sampling.preprocess_logits,
        "the last place before the draw; masking earlier would let a grammar leave a forced row without any id",
        "self, logits, sampling_info",
    ),
    Hook(
        "layers.sampler.Sampler.forward", sampling.forward,
        "the token that stands in the output must be known before anything else reads the sampled one",
        "self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions, *, "
        "logprob_logits",
    ),
    Hook(
        "speculative.eagle_utils.eagle_sample", verification.eagle_sample,
        "the verification that all tree and chain drafts share; it never calls the sampler or a logits processor",
        "verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k, *, watermark_state, "
        "watermark_full_mask",
    ),
    Hook(
        "speculative.eagle_utils.alloc_for_spec_decode", speculation.alloc_for_spec_decode,
        "a round without drafts is to cost no more than a plain one; preparing a round is sglang's own",
        "tree_cache, req_to_token_pool, *, reqs, req_pool_indices, cur_kv_lens, cur_kv_lens_cpu, nxt_kv_lens, "
        "nxt_kv_lens_cpu, num_needed_tokens, batch",
    ),
    Hook(
        "model_executor.cpu_graph_runner.register_fake_ops", cpu_engine.register_fake_ops,
        "the published wheel has no CPU operators to describe to torch.compile, and the runner describes them anyway",
        "tp_size",
    ),
    Hook(
        "distributed.parallel_state.init_model_parallel_group", cpu_engine.init_model_parallel_group,
        "tensor parallelism on CPUs takes NCCL wherever that can be imported",
        "group_ranks, local_rank, backend, use_pynccl, use_custom_allreduce, use_message_queue_broadcaster, "
        "group_name, use_mscclpp, use_torch_symm_mem_allreduce, recovered_rank, rank_offset, max_world_size",
    ),
)
