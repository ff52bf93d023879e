"""Draft lengths: the rule against brute force, probes, and what is told of drafts."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, combinations, pairwise
from math import ceil, inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from uag_simulation import GPU

from sglang_ext.uag.acceptance import RATES
from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.lengths import LengthControl
from sglang_ext.uag.speed_up import Planned, RequestStats, SpeedUps
from sglang_ext.uag.step_times import StepTimes

FACTORS = st.floats(1.0, 1.9)


@st.composite
def measured(draw: st.DrawFn) -> tuple[int, int, list[float], list[float], list[float]]:
    """Width, batch, seconds of the target by positions, and of the draft's extension and step by requests."""
    width, batch = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    target = [1.0, *(draw(FACTORS) for _ in range(width - 1))]
    extend = [0.05 * draw(FACTORS) for _ in range(4)]
    step = [0.02 * draw(FACTORS) for _ in range(4)]
    extend[2], step[2] = extend[3], step[3]  # three requests count as four
    return width, batch, target, extend, step


def beliefs(draw: st.DrawFn) -> list[float]:
    """Of acceptance rates 0.05, 0.15, ... 0.95."""
    weights = [draw(st.floats(0, 1)) for _ in range(10)]
    assume(sum(weights) > 0.1)
    return [weight / sum(weights) for weight in weights]


