"""Draft lengths: against an oracle that knows what is accepted and what steps take, and against plain steps."""

from __future__ import annotations

from collections import Counter
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uag_simulation import BOUND, CPU, EXPENSIVE_DRAFT, GPU, Machine, Truth, oracle, serve

from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.lengths import Costs, LengthControl, RequestStats

MACHINES = [GPU, EXPENSIVE_DRAFT, BOUND]
NAMES = ["gpu", "expensive draft", "bound by computing"]


def hopeless(request: int, token: int) -> float:
    return 0.0


def mixed(request: int, token: int) -> float:
    return 0.9 if request % 4 == 0 else 0.05


def becoming_good(request: int, token: int) -> float:
    return 0.0 if token < 400 else 0.95


def becoming_bad(request: int, token: int) -> float:
    return 0.95 if token < 400 else 0.0


def of_oracle(machine: Machine, truth: Truth, batch: int, rounds: int) -> float:
    return serve(machine, truth, batch, rounds).speed / oracle(machine, truth, batch, rounds).speed


def of_plain(machine: Machine, truth: Truth, batch: int, rounds: int) -> float:
    return serve(machine, truth, batch, rounds).speed * machine.target(batch, 1) / batch


def test_a_busy_moment_does_not_make_a_hopeless_draft_pay() -> None:
    """Plain steps are measured while the machine is slow, and verifications ever after."""
    control, request, lost = LengthControl(8), RequestStats(), 0.0
    for step in range(400):
        length = control.plan([request], 1)[0]
        slow = 1.6 if step < 12 else 1.0
        if length:
            control.timed("draft_extend", 1, 1, 0.0015)
        control.timed("verify" if length else "plain", 1, length + 1, 0.02 * slow)
        control.observe(request, length, 0)
        lost += 0.0015 * (length > 0)
    assert lost < 0.018 * 400 * 0.02


def test_no_look_is_taken_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision not to draft stands for some rounds; what is learned ends it."""
    control, request = LengthControl(8), RequestStats()
    looks: list[int] = []
    best = LengthControl._best
    monkeypatch.setattr(LengthControl, "_best", lambda self, *args: looks.append(1) or best(self, *args))
    for _ in range(300):
        control.timed("plain", 1, 1, 0.02)
        control.observe(request, control.plan([request], 1)[0], 0)
    assert len(looks) < 120
    control.observe(request, 1, 1)
    before = len(looks)
    control.plan([request], 1)
    assert len(looks) > before


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("rounds", [128, 1000])
def test_a_hopeless_pair_costs_little(machine: Machine, batch: int, rounds: int) -> None:
    """Failure 6: assisted generation that is slower than plain."""
    assert of_plain(machine, hopeless, batch, rounds) > 0.97


@pytest.mark.parametrize("machine", [*MACHINES, CPU], ids=[*NAMES, "cpu"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("prompt", [500, 8000])
def test_a_hopeless_pair_costs_little_with_long_prompts(machine: Machine, batch: int, prompt: int) -> None:
    outcome = serve(machine, hopeless, batch, 1000, prompt=prompt, response=100)
    assert outcome.speed * machine.target(batch, 1) / batch > 0.97


@pytest.mark.parametrize("machine", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("prompt", [100, 2000, 8000])
def test_drafting_comes_back_with_long_prompts(machine: Machine, batch: int, prompt: int) -> None:
    """However much a draft has to read for the first good draft: what that costs is saved up."""
    def truth(request: int, token: int) -> float:
        return 0.0 if request < 2 * batch else 0.95
    lengths = serve(machine, truth, batch, 5000, prompt=prompt, response=200).lengths[-500:]
    assert sum(any(now) for now in lengths) > 450


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_a_hopeless_pair_stops_paying_within_the_first_tokens(batch: int) -> None:
    lengths = serve(GPU, hopeless, batch, 40).lengths
    assert sum(map(max, lengths[:40])) <= 6


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("prompt", [20, 60, 300])
def test_a_start_on_a_busy_machine_is_forgotten(batch: int, prompt: int) -> None:
    """Everything is slow at first, and reading prompts most of all."""
    control = LengthControl(8)
    busy = Machine(plain=3.0, extend=0.4, step=0.3, token=0.3)
    serve(busy, lambda request, token: 0.3, batch, 90, control=control, prompt=prompt, response=96)
    lengths = serve(GPU, lambda request, token: 0.95, batch, 2000, control=control, prompt=prompt, response=96).lengths
    assert sum(any(now) for now in lengths[-500:]) > 450


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_what_a_hopeless_pair_costs_in_the_long_run(machine: Machine, batch: int) -> None:
    speed = serve(machine, hopeless, batch, 3000).speed
    assert speed * machine.target(batch, 1) / batch > 0.99


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.5, 0.8, 1.0])
def test_nearly_as_fast_as_knowing_everything(machine: Machine, batch: int, acceptance: float) -> None:
    assert of_oracle(machine, lambda request, token: acceptance, batch, 800) > 0.9


@pytest.mark.parametrize("machine", [GPU, BOUND], ids=["gpu", "bound by computing"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("truth", [mixed, becoming_good, becoming_bad])
def test_mixed_and_changing_acceptance(machine: Machine, batch: int, truth: Truth) -> None:
    assert of_oracle(machine, truth, batch, 1200) > 0.9


@pytest.mark.parametrize("acceptance", [0.05, 0.5, 1.0])
def test_no_drafts_where_verification_is_bound_by_computing(acceptance: float) -> None:
    assert of_plain(BOUND, lambda request, token: acceptance, 64, 300) > 0.97


def test_lengths_are_of_requests() -> None:
    """Failure 12: a hopeless request shortens nobody's draft, and has none itself."""
    machine = Machine(more=0.5)  # a draft for one more request costs much
    last = Counter[int]()
    for lengths in serve(machine, lambda request, token: 0.97 * (request == 0), 4, 400).lengths[200:]:
        last.update(k for k, length in enumerate(lengths) if length > 1)
    assert last[0] > 150
    assert last[1] + last[2] + last[3] < last[0] / 2


