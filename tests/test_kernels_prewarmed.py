"""A server that is ready has every kernel that a step can launch: no request waits for the compiler.

On the CPU nothing is launched; what a GPU would compile is counted (`kernel_counter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import servers
from kernel_counter import launches, plugin
from scripted_requests import OPEN, answers
from transformers import AutoTokenizer
from uag_models import build_spoken_draft, build_spoken_model

pytestmark = pytest.mark.served

FLAGS = ("--reasoning-parser", "qwen3", "--max-running-requests", "16", "--chunked-prefill-size", "64",
         "--dtype", "float32")
KINDS: list[dict[str, Any]] = [
    {"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9, "top_k": 7},
    {"temperature": 0.8, "min_p": 0.2}, {"temperature": 0, "frequency_penalty": 0.5, "min_new_tokens": 3},
    {"temperature": 0, "logit_bias": {"5": 1.0}}, {"temperature": 0, "regex": "[ab]+"},
    {"temperature": 0.8, "n": 2}, {"temperature": 0, "ignore_eos": True},
]
LIMITS: list[Any] = [None, -1, 0, 3, {"max_tokens": 4, "message": "loolooploo"}, {"max_tokens": 9, "min_tokens": 8},
                     {"max_tokens": 9, "grace_tokens": 8}]


@dataclass(frozen=True)
class Counted:
    """A server whose launches are counted in a file, and the kernels that its steps launch."""

    server: servers.Server
    file: Path
    kernels: set[str]


@pytest.fixture(scope="module", params=["plain", "NGRAM", "UAG"])
def counted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
            target: Path) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("counted")
    flags = {"plain": (), "NGRAM": ("--speculative-ngram-capacity", "10000"),
             "UAG": ("--speculative-draft-model-path", str(build_spoken_draft(tmp_path_factory.mktemp("draft"))),
                     "--uag-lengths", "fixed")}[request.param]
    if request.param != "plain":
        flags = (*flags, "--speculative-algorithm", request.param, "--speculative-num-draft-tokens", "6")
    server = servers.launch("--model-path", str(target), *FLAGS, *flags, **plugin(folder, folder / "launches"))
    kernels = {"_mask_kernel", "_advance_kernel", *(("_walk_kernel", "_commit_kernel") if flags else ())}
    yield Counted(server, folder / "launches", kernels)
    assert not server.stop()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_spoken_model(tmp_path_factory.mktemp("target"))


def test_no_request_compiles_a_kernel(counted: Counted, target: Path) -> None:
    """Requests of all kinds, alone and in batches, so that every batch, width and way of sampling is met."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    bodies = []
    for i, (kind, limit) in enumerate((kind, limit) for kind in KINDS for limit in LIMITS):
        params = {**kind, "max_new_tokens": 8 + i % 9, **({} if limit is None else {"think_budget": limit})}
        prompt = tokenizer.encode(OPEN * (40 if i % 11 == 0 else 1))
        word = tokenizer.convert_tokens_to_ids(("loop", "P1", "P2", "P5")[i % 4])
        bodies.append({"input_ids": [*prompt, word], "sampling_params": params, "return_logprob": i % 3 == 0})
    for body in bodies[::9]:
        counted.server.post("/generate", body).raise_for_status()
    single = [body for body in bodies if "n" not in body["sampling_params"]]
    answers(counted.server, single)
    for body in bodies:
        if "n" in body["sampling_params"]:
            counted.server.post("/generate", body).raise_for_status()
    before, after = launches(counted.file)
    times = Counter(line.split()[0] for line in after)
    assert set(times) == counted.kernels
    assert min(times.values()) >= 5
    assert set(after) <= set(before)
