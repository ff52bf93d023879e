"""DraftState for a batch, with a draft that has no model: what is in its cache, and what comes of odd rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draft_standin import EOS, HALF, StandInContext, StandInRunner, written_after
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.uag.draft_state import Counts, DraftState, DraftTokens
from sglang_ext.uag.drafter import CATCHING_UP, CONTEXT, FAILED, MAX_FAILURES, POOL, Drafter
from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.lengths import LengthControl
from sglang_ext.uag.speed_up import RequestStats
from sglang_ext.uag.step_times import Kind
from sglang_ext.uag.text.proposal import SPECIAL, Proposal

WIDTH = 5
WAYS = pytest.mark.parametrize("watched", [True, False])


class AllSteps(FixedLengths):
    """What is told is kept."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.unable_count = 0
        self.reads: list[int] = []

    def unable(self, request: RequestStats) -> None:
        self.unable_count += 1

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        if kind == "draft_extend":
            self.reads.append(width)


def drafter(runner: StandInRunner, watched: bool, reading: Any = StandInContext, chunk: int = 64) -> Drafter:
    return Drafter(reading, {EOS}, runner, AllSteps(), chunk, watched)


def written(d: Drafter, states: Sequence[DraftState], most: Sequence[int], batch: int) -> list[DraftTokens]:
    offers = [d.offer(state, state.num_confirmed) for state in states]
    planned = [0 if stats is None else d.lengths.plan([stats], batch)[0] for stats in offers]
    return d.draft(states, list(map(min, planned, most)), batch)


def drafted(d: Drafter, states: Sequence[DraftState], most: Sequence[int], batch: int) -> list[tuple[int, ...]]:
    """The draft tokens of a step."""
    return [tokens.ids for tokens in written(d, states, most, batch)]


def confirmed(d: Drafter, rid: str, ids: Sequence[int]) -> DraftState:
    out = d.state(rid)
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
        confirmed(d, rid, text)
    if chance.random() < 0.5:
        d.prefill([d.state(rid) for rid in texts])
    for _ in range(8):
        here = [rid for rid in texts if chance.random() < 0.7]
        most = [chance.randint(1, WIDTH - 1) for _ in here]
        chains = drafted(d, [d.state(rid) for rid in here], most, len(texts))
        for rid, chain, length in zip(here, chains, most, strict=True):
            known = [i for i in texts[rid] if i != HALF]
            want = written_after(known, length * steps)[:length]
            assert list(chain) == want[: len(chain)]
            assert len(chain) >= 1
            assert len(chain) == len(want) or chain[-1] == EOS
            new = [*chain[: chance.randint(0, len(chain))],
                   chance.choice([HALF, chance.randrange(1, HALF), *want[len(chain) :]])]
            texts[rid] += new
            d.state(rid).confirm(new)
    d.close(list(texts))
    assert len(runner.free) == 64
    assert runner.left == 10**6