def test_what_the_draft_missed_is_charged() -> None:
    """A request that the draft has not read for long is probed after one that it has read."""
    control = LengthControl(8, Costs(draft_extend=1.0, draft_step=0.3))
    stats = [RequestStats(behind=500.0), RequestStats()]
    assert control.plan(stats) == [0, 1]
    assert (stats[0].behind, stats[1].behind) == (501.0, 0.0)
    assert (stats[0].alive, stats[1].alive) == (False, True)


def test_off_until_drafting_pays() -> None:
    control, stats = LengthControl(8), [RequestStats()]
    assert not control.off
    for _ in range(30):
        control.observe(stats[0], control.plan(stats)[0], 0)
    assert control.off


def test_confidence_is_weighed_by_what_it_was_worth() -> None:
    control, stats = LengthControl(8), RequestStats()
    for _ in range(4):
        control.timed("plain", 1, 1, 1.0)
        control.timed("draft_step", 1, 1, 0.1)
        control.timed("verify", 1, 3, 1.0)
        control.timed("verify", 1, 4, 1.0)
    assert control.worth_going_on(0.0, 0, 1)
    assert control.worth_going_on(0.9, 2, 1)
    assert not control.worth_going_on(0.02, 2, 1)
    for _ in range(60):
        control.observe(stats, 1, 0, [0.95])
    assert not control.worth_going_on(0.95, 2, 1)


@pytest.mark.parametrize("step", [0.1, 0.3])
def test_drafts_that_end_early_are_planned_shorter(step: float) -> None:
    """Half characters: one token comes of each draft, however long, and is accepted."""
    control, stats, tokens, seconds = LengthControl(8), RequestStats(), 0, 0.0
    for _ in range(1000):
        stats.behind = 2.0
        n = control.plan([stats])[0]
        control.timed("verify" if n else "plain", 1, 1 + (n > 0), 1.0)
        tokens, seconds = tokens + 1 + (n > 0), seconds + 1.0
        if n:
            control.timed("draft_extend", 1, 2, 0.12)
            control.timed("draft_step", 1, 1, step)
            seconds += 0.12 + (n - 1) * step
            control.observe(stats, 1, 1, asked=n)
    assert tokens / seconds > 0.93 * 2 / 1.12


