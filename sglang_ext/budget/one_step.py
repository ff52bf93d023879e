"""Which forced ends are read in one forward, by what that costs the other requests. No engine is imported."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Any

LEAST = 4
"""Fewest ids of one end: a shorter one is written before the forward that reads it is made."""
MARGIN = 1.1
"""How many ids a forward brings at least for each token that the batch loses by it."""
GUESS = {False: 1.2, True: 0.5}
"""How many steps of decoding a forward that reads takes from the others until it was measured: where they wait for it,
and where they decode in it."""
ENOUGH = 3
"""Measurements that are believed: the first forwards of a shape may compile something."""
REMEMBERED = 9
"""Measurements whose median is the estimate."""
RETRY = 4096
"""Refusals in a row after which one forward is made all the same, so that a bad measurement does not stay for ever."""


@dataclass(frozen=True)
class Cut:
    """A request at its wall.

    Attributes:
        req: the engine's request.
        ids: what is forced from here on.
        behind: tokens of its output that are not in the cache yet.
    """

    req: Any
    ids: Sequence[int]
    behind: int

    @property
    def reads(self) -> int:
        """Tokens that are read for it."""
        return self.behind + len(self.ids)


@dataclass(frozen=True)
class Reading:
    """A forward that reads ends.

    Attributes:
        tokens: how many it reads.
        mixed: whether the other requests decode in it, instead of waiting for it.
    """

    tokens: int
    mixed: bool


def fitting(cuts: Sequence[Cut], most: int) -> list[Cut]:
    """The ends that one forward of at most `most` tokens reads; the others are written token by token meanwhile."""
    taken: list[Cut] = []
    for cut in cuts:
        if len(cut.ids) >= LEAST and sum(c.reads for c in taken) + cut.reads <= most:
            taken.append(cut)
    return taken


class ReadCosts:
    """What reading ends costs a batch, from the times of its forwards.

    An end of n ids that is read brings its request n tokens at once. Meanwhile every request of the batch loses the
    tokens of as many steps as the others wait. Both are counted in tokens, so that throughput decides.
    """

    def __init__(self) -> None:
        self._steps: dict[int, deque[float]] = {}  # seconds of a step of decoding, by `_bucket` of its requests
        self._waits: dict[bool, dict[int, deque[float]]] = {False: {}, True: {}}  # that others wait, by `_bucket` read
        self._before: tuple[Reading | int | None, float] = None, 0.0
        self._refused = 0

    def add(self, ran: Reading | int | None, seconds: float) -> None:
        """Count the time from the start of one forward to that of the next.

        Under overlap scheduling a forward's time shows when the next one has started. So one that reads is measured
        together with the step behind it, and a step counts where the forward before it was one.

        Args:
            ran: what it did: read ends, decode for so many requests, or None for anything else.
        """
        (before, earlier), self._before = self._before, (ran, seconds)
        if not isinstance(ran, int):
            return
        if isinstance(before, int):
            self._steps.setdefault(_bucket(ran), deque(maxlen=REMEMBERED)).append(seconds)
        elif before is not None and (step := _nearest(self._steps, ran)) is not None:
            wait = earlier + seconds - (2 * step if before.mixed else step)
            self._waits[before.mixed].setdefault(_bucket(before.tokens), deque(maxlen=REMEMBERED)).append(wait)

    def steps(self, reading: Reading, batch: int) -> float:
        """How many steps a batch of so many requests loses by a forward that reads."""
        waits = {tokens: times for tokens, times in self._waits[reading.mixed].items() if len(times) >= ENOUGH}
        fewer = {tokens: times for tokens, times in waits.items() if tokens <= _bucket(reading.tokens)}
        wait, step = _nearest(fewer or waits, reading.tokens), _nearest(self._steps, batch)
        return GUESS[reading.mixed] if wait is None or step is None else max(0.0, wait / step)

    def worth(self, cuts: Sequence[Cut], batch: int, mixed: bool) -> bool:
        """Whether these ends are to be read in one forward now, in a batch of so many requests, their own included."""
        brought = sum(len(cut.ids) for cut in cuts)
        lost = batch * self.steps(Reading(sum(cut.reads for cut in cuts), mixed), batch)
        self._refused = 0 if brought >= MARGIN * lost else self._refused + 1
        if self._refused > RETRY:
            self._refused = 0
        return not self._refused


def _bucket(count: int) -> int:
    """Counts that are taken for one: up to the next power of two."""
    return 1 << (count - 1).bit_length()


def _nearest(times: dict[int, deque[float]], count: int) -> float | None:
    """Median of the bucket that is nearest to a count; None where nothing was measured."""
    return median(times[min(times, key=lambda seen: abs(log2(seen / count)))]) if times else None
