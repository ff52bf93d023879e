"""Every hook on sglang: the one table, and the checks that keep a server from running without them.

| target | kind | file |
| --- | --- | --- |
| `prepare_server_args` | around | `server_args.py` |
| `Engine._launch_subprocesses`, `_wait_for_scheduler_ready` | around | `launch.py` |
| `DataParallelController._record_scheduler_init_infos`, `.get_init_info` | around | `launch.py` |
| `ChatCompletionRequest`, `CompletionRequest` | fields | `openai_protocol.py` |
| `ChatCompletionRequest.to_sampling_params`, `OpenAIServingCompletion._build_sampling_params` | around | `openai_protocol.py` |
| `generate_contract_error` | around | `api_contract.py` |
| `TokenizerManager.init_tokenizer_and_processor`, `._create_tokenized_object`, `.update_request_meta_info` | around | `tokenizer_manager.py` |
| `Scheduler.init_tokenizer`, `.get_init_info`, `._create_generation_req`, `.validate_dllm_request`, `.get_output_streamer_class` | around | `scheduler.py` |
| `ForwardBatch.init_new` | around | `forward_batch.py` |
| `ModelRunner._init_post_memory_pool_components`, `.sample`; `Sampler._preprocess_logits`, `.forward` | around | `sampling.py` |

Each entry of `HOOKS` below says why no official extension point serves, and the signature it was written against.
"""

from .registry import check_applied, register_all

__all__ = ["check_applied", "register_all"]
