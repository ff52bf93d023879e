"""Drafting for a batch, with a draft that has no model: what is in its cache, and what comes of odd rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from draft_standin import EOS, HALF, StandInContext, StandInRunner, written_after
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.uag.draft_state import Counts, Drafting
from sglang_ext.uag.drafter import CATCHING_UP, CONTEXT, FAILED, MOST_FAILURES, POOL, Drafter
from sglang_ext.uag.lengths import FixedLengths, LengthControl, RequestStats
from sglang_ext.uag.step_times import Kind
from sglang_ext.uag.text.proposal import SPECIAL, Proposal

WIDTH = 5
WAYS = pytest.mark.parametrize("watched", [True, False])


class AllSteps(FixedLengths):
    """What is asked and observed is kept."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.observed: list[tuple[int, int, int | None]] = []
        self.unable_count = 0
        self.reads: list[int] = []

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        self.observed.append((proposed, accepted, asked))

    def unable(self, request: RequestStats) -> None:
        self.unable_count += 1

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        if kind == "draft_extend":
            self.reads.append(width)


def drafter(runner: StandInRunner, watched: bool, reading: Any = StandInContext, chunk: int = 64) -> Drafter:
    return Drafter(reading, {EOS}, runner, AllSteps(), chunk, watched)


def drafting(d: Drafter, rid: str, ids: Sequence[int]) -> Drafting:
    out = d.drafting(rid)
    out.confirm(ids)
    return out


@WAYS
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 3))
def test_a_draft_is_what_a_draft_without_a_cache_writes(watched: bool, seed: int, steps: int) -> None:
    """Whatever was accepted, refused, half a character, or not drafted for a while."""
    chance = random.Random(seed)
    runner = StandInRunner()
    d = drafter(runner, watched, lambda: StandInContext(steps))
    texts = {rid: [chance.randrange(1, HALF) for _ in range(chance.randint(1, 20))] for rid in "abc"}
    for rid, text in texts.items():
        drafting(d, rid, text)
    if chance.random() < 0.5:
        d.prefill([d.drafting(rid) for rid in texts])
    for _ in range(8):
        here = [rid for rid in texts if chance.random() < 0.7]
        most = [chance.randint(1, WIDTH - 1) for _ in here]
        chains = d.draft([d.drafting(rid) for rid in here], most, len(texts))
        for rid, chain, length in zip(here, chains, most, strict=True):
            known = [i for i in texts[rid] if i != HALF]
            want = written_after(known, length * steps)[:length]
            assert list(chain) == want[: len(chain)]
            assert len(chain) >= 1
            assert len(chain) == len(want) or chain[-1] == EOS
            new = [*chain[: chance.randint(0, len(chain))],
                   chance.choice([HALF, chance.randrange(1, HALF), *want[len(chain) :]])]
            texts[rid] += new
            d.drafting(rid).confirm(new)
            d.observe(d.drafting(rid), len(new) - 1)
    d.close(list(texts))
    assert len(runner.free) == 64
    assert runner.left == 10**6


