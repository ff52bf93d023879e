"""Drafting where it did not pay so far: who is tried, what that costs, and whose prompts are read meanwhile."""

from __future__ import annotations

from collections import Counter

from uag_simulation import GPU

from sglang_ext.uag.lengths import LengthControl, RequestStats


def after_a_hopeless_phase() -> LengthControl:
    control, stats = LengthControl(8), RequestStats()
    for _ in range(60):
        n = one_round(control, [stats])[0]
        control.observe(stats, n, 0)
    assert control.off
    return control


def one_round(control: LengthControl, requests: list[RequestStats]) -> list[int]:
    """A plan, and the times that its steps take on `GPU`."""
    missed = [request.behind for request in requests]
    lengths = control.plan(requests)
    drafting, longest = sum(map(bool, lengths)), max(lengths)
    if longest:
        read = sum(ids for ids, length in zip(missed, lengths, strict=True) if length) / drafting
        control.timed("draft_extend", drafting, 2 + round(read), 0.12)
        control.timed("draft_step", drafting, 1, 0.1)
    control.timed("verify" if longest else "plain", len(requests), longest + 1, 1.0)
    return lengths


def test_drafts_that_come_to_nothing_are_paid_rarely() -> None:
    """The draft runs, and nothing of its text can be submitted."""
    control, stats, drafts = LengthControl(8), RequestStats(), 0
    for _ in range(1000):
        n = one_round(control, [stats])[0]
        drafts += n > 0
        control.observe(stats, 0, 0, asked=n)
    assert control.off
    assert 30 < drafts < 60


def test_who_cannot_be_drafted_for_takes_no_probes() -> None:
    control, blind, good = after_a_hopeless_phase(), RequestStats(), RequestStats()
    drafts = Counter[int]()
    for _ in range(200):
        blind.behind = 0.0
        first, second = one_round(control, [blind, good])
        drafts.update({0: first > 0, 1: second > 0})
        if first:
            control.unable(blind)
        control.observe(good, second, second)
    assert drafts[1] > 150


def test_a_probe_that_could_not_begin_costs_nothing() -> None:
    """The next one comes in the next round, and the pair is thought no worse of."""
    control, blind = after_a_hopeless_phase(), RequestStats()
    while not control.plan([blind])[0]:
        pass
    for _ in range(20):
        control.unable(blind)
        assert not blind.alive
        assert control.plan([blind]) == [1]  # 1: and it did not go well either
    control.observe(blind, 1, 0)
    drafts = 0
    for _ in range(100):
        n = control.plan([blind])[0]
        drafts += n > 0
        control.observe(blind, n, 0)
    assert drafts < 20


def test_a_probe_goes_on_while_the_draft_reads() -> None:
    """Text of which the draft reads a part in each round is paid once."""
    control, stats = after_a_hopeless_phase(), RequestStats(behind=8000.0)
    control.timed("draft_extend", 1, 1000, GPU.draft_extend(1, 1000))
    planned = []
    for _ in range(2000):
        behind = stats.behind
        n = control.plan([stats])[0]
        planned.append(n)
        if n and behind <= 1000:
            break
        stats.behind = behind - 1000 if n else behind + 1
    first = planned.index(1)
    assert first > 50
    assert planned[-1] == 1
    assert len(planned) - first < 60


def after_a_good_phase() -> LengthControl:
    control, good = LengthControl(8), RequestStats()
    for _ in range(50):
        n = one_round(control, [good])[0]
        control.observe(good, n, n)
    control.timed("draft_extend", 1, 1000, GPU.draft_extend(1, 1000))
    return control


def first_draft(control: LengthControl, requests: list[RequestStats]) -> list[int]:
    """The plan after those of plain steps that are only timed."""
    kept = [request.behind for request in requests]
    for _ in range(3):
        for request, behind in zip(requests, kept, strict=True):
            request.behind = behind
        plan = control.plan(requests)
        if any(plan):
            break
    return plan


def test_reading_is_invested_for_as_long_as_a_response_lasts_already() -> None:
    long = 400_000.0  # 240 plain steps
    assert first_draft(after_a_good_phase(), [RequestStats(behind=long)]) == [0]
    assert first_draft(after_a_good_phase(), [RequestStats(behind=long, rounds=4000)]) != [0]


def test_who_was_not_read_for_keeps_nobody_from_drafting() -> None:
    """Though its own drafts are a little better."""
    unread, read = RequestStats(behind=150_000.0, accepted=9.0, seen=9.0), RequestStats(accepted=7.0, seen=9.0)
    first, second = first_draft(after_a_good_phase(), [unread, read])
    assert (first, second > 0) == (0, True)


def test_a_new_request_is_read_for_where_only_another_one_is_hopeless() -> None:
    control, bad = after_a_good_phase(), RequestStats()
    while one_round(control, [bad])[0]:
        control.observe(bad, 1, 0)
    assert not control.off


def test_prompts_are_not_read_where_no_draft_can_pay() -> None:
    control = LengthControl(8, fixed=True)
    for _ in range(10):
        control.timed("plain", 1, 1, 1.0)
        control.timed("draft_extend", 1, 500, 20.0)
        control.timed("draft_step", 1, 1, 5.0)
        control.timed("draft_extend", 1, 1, 5.0)
    assert control.plan([RequestStats()]) == [0]
    assert control.off
