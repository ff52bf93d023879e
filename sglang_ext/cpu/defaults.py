"""Server settings that fit a machine without a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ..cli import has_flag, value_of
from .machine import ATTENTION_BACKEND, free_memory, usable_cores

MEMORY_SHARE = 0.3
"""Share of the memory that is free now that the KV pools of all replicas may take."""
POOL_TOKENS = (2048, 65536)
"""Least and most tokens of one pool."""
DP = ("--dp", "--dp-size", "--data-parallel-size")


def add_defaults(argv: list[str], model_path: str) -> list[str]:
    """sglang's command line with what a CPU needs, wherever the operator did not say otherwise."""
    replicas = _positive(value_of(argv, *DP))
    defaults = {
        ("--device",): "cpu",
        ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"): ATTENTION_BACKEND,
        ("--max-running-requests",): "64",
        ("--max-total-tokens",): str(pool_tokens(model_path, replicas)),
    }
    added = [part for names, value in defaults.items() if not has_flag(argv, *names) for part in (names[0], value)]
    if not has_flag(argv, "--sleep-on-idle"):
        added.append("--sleep-on-idle")
    return [*argv, *added]


def bind_threads(argv: Sequence[str]) -> None:
    """Tell sglang each rank's share of the cores, and give no process more threads than that.

    sglang binds threads only with its own CPU kernels, which the published wheel lacks: without a limit every rank
    starts as many threads as the machine has cores, which is far more than a container may use.
    """
    ranks = _positive(value_of(argv, *DP)) * _positive(value_of(argv, "--tp", "--tp-size", "--tensor-parallel-size"))
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // ranks)))
    if ranks < 2 or "SGLANG_CPU_OMP_THREADS_BIND" in os.environ:
        return
    shares = [cores[i::ranks] or [cores[i % len(cores)]] for i in range(ranks)]
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, sorted(share))) for share in shares)


def pool_tokens(model_path: str, replicas: int) -> int:
    """How many tokens of KV cache fit beside the weights, for each replica."""
    least, most = POOL_TOKENS
    weights = sum(f.stat().st_size for f in Path(model_path).glob("*.safetensors")) if Path(model_path).is_dir() else 0
    free = free_memory() - weights * replicas
    fitting = int(free * MEMORY_SHARE / replicas / token_bytes(model_path))
    return max(least, min(most, fitting))


def token_bytes(model_path: str) -> int:
    """Bytes one token takes in the KV cache, at four bytes a value; a guess on the safe side if the model's
    configuration does not tell."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text())
        config = config.get("text_config", config)
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return int(2 * 4 * config["num_hidden_layers"] * heads * width)
    except (OSError, ValueError, KeyError, TypeError):
        return 1 << 20


def _positive(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else 1
