"""Ends that come before the limit, in `generate()`: loops and deadlines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from ..budget import ends
from ..budget.admission import Admission
from ..budget.contract import FIRST_TOKEN
from ..budget.ends import End
from ..budget.kernels import BudgetState, Outcome, Word, ask
from ..budget.kernels.layout import INSIDE, NOT_FORCING
from ..budget.loops import LoopWatch
from ..budget.row import RequestRow

_PLENTY = 2**30


class Ends:
    """Watches the rows of a batch that are to end before their limits.

    Args:
        requests: each sequence's row; None where it has no budget.
        max_new_tokens: of a response; None where it is not known.
    """

    def __init__(self, admission: Admission, requests: Sequence[RequestRow | None], max_new_tokens: int | None) -> None:
        self._admission, self._requests, self._most = admission, requests, max_new_tokens
        self._loops = [LoopWatch() if r is not None and r.budget.loops else None for r in requests]
        self._starts: list[list[int]] = [[] for _ in requests]  # by length: where the block began that is open, or -1
        self._timed = [i for i, r in enumerate(requests) if r is not None and r.budget.seconds is not None]
        self.wanted = bool(self._timed) or any(self._loops)
        self._arrived = time.monotonic()
        self._begun: float | None = None  # when the first token was asked for
        self._length = 0

    def state(self, state: BudgetState, output: torch.Tensor) -> BudgetState:
        """The state with the walls that this step asks for.

        Args:
            output: [rows, length] int64, what was generated so far.
        """
        length, now = output.shape[1], time.monotonic()
        if length == 0:
            self._arrived = self._arrived if self._begun is None else now  # another call of `generate()` starts over
            self._begun = now
        found = {i: End(Outcome.DEADLINE) for i in self._timed if self._is_late(i, now)}
        if any(self._loops):
            found |= {i: End(Outcome.LOOP) for i in self._circles(state, output) if i not in found}
        self._length = length
        if not found:
            return state
        return self._at_once(state, found) if length == 0 else self._asked(state, found, length)

    def _is_late(self, row: int, now: float) -> bool:
        budget = self._requests[row].budget  # type: ignore[union-attr]
        since = self._begun if budget.since == FIRST_TOKEN else self._arrived
        return since is not None and now - since >= (budget.seconds or 0)

    def _circles(self, state: BudgetState, output: torch.Tensor) -> list[int]:
        """The rows whose thinking goes round in circles."""
        length, found = output.shape[1], []
        for i, words in enumerate(state.words.tolist()):
            watch, starts = self._loops[i], self._starts[i]
            if watch is None:
                continue
            del starts[length:]  # a draft was taken back
            before = starts[-1] if starts else -1
            inside = words[Word.AUTO] & INSIDE and words[Word.CURSOR] == NOT_FORCING
            starts.append((before if before >= 0 else max(0, length - 1)) if inside else -1)
            watch.be_at(starts[-1], anew=length <= self._length)
            if watch.may_be(length) and watch.found(output[i].tolist(), length):
                found.append(i)
        return found

    def _at_once(self, state: BudgetState, found: dict[int, End]) -> BudgetState:
        """Time that is up before the first token: a block that is open ends before it."""
        state = replace(state, words=state.words.clone(), program=state.program.clone())
        for i, end in found.items():
            request = self._requests[i]
            assert request is not None
            words, start = list(request.words), state.program_start(i)
            program = ends.apply(self._admission, request, words, end, self._most or _PLENTY, begun=False)
            state.words[i] = torch.tensor(request.to_slot(words, start), dtype=torch.int32)
            if program:
                state.program[start : start + len(program)] = torch.tensor(program, dtype=torch.int32)
        return state

    def _asked(self, state: BudgetState, found: dict[int, End], length: int) -> BudgetState:
        where, admission = state.words.device, self._admission
        assert admission.automaton is not None
        state, rows = replace(state, words=state.words.clone()), []
        for i, end in found.items():
            request = self._requests[i]
            assert request is not None
            wall = ends.wall_of(admission, request, end, _PLENTY if self._most is None else self._most - length)
            rows.append((i, int(end.reason), wall.place, int(end.standing)))
        missing = torch.tensor(admission.automaton.bytewise.missing, dtype=torch.int32, device=where)
        none = torch.zeros((0, 3), dtype=torch.int64, device=where)
        ask(torch.tensor(rows, dtype=torch.int64, device=where), none, missing, state)
        return state
