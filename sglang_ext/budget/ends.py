"""Ends that the host asks for: of a loop, at a deadline, because a client wants one. No engine is imported.

The device is a step or more ahead of what the host knows, so the host only asks: the row on the device takes the end,
or does not (`kernels.ask`). Its words tell which with the step's tokens.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .admission import Admission
from .kernels.layout import KEEP, PENDING, THINKING, Outcome, Word
from .kernels.reference import ask_row, start_forcing_if_due
from .row import RequestRow

_BARE = 0  # where the shared end is, without a message
SLACK = 4
"""Tokens that may come between the asking and the end, beside the end's own."""


@dataclass(frozen=True, eq=False)
class End:
    """An end that is asked for.

    Attributes:
        reason: LOOP, DEADLINE or ASKED.
        message: text forced before the end marker; None: the budget's own.
    """

    reason: Outcome
    message: str | None = None

    @property
    def standing(self) -> bool:
        """Whether it holds for blocks that open later too: time that is up stays up."""
        return self.reason is Outcome.DEADLINE


class Wall(NamedTuple):
    """What is forced for an end.

    Attributes:
        place: index into the row's program, slot-free, or KEEP.
        program: the request's own sequence from then on; None: as it is.
    """

    place: int
    program: list[int] | None = None


def wall_of(admission: Admission, row: RequestRow, end: End, room: int) -> Wall:
    """What an end forces in a running response.

    Args:
        room: tokens that the response may still have. The server's own message gives way to an answer.
    """
    if end.message is not None:
        program = admission.program(admission.message_ids(row.budget, end.message))
        return Wall(row.shared, program) if program else Wall(_BARE)
    if row.budget.message is None and room < admission.closing(row.budget) + SLACK:
        return Wall(_BARE)
    return Wall(KEEP)


def apply(admission: Admission, row: RequestRow, words: list[int], end: End, room: int,
          begun: bool) -> list[int] | None:
    """Ask for an end on the host, where a row is made or rebuilt; return the request's own sequence from then on, or
    None where that stays.

    Args:
        words: [WORDS], slot-free, in place.
        begun: the response has a token. If not, a block that is open ends before its first one.
    """
    assert admission.automaton is not None
    if begun or not words[Word.AUTO] & THINKING:
        wall = wall_of(admission, row, end, room)
        taken = ask_row(words, admission.automaton.bytewise.missing, end.reason, wall.place, end.standing)
        return wall.program if taken else None
    message = end.message if end.message is not None else row.budget.message
    unsaid = row.pair if words[Word.AUTO] & PENDING else None
    program = admission.program(admission.message_ids(row.budget, message or ""), unsaid)
    words[Word.MAX], words[Word.ASKED] = 0, end.reason
    words[Word.FORCE_START] = row.shared if program else _BARE
    start_forcing_if_due(words, admission.automaton, chosen=False)
    return program


class Deadlines:
    """Times at which requests are to be told that theirs is up. Requests that are gone cost nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Any]]] = []
        self._late: list[weakref.ref[Any]] = []
        self._number = itertools.count()
        self._most = 1024  # entries after which those of requests that are gone are looked for

    def add(self, when: float, request: Any) -> None:
        """Note a request's deadline, on the clock of `due`."""
        if len(self._heap) >= self._most:
            self._heap = [entry for entry in self._heap if entry[2]() is not None]
            heapq.heapify(self._heap)
            self._most = max(1024, 2 * len(self._heap))
        heapq.heappush(self._heap, (when, next(self._number), weakref.ref(request)))

    def due(self, now: float, waits: Callable[[Any], bool]) -> list[Any]:
        """The requests whose time is up, each again until it need not be told any more.

        Args:
            waits: whether a request is still to be told.
        """
        while self._heap and self._heap[0][0] <= now:
            self._late.append(heapq.heappop(self._heap)[2])
        if not self._late:
            return []
        late = [(ref, request) for ref in self._late if (request := ref()) is not None and waits(request)]
        self._late = [ref for ref, _ in late]
        return [request for _, request in late]
