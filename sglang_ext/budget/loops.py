"""Thinking that goes round in circles, found from its ids. No engine is imported.

The rule: the last ids are one cycle of at most `LONGEST` ids, over and over, at least `TIMES` times and at least
`LEAST` ids in all.

The work is amortised. After a look, the shortest way to a loop is known: no cycle can be one before so many more ids
have come. Nothing is looked at until then, so a token costs one comparison of two integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST = 512
"""Longest cycle, in ids: a page of text."""
TIMES = 4
"""How often a cycle stands at least: a refrain or a paragraph may come three times on end."""
LEAST = 512
"""How many ids all of it is at least. A ruler of dashes, a row of a table, a matrix of 15 by 15 zeros, a list of a
hundred equal entries of five ids are shorter."""

_LEVELS = ((1, 256), (257, 512))
"""Shortest and longest cycle of a level. A level's cycles are looked for by a run of as many ids as the longest has. Of
two cycles with such a run the longer one is a multiple of the shorter, or both are of one that has such a run too (Fine
and Wilf, 1965); and a multiple is never a loop before its divisor. So the shortest one of each level says all."""
_SPREAD = np.uint32(0x9E3779B1)


def needed(cycle: int) -> int:
    """How many ids in a row have to be equal to the one a cycle before them."""
    return max(TIMES * cycle, LEAST) - cycle


_WINDOW = max(TIMES * LONGEST, LEAST)
_FAR = min(needed(cycle) - longest + 1 for first, longest in _LEVELS for cycle in range(first, longest + 1))
"""How many ids are missing at least of a cycle whose run is too short to be seen."""
_NOTHING = np.empty(0, dtype=np.int32)


class LoopWatch:
    """Watches one response's thinking.

    Attributes:
        start: where in the output the block began that is open; -1: none is.
    """

    def __init__(self) -> None:
        self.start = -1
        self._due = 0  # length of the output before which nothing can be a loop
        self._forget()

    def _forget(self) -> None:
        self._read = self.start  # length of the output whose last ids are known
        self._ids = _NOTHING  # [at most _WINDOW] int32

    def enter(self, start: int) -> None:
        """A block is open whose first id is at `start`, or a few ids later; nothing happens if one was already."""
        if self.start < 0:
            self.start, self._due = start, start + LEAST
            self._forget()

    def leave(self) -> None:
        """No block is open."""
        self.start = -1

    def be_at(self, start: int, anew: bool) -> None:
        """A block is open whose first id is at `start`; -1: none is.

        Args:
            anew: ids were taken back, so what was known of the block is not.
        """
        if start != self.start:
            self.leave()
            self.enter(start)
        if anew:
            self._due = 0
            self._forget()

    def may_be(self, length: int) -> bool:
        """Whether the block can be a loop after the output's first `length` ids; if not, `found` need not look."""
        return length >= self._due and self.start >= 0

    def found(self, output: Sequence[int], length: int) -> bool:
        """Whether the block is a loop after the output's first `length` ids."""
        if length < self._due or self.start < 0:
            return False
        missing = still_missing(self._last_ids(output, length))
        self._due = length + max(1, missing)
        return missing <= 0

    def _last_ids(self, output: Sequence[int], length: int) -> np.ndarray:
        """The block's last ids, of which only those that are new are read."""
        begin = max(self._read, length - _WINDOW)
        new = np.array(output[begin:length], dtype=np.int32)
        known = self._ids if begin == self._read else _NOTHING
        self._ids, self._read = np.concatenate([known, new])[-_WINDOW:], length
        return self._ids


def still_missing(ids: np.ndarray) -> int:
    """How many more ids have to come at least until these end in a loop; 0: they do.

    Args:
        ids: [n] int32, of the block, the last `TIMES * LONGEST` of them at least, where there are so many.
    """
    back = np.ascontiguousarray(ids[::-1])
    text = (back[: 2 * LONGEST].view(np.uint32) * _SPREAD >> 24).astype(np.uint8).tobytes()
    missing = min(_missing_on_level(back, text, first, longest) for first, longest in _LEVELS)
    return max(0, missing, LEAST - len(ids))


def _missing_on_level(back: np.ndarray, text: bytes, first: int, longest: int) -> int:
    """How many ids are missing until a cycle of `first` to `longest` ids is a loop, or fewer.

    Args:
        back: ids, the last one first.
        text: a byte for each of them: equal ids have equal bytes.
    """
    last, cycle = text[:longest], first
    while (cycle := text.find(last, cycle, 2 * longest)) >= 0:
        run = _run(back, cycle)
        if run >= longest:
            return needed(cycle) - run
        cycle += 1  # other ids with the same bytes
    return _FAR


def _run(back: np.ndarray, cycle: int) -> int:
    """How many of the last ids are equal to the one a cycle before.

    Args:
        back: ids, the last one first.
    """
    differs = back[cycle:] != back[:-cycle]
    first = int(differs.argmax())
    return first if differs[first] else len(differs)