def test_the_first_missing_token_counts_as_refused() -> None:
    """And no other: what follows it was not judged."""
    control, stats, same = LengthControl(8), RequestStats(), RequestStats()
    control.observe(stats, 2, 2, [0.9, 0.9], asked=5)
    other = LengthControl(8)
    other.observe(same, 3, 2, [0.9, 0.9])
    assert (stats.accepted, stats.seen) == (same.accepted, same.seen) == (2.0, 3.0)
    assert control.plan([stats]) == other.plan([same])
    control.observe(stats, 0, 0, asked=0)
    assert stats.seen == 3.0


@pytest.mark.parametrize("batch", [1, 16, 32])
def test_where_every_step_has_the_full_width_none_is_thought_cheaper(batch: int) -> None:
    control, requests = LengthControl(8, fixed=True), [RequestStats() for _ in range(batch)]
    for _ in range(100):
        lengths = control.plan(requests)
        if any(lengths):
            control.timed("draft_extend", sum(map(bool, lengths)), 1, 0.06)
            control.timed("draft_step", sum(map(bool, lengths)), 1, 0.05)
        control.timed("verify" if any(lengths) else "plain", batch, 8 if any(lengths) else 1, 1.0)
        for request, n in zip(requests, lengths, strict=True):
            control.observe(request, n, min(n, 1))
        assert all(lengths)  # no round is plain, not even to be timed
    assert lengths == [1] * batch or lengths == [2] * batch


@pytest.mark.parametrize("confidence", [nan, inf, -inf, -1.0, 2.0])
def test_a_confidence_that_is_no_probability_counts_as_none(confidence: float) -> None:
    control, other, stats = LengthControl(8), LengthControl(8), RequestStats()
    assert not control.worth_going_on(confidence, 2, 1)
    for _ in range(60):
        control.observe(stats, 1, 1, [confidence])
        other.observe(stats, 1, 1, [0.0])
    assert control.worth_going_on(confidence, 2, 1)
    assert control.worth_going_on(0.0, 2, 1)
    assert control.worth_going_on(0.02, 2, 1) == other.worth_going_on(0.02, 2, 1)


def test_a_confidence_may_be_rounded_above_one() -> None:
    assert LengthControl(8).worth_going_on(1.0000001, 2, 1)


def test_fixed_lengths_take_the_same_calls() -> None:
    control, stats = FixedLengths(4, fixed=True), RequestStats()
    assert control.plan([stats]) == [3]
    control.observe(stats, 1, 1, [nan], asked=3)
    control.unable(stats)
    assert control.plan([stats]) == [3]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 7), st.sampled_from(["plain", "verify", "draft_extend"]),
                          st.floats(0, 10)), max_size=30), st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_lengths_stay_in_range_and_are_the_same_each_time(events: list[tuple[int, int, str, float]], width: int
                                                              ) -> None:
    def run() -> list[list[int]]:
        control, stats = LengthControl(width), [RequestStats() for _ in range(6)]
        plans = []
        for batch, accepted, kind, seconds in events:
            plans.append(control.plan(stats[:batch]))
            for request, length in zip(stats, plans[-1], strict=False):
                control.observe(request, length, min(accepted, length))
            control.timed(kind, batch, 1 if kind == "plain" else 1 + accepted, seconds)  # type: ignore[arg-type]
        return plans
    plans = run()
    assert all(0 <= length < width for plan in plans for length in plan)
    assert plans == run()


def test_nobody_to_draft_for() -> None:
    assert LengthControl(2).plan([], 3) == []


def test_bad_values() -> None:
    control = LengthControl(4)
    with pytest.raises(ValueError, match="width 1: accepted is 2 or more"):
        LengthControl(1)
    with pytest.raises(ValueError, match="accepted 3 of 2 proposed: accepted is 0 to 2"):
        control.observe(RequestStats(), 2, 3)
    with pytest.raises(ValueError, match="asked 1, 2 proposed: asked is 2 or more"):
        control.observe(RequestStats(), 2, 1, asked=1)
    with pytest.raises(ValueError, match="kind 'draft': accepted are plain, verify, draft_extend, draft_step"):
        control.timed("draft", 1, 1, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"plain of batch 0, width 1, 1.0 s: accepted are batch and width"):
        control.timed("plain", 0, 1, 1.0)
