"""Hooks on the processes before the scheduler: command line, start, HTTP endpoints, tokenizer manager, detokenizer."""

from __future__ import annotations

from typing import Any

from .hook import Hook, fields

NO_DATA_PARALLEL = ("data parallel servers (--dp) are not served there: their controller cannot tell whether its "
                    "schedulers have the hooks; start a server for each, or install a later release")
PARSED_AS_TEXT = "DeepSeek's output is parsed as text there, as that of the other tag parsers is"


def has_controller(server_args: Any) -> bool:
    """Whether a data parallel controller stands between the server and its schedulers."""
    return bool(server_args.dp_size > 1)


FRONTEND = (
    Hook(
        "server_args.prepare_server_args", "server_args.prepare_server_args",
        "takes our flags off the command line: sglang's are compiled when it is imported",
        "argv",
    ),
    Hook(
        "entrypoints.engine.Engine._launch_subprocesses", "launch.launch_subprocesses",
        "checks settings and hooks before anything is started, and adds /end_thinking and its method; nothing official "
        "runs there",
        "server_args, init_tokenizer_manager_func, run_scheduler_process_func, run_detokenizer_process_func, "
        "port_args, placement_group",
    ),
    Hook(
        "entrypoints.engine._wait_for_scheduler_ready", "launch.wait_for_scheduler_ready",
        "refuses a scheduler that runs without the hooks",
        "scheduler_pipe_readers, scheduler_procs",
    ),
    Hook(
        "managers.data_parallel_controller.DataParallelController._record_scheduler_init_infos",
        "launch.record_scheduler_init_infos",
        "the same for the schedulers of a data parallel controller",
        "self, infos",
        without=NO_DATA_PARALLEL, needed=has_controller,
    ),
    Hook(
        "managers.data_parallel_controller.DataParallelController.get_init_info", "launch.controller_init_info",
        "the controller, having checked its schedulers, answers for them",
        "self",
        without=NO_DATA_PARALLEL, needed=has_controller,
    ),
    fields("entrypoints.openai.protocol.ChatCompletionRequest", "request_models.read_wish",
           "a request model drops unknown fields in silence"),
    fields("entrypoints.openai.protocol.CompletionRequest", "request_models.read_wish",
           "a request model drops unknown fields in silence"),
    fields("entrypoints.openai.protocol.ResponsesRequest", "request_models.read_wish",
           "a request model drops unknown fields in silence"),
    fields("entrypoints.ollama.protocol.OllamaChatRequest", "request_models.read_named_wish",
           "a request model drops unknown fields in silence; it has no id that a client could name"),
    fields("entrypoints.ollama.protocol.OllamaGenerateRequest", "ollama.read_generate_wish",
           "the same, and it knows no effort"),
    fields("entrypoints.anthropic.protocol.AnthropicThinkingParam", "request_models.check_budget_tokens",
           "a request model makes an integer of what is none"),
    fields("entrypoints.anthropic.protocol.AnthropicMessagesRequest", "request_models.read_named_wish",
           "a request model drops unknown fields in silence; it has no id that a client could name"),
    Hook(
        "entrypoints.openai.protocol.ChatCompletionRequest.to_sampling_params", "request_models.to_sampling_params",
        "the request's fields become sampling parameters here; there is no extension point",
        "self, stop, model_generation_config, tool_call_constraint, renderer_handles_response_format",
    ),
    Hook(
        "entrypoints.openai.serving_completions.OpenAIServingCompletion._build_sampling_params",
        "request_models.build_sampling_params",
        "the same for completions",
        "self, request",
    ),
    Hook(
        "entrypoints.openai.protocol.ResponsesRequest.to_sampling_params", "request_models.to_sampling_params",
        "the same for responses",
        "self, default_max_tokens, default_params, stop, tool_call_constraint",
    ),
    Hook(
        "entrypoints.openai.serving_responses.OpenAIServingResponses._generate_with_builtin_tools",
        "harmony_turns.generate_with_builtin_tools",
        "each turn of a response that calls the server's tools would have the whole budget",
        "self, request_id, request_prompt, adapted_request, sampling_params, context, raw_request, priority, **kwargs",
    ),
    Hook(
        "entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request",
        "request_models.convert_to_internal_request",
        "the first place that knows request and served family: only some families read a template's argument",
        "self, request, raw_request",
    ),
    Hook(
        "entrypoints.ollama.serving.OllamaServing.handle_chat", "ollama.handle_chat",
        "it renders its prompt without any argument, and drops `think`",
        "self, request, raw_request",
    ),
    Hook(
        "entrypoints.ollama.serving.OllamaServing.handle_generate", "ollama.handle_generate",
        "it drops `think`, and has no answer to a request that is refused",
        "self, request, raw_request",
    ),
    fields("entrypoints.ollama.protocol.OllamaChatResponse", "usage.allow_think",
           "a response model writes no key that it does not know"),
    fields("entrypoints.ollama.protocol.OllamaGenerateResponse", "usage.allow_think",
           "a response model writes no key that it does not know"),
    Hook(
        "entrypoints.anthropic.serving.AnthropicServing._convert_to_chat_completion_request",
        "request_models.convert_messages_request",
        "sglang only warns that `thinking.budget_tokens` is not enforced",
        "self, anthropic_request",
    ),
    Hook(
        "entrypoints.api_contract.generate_contract_error", "api_contract.generate_contract_error",
        "the schema of /generate is closed; budgets are checked before a stream begins",
        "body",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor",
        "tokenizer_manager.init_tokenizer_and_processor",
        "the tokenizer is known from here on; there is no later event",
        "self",
    ),
    Hook(
        "managers.tokenizer_control_mixin.TokenizerControlMixin.init_communicators", "end_thinking.init_communicators",
        "what asks the schedulers is made here; sglang's own sends one message at a time and waits for its answers",
        "self",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.generate_request", "tokenizer_manager.generate_request",
        "sglang refuses its own `max_thinking_tokens` unless a grammar backend enforces it; here the budget does",
        "self, obj, request",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
        "tokenizer_manager.create_tokenized_object",
        "every request in Python passes here; `preferred_sampling_params` is merged shallowly, and the OpenAI "
        "endpoints always send `custom_params`, so a default set there would be lost",
        "self, obj, input_text, input_ids, input_embeds, mm_inputs, token_type_ids",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        "usage.update_request_meta_info",
        "sglang's extension point for request metadata, which otherwise makes lists of what comes per step",
        "self, meta_info, state, customized_info, index, finish_reason",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "speculation.calculate_spec_decoding_metrics",
        "it counts every position of a verification as proposed",
        "self, meta_info, recv_obj, i",
    ),
    fields("entrypoints.openai.protocol.UsageInfo", "usage.allow_think",
           "a response model writes no key that it does not know"),
    fields("entrypoints.openai.protocol.ChatCompletionResponse", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.openai.protocol.ChatCompletionStreamResponse", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.openai.protocol.CompletionResponse", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.openai.protocol.CompletionStreamResponse", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.openai.protocol.ResponsesResponse", "usage.allow_think_in_responses",
           "it writes its usage in a form of its own"),
    fields("entrypoints.openai.protocol.ResponsesLifecycleEvent", "usage.rebuild",
           "it writes its response as that was when compiled", without="events hold the response as a dictionary"),
    fields("entrypoints.anthropic.protocol.AnthropicUsage", "usage.allow_think",
           "a response model writes no key that it does not know"),
    fields("entrypoints.anthropic.protocol.AnthropicMessagesResponse", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.anthropic.protocol.MessageDeltaEvent", "usage.rebuild",
           "it writes its usage as that was when compiled"),
    fields("entrypoints.openai.protocol.ModelCard", "server_info.add_to_model_card",
           "nothing else that a client reads tells what a server accepts"),
    fields("entrypoints.openai.protocol.ModelList", "usage.rebuild",
           "it writes its cards as they were when compiled"),
    Hook(
        "entrypoints.openai.protocol.UsageInfo.__init__", "usage.construct_usage",
        "the one place that the usage of every OpenAI endpoint passes",
        "self, **data",
    ),
    Hook(
        "entrypoints.openai.usage_processor.UsageProcessor.calculate_streaming_usage",
        "usage.calculate_streaming_usage",
        "sums the choices of a stream in the order in which they began",
        "prompt_tokens, reasoning_tokens, completion_tokens, cached_tokens, n_choices, enable_cache_report, "
        "image_tokens, audio_tokens, video_tokens",
    ),
    Hook(
        "entrypoints.anthropic.serving._anthropic_usage_from_openai", "usage.anthropic_usage",
        "the one place that the usage of /v1/messages passes",
        "usage, *, include_input, include_output, force_zero_output",
    ),
    Hook(
        "parser.reasoning_parser.ReasoningParser.__init__", "detectors.init",
        "the one place where a response's parser is made, with its request; a detector of our own under another name "
        "would be asked for by nobody",
        ("self, model_type, stream_reasoning, force_reasoning, request, tokenizer, tool_call_parser_active, prefix",
         "self, model_type, stream_reasoning, force_reasoning, request, tokenizer, tool_call_parser_active"),
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector._detect_and_parse_impl", "detectors.detect_and_parse",
        "what every tag parser takes a whole response apart with: one notion of thinking for budget and parser",
        "self, text",
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector._parse_streaming_increment_impl",
        "detectors.parse_streaming_increment",
        "the same for a stream",
        "self, new_text",
    ),
    Hook(
        "parser.reasoning_parser.BaseReasoningFormatDetector.finish", "detectors.finish",
        "the same for what waits at a stream's end",
        "self",
    ),
    Hook(
        "entrypoints.openai.serving_deepseek_recipe.DeepSeekRecipeChatEncodingAdapter._new_output_parser",
        "recipe_output.new_parser", "DeepSeek's own output parser looks for the end of thinking by its id alone",
        "self, request", without=PARSED_AS_TEXT,
    ),
    Hook(
        "entrypoints.openai.serving_deepseek_recipe.DeepSeekRecipeChatEncodingAdapter._new_responses_parser",
        "recipe_output.new_parser", "the same for responses",
        "self, request, require_reasoning, separate_reasoning, parse_tool_calls", without=PARSED_AS_TEXT,
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.init_metric_collector_watchdog",
        "metrics.init_metric_collector_watchdog",
        "sglang's collector can be replaced, not joined; the multiprocess directory is known from here on",
        "self",
    ),
    Hook(
        "managers.tokenizer_manager.TokenizerManager.collect_metrics", "metrics.collect_metrics",
        "where sglang counts finished requests; its collector is not given their results",
        "self, state, recv_obj, i",
    ),
    Hook(
        "utils.common.build_server_info", "server_info.build_server_info",
        "the answer of /server_info; there is no extension point",
        "server_args, scheduler_info",
    ),
    Hook(
        "managers.detokenizer_manager.DetokenizerManager.trim_matched_stop", "stops.trim_matched_stop",
        "it cuts a response at the first place where a stop string stands, also in text that the server wrote",
        "self, output, finished_reason, no_stop_trim",
    ),
)
