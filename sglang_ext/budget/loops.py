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

_AT_ONCE = 32
"""Ids that are compared for all cycles at once."""


def needed(cycle: int) -> int:
    """How many ids in a row have to be equal to the one a cycle before them."""
    return max(TIMES * cycle, LEAST) - cycle


_PERIODS = np.arange(1, LONGEST + 1)
_NEEDED = np.maximum(TIMES * _PERIODS, LEAST) - _PERIODS
_WINDOW = max(TIMES * LONGEST, LEAST)


class LoopWatch:
    """Watches one response's thinking.

    Attributes:
        start: where in the output the block began that is open; -1: none is.
    """

    def __init__(self) -> None:
        self.start = -1
        self._due = 0  # length of the output before which nothing can be a loop

    def enter(self, start: int) -> None:
        """A block is open whose first id is at `start`, or a few ids later; nothing happens if one was already."""
        if self.start < 0:
            self.start, self._due = start, start + LEAST

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
        self._due = 0 if anew else self._due

    def may_be(self, length: int) -> bool:
        """Whether the block can be a loop after the output's first `length` ids; if not, `found` need not look."""
        return self.start >= 0 and length >= self._due

    def found(self, output: Sequence[int], length: int) -> bool:
        """Whether the block is a loop after the output's first `length` ids."""
        if not self.may_be(length):
            return False
        missing = still_missing(output[max(self.start, length - _WINDOW) : length])
        self._due = length + max(1, missing)
        return missing <= 0


def still_missing(ids: Sequence[int]) -> int:
    """How many more ids have to come at least until these end in a loop; 0: they do.

    Args:
        ids: of the block, the last `TIMES * LONGEST` of them at least, where there are so many.
    """
    back = np.asarray(ids, dtype=np.int64)[::-1]
    periods = _PERIODS[: max(0, len(back) - 1)]
    if not len(periods):
        return int(_NEEDED.min())
    runs = _short_runs(back, len(periods))
    longer = runs >= _AT_ONCE
    while longer.any():
        period = int(longer.argmax()) + 1
        differs = back[period:] != back[:-period]
        run = int(differs.argmax()) if differs.any() else len(back) - period
        runs[period - 1], longer[period - 1] = run, False
        several = np.arange(2 * period, min(run + period, len(periods) + 1), period)
        runs[several - 1], longer[several - 1] = run + period - several, False  # their runs end where the cycle's does
    missing = np.concatenate([_NEEDED[: len(periods)] - runs, _NEEDED[len(periods) :]])
    return max(0, int(missing.min()))


def _short_runs(back: np.ndarray, periods: int) -> np.ndarray:
    """[periods] int, for each cycle how many of the last ids are equal to the one a cycle before, counted up to
    `_AT_ONCE`.

    Args:
        back: ids, the last one first.
    """
    padded = np.concatenate([back[: periods + _AT_ONCE], np.full(_AT_ONCE + 1, -1)])
    rows = np.lib.stride_tricks.sliding_window_view(padded, _AT_ONCE)[1 : periods + 1]
    equal = rows == padded[:_AT_ONCE]
    return np.where(equal.all(1), _AT_ONCE, equal.argmin(1))