@given(measured(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_rule_is_the_best_of_all_sets_and_lengths(times: tuple[int, int, list[float], list[float], list[float]],
                                                      data: st.DataObject) -> None:
    """Drafts of the model, for any set of requests; the others have none, or one that costs nothing."""
    width, batch, target, extend, step = times
    steps = data.draw(st.sampled_from([0.5, 1.0, 1.25]))
    model = [data.draw(st.composite(beliefs)()) for _ in range(batch)]
    free = [data.draw(st.none() | st.composite(beliefs)()) for _ in range(batch)]
    most = [data.draw(st.integers(0, 7)) for _ in range(batch)]
    speed_ups = SpeedUps(width, False, measured_times(times))
    requests = [[RequestStats(steps, belief=np.array(belief))] for belief in model]
    for sources, belief, limit in zip(requests, free, most, strict=True):
        if belief is not None:
            sources.append(RequestStats(0.0, source="text", most=limit, belief=np.array(belief)))

    def tokens(belief: list[float] | None) -> list[float]:
        """Expected of drafts of 0, 1, 2, ... tokens."""
        odds = [sum(w * (0.05 + 0.1 * i) ** j for i, w in enumerate(belief or [])) for j in range(1, width)]
        return [0.0, *accumulate(odds)]

    of_model, of_free = [tokens(belief) for belief in model], [tokens(belief) for belief in free]

    def speed_up(chosen: tuple[int, ...], k: int, k_free: int) -> float:
        n = len(chosen)
        gain = sum(of_model[i][k] if i in chosen else of_free[i][min(k_free, most[i])] for i in range(batch))
        draft = extend[n - 1] + (ceil(k * steps) - 1) * step[n - 1] if chosen else 0.0
        return (1 + gain / batch) / (draft + target[max(k if chosen else 0, k_free)])

    lengths_free = range(width) if any(belief is not None for belief in free) else [0]
    best = max(speed_up(chosen, k, k_free) for n in range(batch + 1) for chosen in combinations(range(batch), n)
               for k in range(1, width) for k_free in lengths_free if chosen or k_free)
    choices = speed_ups.choices(requests, batch)
    found = max(choices, key=lambda choice: choice.speed_up)
    chosen = tuple(i for i, planned in found.planned.items() if not planned.source)
    k = max((found.planned[i].length for i in chosen), default=1)
    tried = max(speed_up(chosen, k, k_free) for k_free in lengths_free if chosen or k_free)
    assert found.speed_up == pytest.approx(tried)
    assert found.speed_up >= best - 1e-9 or any(belief is not None for belief in free)
    assert found.speed_up >= 0.97 * best, "the order of requests is that of the longest drafts"


def measured_times(times: tuple[int, int, list[float], list[float], list[float]]) -> StepTimes:
    width, batch, target, extend, step = times
    measured = StepTimes(width)
    for w in range(width):
        measured.add("verify" if w else "plain", batch, w + 1, target[w])
    for n in (1, 2, 4):
        measured.add("draft_extend", n, 2, extend[n - 1])
        measured.add("draft_step", n, 1, step[n - 1])
    return measured


def test_what_costs_nothing_is_drafted_where_the_model_does_not_pay() -> None:
    control = LengthControl(8)
    control.timed("plain", 2, 1, 1.0)
    control.timed("draft_extend", 2, 1, 3.0)
    control.timed("verify", 2, 2, 1.1)
    text = [RequestStats(0.0, source="text", most=most) for most in (5, 0)]
    plans = []
    for _ in range(60):
        plans.append(control.plan_sources([[RequestStats(), t] for t in text], 2))
        length = max(planned.length for planned in plans[-1])
        control.timed("verify" if length else "plain", 2, 1 + length, 1.0 + 0.1 * (length > 0))
        if length:
            control.observe(text[0], length, length)
    assert plans[-1] == [Planned(1, 5), Planned()]
    assert sum(planned[0].length > 0 for planned in plans) > 50
    assert control.off


def test_sources_are_judged_apart() -> None:
    """What is known of the text's drafts is not told of the model's."""
    control, text, model = LengthControl(8, fixed=True), RequestStats(0.0, source="text"), RequestStats()
    for kind in ("plain", "draft_extend", "draft_step"):
        control.timed(kind, 1, 1, 1.0 if kind == "plain" else 0.1)  # type: ignore[arg-type]
    for _ in range(20):
        control.observe(text, 7, 0)
    assert control.plan_sources([[text, model]]) == [Planned(1, control.plan([RequestStats()])[0])]
    for _ in range(20):
        control.observe(model, 7, 0)
        control.observe(text, 7, 7)
    assert control.plan_sources([[model, text]]) == [Planned(1, 7)]


def after_a_hopeless_phase() -> LengthControl:
    control = LengthControl(8)
    for _ in range(40):
        stats = RequestStats()
        for _ in range(32):
            control.observe(stats, step(control, [stats])[0], 0)
    assert control.off
    return control


def step(control: LengthControl, requests: list[RequestStats]) -> list[int]:
    """A plan, and the times that its steps take on `GPU`."""
    lengths = control.plan(requests)
    drafting, longest = sum(map(bool, lengths)), max(lengths)
    if longest:
        control.timed("draft_extend", drafting, 2, GPU.draft_extend(drafting, 2))
        control.timed("draft_step", drafting, 1, GPU.draft_step(drafting))
    control.timed("verify" if longest else "plain", len(requests), longest + 1, GPU.target(len(requests), longest + 1))
    return lengths


def test_probes_become_rarer() -> None:
    control, drafts = LengthControl(8), list[int]()
    for request in range(60):
        stats = RequestStats()
        for number in range(64 * request, 64 * request + 64):
            length = step(control, [stats])[0]
            control.observe(stats, length, 0)
            drafts += [number] * (length > 0)
    gaps = [b - a for a, b in pairwise(drafts)]
    assert sum(gaps[-5:]) > 3 * sum(gaps[:5])
    assert control.off


def test_one_bad_phase_does_not_switch_drafting_off_for_long() -> None:
    """Few tokens of a bad kind, or a busy machine, say little of the next request."""
    control = LengthControl(8)
    for _ in range(12):  # requests
        stats = RequestStats()
        for _ in range(64):
            control.observe(stats, step(control, [stats])[0], 0)
    good, drafts = [RequestStats() for _ in range(4)], list[int]()
    for stats in good:
        for _ in range(16):
            length = step(control, [stats])[0]
            control.observe(stats, length, length)
            drafts.append(length)
    assert sum(length > 0 for length in drafts) > 32
    assert max(drafts[-16:]) == 7, "the widest draft is soon tried"


def test_a_dear_probe_waits_until_it_may_cost_so_much() -> None:
    """What the draft missed is read in a probe."""
    control = after_a_hopeless_phase()
    for _ in range(4):
        control.timed("draft_extend", 1, 1000, 5.0)
    unread = RequestStats(behind=2000.0)  # about ten plain steps
    waited = next(n for n in range(5000) if step(control, [unread])[0])
    assert 500 < waited < 2000


def test_a_request_that_has_little_to_read_is_probed_first() -> None:
    control = after_a_hopeless_phase()
    for _ in range(4):
        control.timed("draft_extend", 1, 1000, 5.0)
    requests = [RequestStats(behind=5000.0), RequestStats()]
    while not any(lengths := step(control, requests)):
        pass
    assert lengths == [0, 1]


def test_no_look_is_taken_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision not to draft stands until the next probe; what is learned ends it."""
    control, request = after_a_hopeless_phase(), RequestStats()
    looks: list[int] = []
    choices = SpeedUps.choices

    def look(self: SpeedUps, *args: Any) -> Any:
        looks.append(1)
        return choices(self, *args)

    monkeypatch.setattr(SpeedUps, "choices", look)
    for _ in range(300):
        control.observe(request, step(control, [request])[0], 0)
    assert len(looks) < 60
    control.observe(request, 1, 1)
    before = len(looks)
    control.plan([request], 1)
    assert len(looks) > before


def test_who_cannot_be_drafted_for_takes_no_probes() -> None:
    control, blind, good = after_a_hopeless_phase(), RequestStats(), RequestStats()
    drafts = Counter[int]()
    for _ in range(800):
        first, second = step(control, [blind, good])
        drafts.update({0: first > 0, 1: second > 0})
        if first:
            control.unable(blind)
        control.observe(good, second, second)
    assert drafts[1] > 150


def test_a_probe_that_could_not_begin_is_made_with_another_request() -> None:
    control, blind = after_a_hopeless_phase(), RequestStats()
    while not step(control, [blind])[0]:
        pass
    control.unable(blind)
    other = RequestStats()
    assert next(lengths for _ in range(300) if any(lengths := step(control, [blind, other])))[1]


def test_drafts_that_come_to_nothing_are_made_rarely() -> None:
    """The draft runs, and nothing of its text can be submitted."""
    control, drafts = LengthControl(8), 0
    for _ in range(20):
        stats = RequestStats()
        for _ in range(50):
            n = step(control, [stats])[0]
            drafts += n > 0
            control.observe(stats, 0, 0, asked=n)
    assert control.off
    assert 3 < drafts < 130, "each costs an eighth of a plain step"


def test_prompts_are_not_read_where_no_draft_can_pay() -> None:
    control = LengthControl(8, fixed=True)
    for _ in range(10):
        control.timed("plain", 1, 1, 1.0)
        control.timed("draft_step", 1, 1, 5.0)
        control.timed("draft_extend", 1, 1, 5.0)
    assert control.plan([RequestStats()]) == [0]
    assert control.off


def test_nothing_is_drafted_until_a_plain_step_was_measured() -> None:
    control, stats = LengthControl(8), RequestStats()
    assert control.plan([stats]) == [0]
    assert not control.off
    control.timed("plain", 1, 1, 1.0)
    assert control.plan([stats]) == [1]


def test_confidence_is_weighed_by_what_it_was_worth() -> None:
    control, stats = LengthControl(8), RequestStats()
    for _ in range(4):
        control.timed("plain", 1, 1, 1.0)
        control.timed("draft_extend", 1, 1, 0.1)
        control.timed("draft_step", 1, 1, 0.1)
        control.timed("verify", 1, 3, 1.0)
    assert control.worth_going_on(0.0, 0, 1)
    assert control.worth_going_on(0.9, 2, 1)
    assert not control.worth_going_on(0.02, 2, 1)
    for _ in range(60):
        control.observe(stats, 2, 1, [0.95, 0.9])
    assert not control.worth_going_on(0.95, 2, 1)


@pytest.mark.parametrize("step", [0.1, 0.3])
def test_drafts_that_end_early_are_planned_shorter(step: float) -> None:
    """Half characters: one token comes of each draft, however long, and is accepted."""
    control, stats, tokens, seconds = LengthControl(8), RequestStats(), 0, 0.0
    for _ in range(1000):
        n = control.plan([stats])[0]
        control.timed("verify" if n else "plain", 1, 1 + (n > 0), 1.0)
        tokens, seconds = tokens + 1 + (n > 0), seconds + 1.0
        if n:
            control.timed("draft_extend", 1, 2, 0.12)
            control.timed("draft_step", 1, 1, step)
            seconds += 0.12 + (n - 1) * step
            control.observe(stats, 1, 1, asked=n)
    assert tokens / seconds > 0.85 * 2 / 1.12


def test_the_first_missing_token_counts_as_refused() -> None:
    """And no other: what follows it was not judged."""
    control, stats, same = LengthControl(8), RequestStats(), RequestStats()
    control.observe(stats, 2, 2, [0.9, 0.9], asked=5)
    LengthControl(8).observe(same, 3, 2, [0.9, 0.9])
    assert (stats.belief == same.belief).all()
    likelihood = RATES**2 * (1 - RATES)
    assert stats.belief == pytest.approx(likelihood / likelihood.sum())
    control.observe(stats, 0, 0, asked=0)
    assert (stats.belief == same.belief).all()


@pytest.mark.parametrize("batch", [1, 16, 32])
def test_where_every_step_has_the_full_width_none_is_thought_cheaper(batch: int) -> None:
    control, requests = LengthControl(8, fixed=True), [RequestStats() for _ in range(batch)]
    for number in range(100):
        lengths = control.plan(requests)
        if any(lengths):
            control.timed("draft_extend", sum(map(bool, lengths)), 1, 0.06)
            control.timed("draft_step", sum(map(bool, lengths)), 1, 0.05)
        control.timed("verify" if any(lengths) else "plain", batch, 8 if any(lengths) else 1, 1.0)
        for request, n in zip(requests, lengths, strict=True):
            control.observe(request, n, min(n, 1))
        assert all(lengths) or not number
    assert 1 <= lengths[0] <= 3


@pytest.mark.parametrize("confidence", [nan, inf, -inf, -1.0, 2.0])
def test_a_confidence_that_is_no_probability_counts_as_none(confidence: float) -> None:
    control, other, stats = LengthControl(8), LengthControl(8), RequestStats()
    for c in (control, other):
        c.timed("plain", 1, 1, 1.0)
        c.timed("draft_extend", 1, 1, 0.1)
    assert not control.worth_going_on(confidence, 2, 1)
    for _ in range(60):
        control.observe(stats, 2, 2, [confidence, confidence])
        other.observe(stats, 2, 2, [0.0, 0.0])
    for survival in (0.02, 0.5):
        assert control.worth_going_on(survival, 2, 1) == other.worth_going_on(survival, 2, 1)


def test_fixed_lengths_take_the_same_calls() -> None:
    control, stats = FixedLengths(4, fixed=True), RequestStats()
    assert control.plan([stats]) == [3]
    control.observe(stats, 1, 1, [nan], asked=3)
    control.unable(stats)
    control.timed("plain", 1, 1, 1.0)
    assert control.worth_going_on(0.0, 2, 1)
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
            control.worth_going_on(0.5, 1 + accepted, batch)
            assert control.off in (True, False)
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