@WAYS
def test_a_text_that_did_not_change_is_not_read_twice(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    x = drafting(d, "x", [1, 2, 3])
    d.draft([x], [2], 1)
    x.confirm([HALF])
    assert d.draft([x], [2], 1) == [tuple(written_after([1, 2, 3], 2))]
    assert runner.reads == [[3], [1]]


@WAYS
def test_a_request_at_its_limit_shortens_nobody_elses_draft(watched: bool) -> None:
    """Reported failure 12."""
    runner = StandInRunner(slots=16)  # two pages: one each
    d = drafter(runner, watched)
    long, short = drafting(d, "long", [1, 2, 3, 4, 5, 6]), drafting(d, "short", [7, 8])
    chains = d.draft([long, short], [1, 4], 2)
    assert list(map(len, chains)) == [1, len(written_after([7, 8], 4))]
    many = d.draft([long], [4], 1)
    assert many == [()]
    assert long.counts.none == {POOL: 1}


@WAYS
def test_fewer_steps_drop_off(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    rows = [drafting(d, str(k), [k + 1]) for k in range(4)]
    d.draft(rows, [1, 4, 2, 3], 4)
    assert runner.decoded == [3, 2, 1]
    forwards = [x.counts.draft_forwards for x in rows]
    assert forwards == [1, 4, 2, 3]


@WAYS
def test_a_text_beyond_the_context_gives_its_place_back(watched: bool) -> None:
    runner = StandInRunner(context=10)
    d = drafter(runner, watched)
    x = drafting(d, "x", [1, 2, 3])
    assert d.draft([x], [2], 1) != [()]
    assert x.row is not None
    x.confirm([4] * 8)
    assert d.draft([x], [2], 1) == [()]
    assert x.counts.none == {CONTEXT: 1}
    assert x.row is None
    assert runner.left == 10**6
    assert d.control.unable_count == 1


@WAYS
def test_no_place_for_more(watched: bool) -> None:
    d = drafter(StandInRunner(rows=1), watched)
    x, y = drafting(d, "x", [1]), drafting(d, "y", [2])
    assert [bool(chain) for chain in d.draft([x, y], [1, 1], 2)] == [True, False]
    assert y.counts.none == {POOL: 1}


@WAYS
def test_a_long_text_is_read_in_chunks(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched, chunk=64)
    x = drafting(d, "x", [1 + k % 40 for k in range(200)])
    rounds = 0
    while not (chain := d.draft([x], [1], 1)[0]):
        rounds += 1
    assert rounds == x.counts.none[CATCHING_UP] == 3
    assert sum(map(sum, runner.reads)) == 200
    assert max(map(sum, runner.reads)) <= 64
    assert list(chain) == written_after([1 + k % 40 for k in range(200)], 1)


@WAYS
def test_no_numbers_from_the_draft(watched: bool) -> None:
    """A draft that overflows costs drafts, not the server."""
    runner = StandInRunner()
    runner.numbers = False
    d = Drafter(StandInContext, {EOS}, runner, LengthControl(WIDTH), 64, watched)
    x = drafting(d, "x", [1, 2])
    for _ in range(50):
        chain = d.draft([x], [4], 1)[0]
        assert all(chance == 0 for chance in x.confidence)
        x.confirm([3])
        d.observe(x, 0)
        d.control.timed("plain", 1, 1, 0.02)
    assert not math.isnan(x.stats.acceptance.rate(0.5))
    assert len(chain) <= 4


@WAYS
def test_a_failing_draft_costs_drafts(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    x = drafting(d, "x", [1, 2])
    assert d.draft([x], [2], 1)[0]
    runner.fault = RuntimeError("out of memory")
    assert d.draft([x], [2], 1) == [()]
    assert x.counts.none == {FAILED: 1}
    assert x.proposed == x.asked == 0
    assert runner.left == 10**6
    runner.fault = None
    assert d.draft([x], [2], 1) == [tuple(written_after([1, 2], 2))], "its cache is read again"
    runner.fault = RuntimeError("out of memory")
    d.prefill([drafting(d, "y", [5, 6, 7])])
    for _ in range(MOST_FAILURES):
        d.draft([x], [2], 1)
    runner.fault = None
    assert d.draft([x], [2], 1) == [()]
    assert x.counts.none[FAILED] == MOST_FAILURES - 1


class Ending(StandInContext):
    """The draft wants to end after its first token, and its end is nothing to the target."""

    kept = 1

    def propose(self, ids: Sequence[int], most: int) -> Proposal:
        return Proposal(tuple(ids[: self.kept]), SPECIAL, self.kept)


@WAYS
@pytest.mark.parametrize("kept", [0, 1])
def test_what_comes_to_less_than_asked_is_told(watched: bool, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, "kept", kept)
    d = drafter(StandInRunner(), watched, Ending)
    x = drafting(d, "x", [1, 2])
    chain = d.draft([x], [4], 1)[0]
    assert len(chain) == kept
    d.observe(x, kept)
    d.observe(x, 0)
    assert d.control.observed == [(kept, kept, kept + 1)], "once"


@WAYS
def test_what_a_budget_takes_away_is_no_fault_of_the_draft(watched: bool) -> None:
    d = drafter(StandInRunner(), watched)
    x = drafting(d, "x", [1, 2])
    proposed = len(d.draft([x], [4], 1)[0])
    x.submit(0)
    d.observe(x, 0)
    assert proposed
    assert d.control.observed == []


@WAYS
def test_who_cannot_be_drafted_for_is_told(watched: bool) -> None:
    d = drafter(StandInRunner(), watched, lambda: StandInContext(unavailable_reason="no boundary"))
    x = drafting(d, "x", [1, 2])
    assert d.draft([x], [4], 1) == [()]
    assert x.counts.none == {"no boundary": 1}
    assert d.control.unable_count == 1


def test_reading_is_timed_by_what_was_read() -> None:
    for watched in (True, False):
        d = drafter(StandInRunner(), watched, chunk=256)
        d.draft([drafting(d, "x", [1] * 40), drafting(d, "y", [1])], [1, 1], 2)
        assert d.control.reads == [21]


def test_counts_leave_out_a_round_that_was_not_used() -> None:
    counts = Counts()
    counts.launch(4, 0)
    counts.launch(0, 3)
    counts.launch(7, 0)
    whole, used = counts.result(5, verified=3), counts.result(5, verified=2)
    assert (whole["proposed"], whole["forced"], whole["rounds"]) == (11, 3, 2)
    assert (used["proposed"], used["forced"], used["rounds"]) == (4, 3, 1)
    assert used["rejections"]["verification"] == 2
    assert whole["rejections"]["verification"] == 9
