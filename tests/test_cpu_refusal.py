"""What the CPU's attention backend cannot serve ends before a process is started, or at least without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import servers

REASONS = """
from types import SimpleNamespace
import sglang_ext
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang_ext.cpu.refusal import why_not
arguments = dict(attention_backend="torch_batched", prefill_attention_backend=None, decode_attention_backend=None,
                 page_size=1, kv_cache_dtype="auto")
model = dict(attention_arch=AttentionArch.MHA, is_encoder_decoder=False, attention_chunk_size=8, context_len=64,
             hf_text_config=SimpleNamespace(model_type="llama"))
text = dict(model_type="llama")
for changed in ({}, {"attention_backend": "torch_native", "page_size": 16}, {"page_size": 16},
                {"attention_backend": None, "decode_attention_backend": "torch_batched", "page_size": 16},
                {"attention_arch": AttentionArch.MLA}, {"is_encoder_decoder": True},
                {"attn_logit_softcapping_method": "rcp"}, {"attn_temperature_len": 8}, {"model_type": "llama4_text"},
                {"kv_cache_dtype": "fp8_e5m2"}):
    merged = {**arguments, **model, **text, **changed}
    merged["hf_text_config"] = SimpleNamespace(**{k: v for k, v in merged.items() if k not in {**arguments, **model}})
    ModelConfig.from_server_args = staticmethod(lambda _, merged=merged: SimpleNamespace(**merged))
    print(why_not(SimpleNamespace(**merged)))
"""


def test_settings_that_cannot_be_served_are_known_before_the_start() -> None:
    done = servers.run("-c", REASONS, SGLANG_USE_CPU_ENGINE="1", timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    ours, natives, *refused = done.stdout.splitlines()
    assert ours == natives == "None"
    needed = ("page size of 1 (given 16)", "page size of 1 (given 16)", "latent attention", "no cross attention",
              "tanh", "temperature by position", "chunked local attention", "at least 16 bits (given fp8_e5m2)")
    assert len(refused) == len(needed)
    for message, reason in zip(refused, needed, strict=True):
        assert reason in message
        assert message.endswith("use --attention-backend torch_native for this model and these settings")


def _latent_attention(folder: Path) -> Path:
    """The configuration of a model with multi-head latent attention; it is refused before weights are looked for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 384, "hidden_size": 64,
        "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 2, "max_position_embeddings": 256}))
    return folder


def test_launching_such_a_model_ends_with_one_line(tmp_path: Path) -> None:
    done = servers.run("launch.py", "--model-path", str(_latent_attention(tmp_path / "latent")), timeout=240)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "launch.py: attention backend torch_batched needs no multi-head latent attention" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_scheduler_that_finds_out_late_says_so_in_one_line(demo_model: Path) -> None:
    """The backend itself refuses, in the process that has loaded the model."""
    code = ("import sys; sys.path.insert(0, 'tests')\nfrom cpu_runner import CpuRunner\n"
            f"CpuRunner({str(demo_model)!r}, 'bfloat16', '--page-size', '16')")
    done = servers.run("-c", code, timeout=240)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "sglang-ext: attention backend torch_batched needs a page size of 1 (given 16)" in done.stderr
    assert "Traceback" not in done.stderr
