"""What a server on the CPU is started with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sglang_ext.cli import value_of
from sglang_ext.cpu.defaults import add_defaults, bind_threads, pool_tokens, token_bytes
from sglang_ext.cpu.machine import free_memory, usable_cores


@pytest.mark.parametrize(("text", "most"), [("max 100000", 10**6), ("200000 100000", 2), ("50000 100000", 1)])
def test_a_container_limits_the_cores(tmp_path: Path, text: str, most: int) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert usable_cores(limit) == min(most, len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "absent") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("argv", [["--dp", "1000"], ["--tp=1000"], ["--dp-size", "10", "--tp-size", "100"]])
def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    for name in ("OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    bind_threads(argv)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 999
    bind_threads([])
    assert os.environ["OMP_NUM_THREADS"] == "1", "what is set stays"


def test_the_backend_is_ours_unless_another_is_named() -> None:
    assert value_of(add_defaults([], ""), "--attention-backend") == "torch_batched"
    named = add_defaults(["--decode-attention-backend", "torch_native"], "")
    assert value_of(named, "--attention-backend") is None


def test_the_pool_fits_beside_the_weights(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert token_bytes(str(tmp_path)) == 2 * 4 * 2 * 2 * 16
    assert 2048 <= pool_tokens(str(tmp_path), 1) <= 65536


def test_a_container_limits_the_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("1000")
    (tmp_path / "memory.max").write_text("5000")
    assert free_memory(tmp_path) == 4000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(tmp_path) > 5000
