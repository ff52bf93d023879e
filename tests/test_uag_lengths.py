"""Draft lengths: against an oracle that knows what is accepted and what steps take, and against plain steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uag_simulation import BOUND, EXPENSIVE_DRAFT, GPU, Machine, Truth, oracle, serve

from sglang_ext.uag.lengths import Costs, LengthControl, RequestStats
from sglang_ext.uag.step_times import StepTimes

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


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("rounds", [128, 1000])
def test_a_hopeless_pair_costs_little(machine: Machine, batch: int, rounds: int) -> None:
    """Failure 6: assisted generation that is slower than plain."""
    assert of_plain(machine, hopeless, batch, rounds) > 0.97


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_a_hopeless_pair_stops_paying_within_the_first_tokens(batch: int) -> None:
    lengths = serve(GPU, hopeless, batch, 40).lengths
    assert sum(map(max, lengths[:40])) <= 6


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
    with pytest.raises(ValueError, match="kind 'draft': accepted are plain, verify, draft_extend, draft_step"):
        control.timed("draft", 1, 1, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"plain of batch 0, width 1, 1.0 s: accepted are batch and width"):
        control.timed("plain", 0, 1, 1.0)


def test_times_between_measurements_are_in_the_guessed_proportion() -> None:
    times = StepTimes(Costs(draft_extend=0.5, draft_step=0.25, token=0.0))
    assert times.of("plain", 1) == 1.0
    times.add("plain", 1, 1, 0.02)
    assert times.of("plain", 8) == times.of("verify", 1, 4) == 0.02
    assert times.of("draft_extend", 1, 4) == pytest.approx(0.01)
    times.add("draft_extend", 1, 4, 0.004)
    assert times.of("draft_step", 2) == pytest.approx(0.002)


def test_a_slow_step_among_many_changes_nothing() -> None:
    times = StepTimes(Costs(token=0.0))
    for _ in range(20):
        times.add("plain", 1, 1, 0.02)
    times.add("plain", 1, 1, 9.0)
    assert times.of("plain", 1) == 0.02


def test_the_first_step_of_a_shape_may_be_slow() -> None:
    """It may have compiled something; it is not believed beyond some times of what was expected."""
    times = StepTimes(Costs(token=0.0))
    times.add("plain", 1, 1, 0.02)
    times.add("verify", 1, 4, 30.0)
    assert times.of("verify", 1, 4) < 0.1
