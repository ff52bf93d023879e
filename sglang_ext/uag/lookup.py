"""Where the end of a text occurred before, and what stood behind it there.

The ids are kept in one array. A dictionary has the last place of every pair of ids, and each place knows the one before
it with the same pair, as the hash chains of LZ77 do. To add an id and to go on with a match takes the same time
whatever the text's length.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

NOWHERE = -1
GAP = -1
"""Stands between two texts of one index. No match and no draft crosses it."""


@dataclass(frozen=True)
class Match:
    """Where the end of a text occurred before.

    Attributes:
        place: of the last id that agrees; NOWHERE where none does.
        length: ids that agree, up to that place.
    """

    place: int = NOWHERE
    length: int = 0


NO_MATCH = Match()


class Index:
    """Ids in which ends of texts are found.

    Args:
        candidates: places that a look-up compares at most, the latest first.
        depth: ids that are compared at each.
    """

    def __init__(self, candidates: int = 32, depth: int = 32) -> None:
        self._candidates, self._depth = candidates, depth
        self.ids = array("q")
        self._last: dict[int, int] = {}  # the last place of a pair
        self._before = array("q")  # by place: the place before it of the same pair
        self._last_single: dict[int, int] = {}  # the last place of an id
        self._single = NOWHERE  # where the last id stood before

    def add(self, ids: Sequence[int]) -> None:
        """Append ids."""
        mine, last, before = self.ids, self._last, self._before
        previous = mine[-1] if mine else GAP
        for place, token in enumerate(ids, len(mine)):
            pair = previous << 32 | token
            before.append(last.get(pair, NOWHERE))
            last[pair] = place
            mine.append(token)
            self._single = self._last_single.get(token, NOWHERE)
            self._last_single[token] = place
            previous = token

    def own(self, last: Match = NO_MATCH, added: int = 1) -> Match:
        """Where the end of the index itself occurred before: the longest match, the latest of the longest.

        Args:
            last: of the index before its last ids were added. A match that goes on is the longest still.
            added: how many ids that were.
        """
        if self._goes_on(self.ids, last, added):
            return Match(last.place + added, last.length + added)
        found = self._longest(self.ids, self._before[-1] if self.ids else NOWHERE)
        return found if found.length or self._single == NOWHERE else Match(self._single, 1)

    def of(self, text: Sequence[int], last: Match = NO_MATCH, added: int = 1) -> Match:
        """Where the last two ids or more of another text occur: the longest match, the latest of the longest.

        Args:
            last: of the text before its last ids were added.
            added: how many ids that were.
        """
        if len(text) < 2:
            return NO_MATCH
        if self._goes_on(text, last, added):
            return Match(last.place + added, last.length + added)
        return self._longest(text, self._last.get(text[-2] << 32 | text[-1], NOWHERE))

    def behind(self, match: Match, most: int, *, own: bool) -> list[int]:
        """At most so many ids behind a match.

        Args:
            own: whether the match is of the index's own end, from where on the text is expected to repeat itself.
        """
        start = match.place + 1
        found = self.ids[start : start + most].tolist() if match.length else []
        if GAP in found:
            return found[: found.index(GAP)]
        period = len(found)
        while own and period and len(found) < most:
            found.append(found[len(found) - period])
        return found

    def _goes_on(self, text: Sequence[int], last: Match, added: int) -> bool:
        """Whether what was added to the text stands behind its last match too."""
        start = last.place + 1
        return last.length > 0 and list(self.ids[start : start + added]) == list(text[len(text) - added :])

    def _longest(self, text: Sequence[int], place: int) -> Match:
        """The longest match among this place and those before it of the same pair."""
        best, left, end = NO_MATCH, self._candidates, len(text) - 1
        while place != NOWHERE and left and best.length < self._depth:
            most = min(self._depth, place + 1, end + 1)
            if best.length < most and self.ids[place - best.length] == text[end - best.length]:
                length = 2
                while length < most and self.ids[place - length] == text[end - length]:
                    length += 1
                if length > best.length:
                    best = Match(place, length)
            place, left = self._before[place], left - 1
        return best
