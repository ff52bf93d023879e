"""Which forced ends are read in one forward. No engine is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 4
"""Fewest ids of one end: a shorter one is written before the forward that reads it is made."""
WORTH = 1.5
"""How many ids a forward brings at least for each token that the other requests lose by it, which is one each. Measured
on a CPU it lasts as long as a decoding step of 16 requests; a step that is a CUDA graph may be shorter than one."""


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


def chosen(cuts: Sequence[Cut], batch: int, most: int) -> list[Cut]:
    """The ends to read now, if any; the others are written token by token meanwhile.

    Args:
        batch: requests that write no token in a forward that reads these, those at their wall included; 0 where the
            others go on in it.
        most: tokens that one forward reads at most.
    """
    taken: list[Cut] = []
    for cut in cuts:
        if len(cut.ids) >= LEAST and sum(c.reads for c in taken) + cut.reads <= most:
            taken.append(cut)
    worth = sum(len(cut.ids) for cut in taken) >= WORTH * (batch - len(taken))
    return taken if worth else []
