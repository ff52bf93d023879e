"""Loops and deadlines in transformers' `generate()`."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hf_writer import OPEN, Writer
from scripted_model import EOS
from told_model import think

from sglang_ext.budget.contract import BudgetError
from sglang_ext.hf import ends

CYCLE = ["lo", "loo", "loop"]
BEHIND = ["</", "think", ">", "\n\n", "answer", EOS]


@pytest.fixture(scope="module")
def writer(scripted_model: Path) -> Writer:
    return Writer(scripted_model)


def test_loops(writer: Writer) -> None:
    """At once, as a processor sees every token; a row that does not ask goes on, and so does one outside a block."""
    inputs = writer.inputs((OPEN, "loop"), (OPEN, "loop"), ("", "loop"), (OPEN, "loop"))
    got, results = writer.ask(inputs, [{"loops": True}, -1, {"loops": True}, {"loops": True, "max_tokens": 20}],
                              message="So: ", max_new_tokens=560)
    own = [CYCLE[i % 3] for i in range(560)]
    assert got[0] == [*own[:513], "S", "o", ":", " ", *BEHIND]
    assert got[1] == got[2] == own
    assert got[3][:20] == own[:20]
    assert results == [think(-1, 513, 4 + 3, "loop"), think(-1, 560, 0, "open"), think(-1, 0, 0, "none"),
                       think(20, 20, 4 + 3, "forced")]


def test_a_draft_may_go_round_too(writer: Writer) -> None:
    """Assisted by prompt lookup: drafts are followed and taken back."""
    inputs = writer.inputs((OPEN, "loop"))
    (got,), results = writer.ask(inputs, {"loops": True}, max_new_tokens=560, prompt_lookup_num_tokens=5)
    assert got == [*(CYCLE[i % 3] for i in range(513)), *BEHIND]
    assert results == [think(-1, 513, 3, "loop")]


def test_a_draft_that_is_taken_back_is_forgotten(writer: Writer) -> None:
    """The prompt holds the cycle followed by something else, so that every other draft is half wrong."""
    wrong = [writer.id(piece) for piece in ("loop", "lo", "loo", "loop", "lo", "answer", "answer", "answer")]
    ids = torch.tensor([[*writer.tokenizer.encode(OPEN), *wrong, writer.id("loop")]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    (got,), results = writer.ask(inputs, {"loops": True}, max_new_tokens=560, prompt_lookup_num_tokens=5)
    assert got == [*(CYCLE[i % 3] for i in range(513)), *BEHIND]
    assert results == [think(-1, 513, 3, "loop")]


@pytest.mark.parametrize(("budget", "chosen"), [
    ({"seconds": 0}, 0), ({"seconds": 5.0}, 5), ({"seconds": 5.0, "since": "first_token"}, 6),
    ({"seconds": 500.0, "max_tokens": 9}, None), ({"seconds": None}, None),
])
def test_deadlines(writer: Writer, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float],
                   chosen: int | None) -> None:
    """By a clock on which each token takes a second; the prompt takes one too."""
    ticks = count()
    monkeypatch.setattr(ends, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    (got,), results = writer.ask(writer.inputs((OPEN, "loop")), budget)
    if chosen is None:
        assert results[0] is not None
        assert results[0]["outcome"] in ("forced", "open")
        return
    assert got == [*(CYCLE[i % 3] for i in range(chosen)), *BEHIND]
    assert results == [think(-1, chosen, 3, "deadline")]


def test_another_call_has_its_time_again(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(ends, "time", SimpleNamespace(monotonic=lambda: now[0]))
    inputs = writer.inputs((OPEN, "loop"))
    processor = writer.processor(inputs, {"seconds": 10.0}, message="late ")
    for passed, outcome in (0.0, "open"), (60.0, "open"):
        now[0] += passed
        (result,) = processor.results(writer.generate(inputs, processor))
        assert result is not None
        assert result["outcome"] == outcome


@pytest.mark.parametrize(("budget", "named"), [
    ({"seconds": "8"}, "seconds"), ({"seconds": -1}, "seconds"), ({"seconds": float("nan")}, "seconds"),
    ({"seconds": True}, "seconds"), ({"loops": 1}, "loops"), ({"since": "now", "seconds": 1}, "since"),
])
def test_what_is_not_accepted(writer: Writer, budget: dict[str, object], named: str) -> None:
    with pytest.raises(BudgetError, match=rf"budgets\.{named}"):
        writer.processor(writer.inputs((OPEN, "loop")), budget)
