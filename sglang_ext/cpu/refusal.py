"""What the attention backend `torch_batched` cannot serve, told from settings alone, before a process is started.

The backend looks again at the loaded layers when it is made (`attention.py`), which also covers models whose
configuration does not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .machine import ATTENTION_BACKEND

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

CHUNKED = ("llama4", "llama4_text", "muse_spark")
"""Model types whose `attention_chunk_size` cuts the attention of some layers."""
WIDE_CACHES = ("auto", "bfloat16", "bf16", "float16", "fp16", "float32", "fp32")
"""Values of --kv-cache-dtype of at least 16 bits."""


def message(needs: dict[str, bool]) -> str | None:
    """One sentence about the needs that do not hold, None if all do.

    Args:
        needs: what the backend needs, and whether the model or its settings lack it.
    """
    lacking = [need for need, lacks in needs.items() if lacks]
    if not lacking:
        return None
    return (f"attention backend {ATTENTION_BACKEND} needs {', '.join(lacking)}; use --attention-backend torch_native "
            "for this model and these settings")


def why_not(server_args: ServerArgs) -> str | None:
    """Why a server with these resolved arguments cannot use the backend; None if it can, or does not want to."""
    chosen = (server_args.attention_backend, server_args.prefill_attention_backend,
              server_args.decode_attention_backend)
    if ATTENTION_BACKEND not in chosen:
        return None
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig

    model = ModelConfig.from_server_args(server_args)
    text, cache = model.hf_text_config, server_args.kv_cache_dtype
    return message({
        f"a page size of 1 (given {server_args.page_size})": server_args.page_size not in (None, 1),
        "no multi-head latent attention": model.attention_arch == AttentionArch.MLA,
        "no cross attention": bool(model.is_encoder_decoder),
        "tanh as the soft cap": getattr(text, "attn_logit_softcapping_method", "tanh") != "tanh",
        "no temperature by position": getattr(text, "attn_temperature_len", -1) > 0,
        "no chunked local attention": _chunked(model),
        f"a key and value cache of at least 16 bits (given {cache})": cache not in WIDE_CACHES,
    })


def _chunked(model: ModelConfig) -> bool:
    """Whether some layers attend within chunks that are shorter than the context."""
    chunk = model.attention_chunk_size
    return model.hf_text_config.model_type in CHUNKED and bool(chunk) and chunk < model.context_len
