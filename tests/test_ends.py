"""Ends that the host asks for: on rows, on the host, and the times at which deadlines come."""

from __future__ import annotations

import gc
import random

import torch
from budget_cases import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels import Outcome, Word, ask
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import INSIDE, KEEP, NOT_FORCING, PENDING, PROGRAM_END, THINKING

from sglang_ext.budget.ends import Deadlines

REASONS = [Outcome.LOOP, Outcome.DEADLINE, Outcome.ASKED]


@settings(max_examples=60)
@given(cases(most_rows=40), st.integers(1, 4))
def test_rows_are_asked_as_by_the_reference(case: Case, steps: int) -> None:
    """Any rows, forced ones and recycled ones among them, before steps in which anything is sampled. What a row is
    being forced stays what it is."""
    missing = case.automaton.bytewise.missing
    for _ in range(steps):
        asked = [slot for slot in case.words if case.rng.random() < 0.4]
        asks, writes = [], []
        for slot in asked:
            row, start = case.words[slot], case.state.program_start(slot)
            reason, standing = case.rng.choice(REASONS), case.rng.random() < 0.5
            wall, ids = case.rng.choice([(KEEP, []), (0, []), (start, [case.token(), case.token(), PROGRAM_END])])
            forced = row[Word.CURSOR]
            writes += [(start + i, token, len(asks)) for i, token in enumerate(ids)]
            asks.append((slot, reason, wall, standing))
            free = row[Word.AUTO] & THINKING and forced == NOT_FORCING
            if ref.ask_row(row, missing, reason, wall, standing) and free:
                case.program[start : start + len(ids)] = ids
            assert row[Word.CURSOR] == forced
        ask(torch.tensor(asks, dtype=torch.int64, device=case.device).view(-1, 4),
            torch.tensor(writes, dtype=torch.int64, device=case.device).view(-1, 3),
            torch.tensor(missing, dtype=torch.int32, device=case.device), case.state)
        case.check_words()
        assert case.state.program.tolist() == case.program
        for row in case.words.values():
            ref.advance_row(case.token(), row, case.program, case.automaton)
        case.state.words[:] = torch.tensor([case.words[s] for s in range(len(case.words))], dtype=torch.int32)


@settings(max_examples=60)
@given(cases(most_rows=20), st.sampled_from(REASONS))
def test_an_end_comes_within_two_tokens_and_once(case: Case, reason: Outcome) -> None:
    """After the token that is sampled with it, or those that complete a character, the row is forced. Asking again, of
    whatever reason, changes nothing. A block that is only about to open waits for its first token."""
    missing = case.automaton.bytewise.missing
    for slot, row in case.words.items():
        before = list(row)
        taken = ref.ask_row(row, missing, reason)
        if not taken:
            assert row == before, slot
            continue
        assert row[Word.ASKED] == reason
        assert 1 <= ref.tokens_left(row) <= 3
        again = list(row)
        assert not ref.ask_row(again, missing, Outcome.ASKED, 0, standing=True)
        assert again == row
        for _ in range(ref.tokens_left(row)):
            if row[Word.CURSOR] == NOT_FORCING and row[Word.AUTO] & INSIDE:
                ref.advance_row(case.token(), row, case.program, case.automaton)
        assert row[Word.CURSOR] != NOT_FORCING or not row[Word.AUTO] & INSIDE or before[Word.AUTO] & PENDING


class Request:
    def __init__(self) -> None:
        self.told = False


def waits(request: Request) -> bool:
    return not request.told


def test_deadlines_come_in_time_and_until_they_are_told() -> None:
    deadlines, rng = Deadlines(), random.Random(3)
    requests = [Request() for _ in range(50)]
    times = [rng.random() for _ in requests]
    for when, request in zip(times, requests, strict=True):
        deadlines.add(when, request)
    for now in (0.0, 0.3, 0.3, 0.9, 2.0):
        late = {id(r) for r in deadlines.due(now, waits)}
        assert late == {id(r) for when, r in zip(times, requests, strict=True) if when <= now and not r.told}
        for request in requests[:: rng.randint(2, 5)]:
            request.told |= id(request) in late
    for request in requests:
        request.told = True
    assert deadlines.due(3.0, waits) == []


def test_requests_that_are_gone_leave_nothing() -> None:
    deadlines = Deadlines()
    kept = Request()
    deadlines.add(1e9, kept)
    for _ in range(5000):
        deadlines.add(1e9, Request())
    gc.collect()
    assert len(deadlines._heap) <= 2048
    assert deadlines.due(2e9, waits) == [kept]