@WAYS
def test_a_text_that_did_not_change_is_not_read_twice(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    x = confirmed(d, "x", [1, 2, 3])
    drafted(d, [x], [2], 1)
    x.confirm([HALF])
    assert drafted(d, [x], [2], 1) == [tuple(written_after([1, 2, 3], 2))]
    assert runner.reads == [[3]], "one id is read by a decode step"
    assert runner.decoded == [1, 1, 1]


@WAYS
def test_a_request_at_its_limit_shortens_nobody_elses_draft(watched: bool) -> None:
    """A short draft of one request is no reason for a short draft of another."""
    runner = StandInRunner(slots=16)  # two pages: one each
    d = drafter(runner, watched)
    long, short = confirmed(d, "long", [1, 2, 3, 4, 5, 6]), confirmed(d, "short", [7, 8])
    chains = drafted(d, [long, short], [1, 4], 2)
    assert list(map(len, chains)) == [1, len(written_after([7, 8], 4))]
    many = drafted(d, [long], [4], 1)
    assert many == [()]
    assert long.counts.skip_reasons == {POOL: 1}


@WAYS
def test_fewer_steps_drop_off(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    rows = [confirmed(d, str(k), [k + 1, 7]) for k in range(4)]
    drafted(d, rows, [1, 4, 2, 3], 4)
    assert runner.decoded == [3, 2, 1]
    forwards = [x.counts.draft_forwards for x in rows]
    assert forwards == [1, 4, 2, 3]


@WAYS
def test_a_text_beyond_the_context_gives_its_place_back(watched: bool) -> None:
    runner = StandInRunner(context=10)
    d = drafter(runner, watched)
    x = confirmed(d, "x", [1, 2, 3])
    assert drafted(d, [x], [2], 1) != [()]
    assert x.row is not None
    x.confirm([4] * 8)
    assert drafted(d, [x], [2], 1) == [()]
    assert x.counts.skip_reasons == {CONTEXT: 1}
    assert x.row is None
    assert runner.left == 10**6
    assert d.lengths.unable_count == 1


@WAYS
def test_no_place_for_more(watched: bool) -> None:
    d = drafter(StandInRunner(rows=1), watched)
    x, y = confirmed(d, "x", [1]), confirmed(d, "y", [2])
    assert [bool(chain) for chain in drafted(d, [x, y], [1, 1], 2)] == [True, False]
    assert y.counts.skip_reasons == {POOL: 1}


@WAYS
def test_a_long_text_is_read_in_chunks(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched, chunk=64)
    x = confirmed(d, "x", [1 + k % 40 for k in range(200)])
    rounds = 0
    while not (chain := drafted(d, [x], [1], 1)[0]):
        rounds += 1
    assert rounds == x.counts.skip_reasons[CATCHING_UP] == 3
    assert sum(map(sum, runner.reads)) == 200
    assert max(map(sum, runner.reads)) <= 64
    assert list(chain) == written_after([1 + k % 40 for k in range(200)], 1)


@WAYS
def test_no_numbers_from_the_draft(watched: bool) -> None:
    """A draft that overflows costs drafts, not the server."""
    runner = StandInRunner()
    runner.numbers = False
    d = Drafter(StandInContext, {EOS}, runner, LengthControl(WIDTH), 64, watched)
    x = confirmed(d, "x", [1, 2])
    for _ in range(50):
        chain = written(d, [x], [4], 1)[0]
        assert all(chance == 0 for chance in chain.confidence)
        x.confirm([3])
        d.lengths.observe(x.stats, len(chain.ids), 0, chain.confidence, asked=chain.requested)
        d.lengths.timed("plain", 1, 1, 0.02)
    assert x.stats.belief is None or not np.isnan(x.stats.belief).any()
    assert len(chain.ids) <= 4


@WAYS
def test_a_failing_draft_costs_drafts(watched: bool) -> None:
    runner = StandInRunner()
    d = drafter(runner, watched)
    x = confirmed(d, "x", [1, 2])
    assert drafted(d, [x], [2], 1)[0]
    runner.fault = RuntimeError("out of memory")
    assert drafted(d, [x], [2], 1) == [()]
    assert x.counts.skip_reasons == {FAILED: 1}
    assert runner.left == 10**6
    runner.fault = None
    assert drafted(d, [x], [2], 1) == [tuple(written_after([1, 2], 2))], "its cache is read again"
    runner.fault = RuntimeError("out of memory")
    d.prefill([confirmed(d, "y", [5, 6, 7])])
    for _ in range(MAX_FAILURES):
        drafted(d, [x], [2], 1)
    runner.fault = None
    assert drafted(d, [x], [2], 1) == [()]
    assert x.counts.skip_reasons[FAILED] == MAX_FAILURES - 1


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
    x = confirmed(d, "x", [1, 2])
    chain = written(d, [x], [4], 1)[0]
    assert (len(chain.ids), chain.requested) == (kept, kept + 1)


@WAYS
def test_what_a_budget_takes_away_is_no_fault_of_the_draft(watched: bool) -> None:
    d = drafter(StandInRunner(), watched)
    x = confirmed(d, "x", [1, 2])
    proposed = written(d, [x], [4], 1)[0]
    assert proposed.requested == len(proposed.ids) > 1
    assert proposed.cut(0).requested == 0
    assert proposed.cut(1).requested == 1


@WAYS
def test_who_cannot_be_drafted_for_is_told(watched: bool) -> None:
    d = drafter(StandInRunner(), watched, lambda: StandInContext(unavailable_reason="no boundary"))
    x = confirmed(d, "x", [1, 2])
    assert drafted(d, [x], [4], 1) == [()]
    assert x.counts.skip_reasons == {"no boundary": 1}
    assert d.lengths.unable_count == 1


def test_reading_is_timed_by_what_was_read() -> None:
    for watched in (True, False):
        d = drafter(StandInRunner(), watched, chunk=256)
        drafted(d, [confirmed(d, "x", [1] * 40), confirmed(d, "y", [1])], [1, 1], 2)
        assert d.lengths.reads == [21]


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
