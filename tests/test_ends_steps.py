"""Deadlines by the server's own clock, in steps: on one rank, and on two that have to agree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import servers
import step_clock
import warm_python
from asked_ends import check_cut, check_ends, looping
from servers import FLOAT32
from sglang_ext.budget.kernels import Outcome
from transformers import AutoTokenizer, PreTrainedTokenizerFast

pytestmark = pytest.mark.served

SECONDS = [0.5 + i / 6 for i in range(16)]  # up to 3


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(scripted_model)


@contextmanager
def clocked(model: Path, file: Path, *flags: str) -> Iterator[servers.Server]:
    """A server that writes down its steps in a file for each rank."""
    if not warm_python.serves({}):
        pytest.skip("schedulers are not forked here, so that they know no clock of the test's")
    port = servers.free_port()
    server = servers.start([step_clock.__file__, str(file), "--port", str(port), "--model-path", str(model),
                            "--reasoning-parser", "qwen3", "--think-message", "", "--max-total-tokens", "40000",
                            *FLOAT32, *flags], port)
    try:
        yield server
    finally:
        assert not server.stop()


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Other work for the machine."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def check_deadlines(server: servers.Server, tokenizer: PreTrainedTokenizerFast, file: Path) -> None:
    """Sixteen requests on a loaded machine, each with a deadline of its own: of the steps that start after it, two at
    most bring a token of its thinking."""
    since = ["arrival", "first_token"]
    bodies: list[dict[str, Any]] = [
        looping(tokenizer, {"seconds": s, "since": since[i % 2]}, new=1900, rid=f"late-{i}")
        for i, s in enumerate(SECONDS)]
    with load(2):
        results = server.generate_all(bodies)
    clock = step_clock.read(file)
    for body, result in zip(bodies, results, strict=True):
        chosen = check_cut(tokenizer, result, "deadline")
        before = clock.steps_before(body["rid"])
        assert before <= chosen <= before + 2, body["rid"]
        assert clock.steps_after(body["rid"]) >= 1


def test_deadlines_hold_within_two_steps(scripted_model: Path, tokenizer: PreTrainedTokenizerFast,
                                         tmp_path: Path) -> None:
    with clocked(scripted_model, tmp_path / "steps") as server:
        check_deadlines(server, tokenizer, tmp_path / "steps")


def test_ranks_agree(scripted_model: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Ends of every kind come before the same step on each rank, though each has a clock of its own."""
    file = tmp_path / "steps"
    with clocked(scripted_model, file, "--tp", "2") as server:
        check_ends(server, tokenizer, "ranks")
        check_deadlines(server, tokenizer, file)
    first, second = (step_clock.read(file, rank) for rank in range(2))
    assert first.asked == second.asked
    assert {reason for _, _, reason in first.asked} == {Outcome.LOOP, Outcome.DEADLINE, Outcome.ASKED}
    assert [rids for _, rids in first.steps] == [rids for _, rids in second.steps]
