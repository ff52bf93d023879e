"""Drafts from the text: what stood behind the same ids before, in the request's own text or in other responses.

A draft is looked up in a moment and costs no forward. How often it is right depends on how many ids agreed before it,
and on whose text it is: each such kind has a record of its own in a request, so that one that is mostly wrong is left
out while another goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..config import TEXT
from .draft_state import NO_TOKENS, DraftTokens
from .lookup import GAP, NO_MATCH, Index, Match
from .speed_up import RequestStats

REMEMBERED = 1 << 18
"""Ids of other responses that are kept, in two halves of which the older one goes first."""
OWN, OTHERS = "own", "others"
LONGEST_KIND = 8
"""From so many ids on, all matches are of one kind."""


class Memory:
    """Responses of requests that have left.

    Args:
        capacity: ids that are kept at most.
    """

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._half = capacity // 2
        self.parts: tuple[Index, ...] = (Index(),)

    def add(self, response: Sequence[int]) -> None:
        """Keep a response; of one that is too long, its end."""
        kept = response[-(self._half - 1) :]
        if len(self.parts[0].ids) + len(kept) >= self._half:
            self.parts = Index(), self.parts[0]
        self.parts[0].add([GAP, *kept])


@dataclass(frozen=True)
class Found:
    """What may be drafted now.

    Attributes:
        stats: the record of its kind.
        length: ids that agree before it.
    """

    stats: RequestStats
    ids: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class InPart:
    """Where a text's end was in a part of the memory, when that part had so many ids."""

    part: Index
    size: int
    match: Match


@dataclass(eq=False)
class TextState:
    """One request's text.

    Attributes:
        prompt: tokens of its prompt.
        index: prompt and response.
        looked: length of the text at the last look-up.
        own: where the text's end was then.
        others: the same in each part of the memory that was there.
        stats: a record for each kind of match.
        found: what may be drafted, the longest match first.
    """

    prompt: int
    index: Index = field(default_factory=Index)
    looked: int = 0
    own: Match = NO_MATCH
    others: list[InPart] = field(default_factory=list)
    stats: dict[str, RequestStats] = field(default_factory=dict)
    found: Sequence[Found] = ()

    @property
    def response(self) -> Sequence[int]:
        return self.index.ids[self.prompt :]

    def stats_of(self, whose: str, length: int) -> RequestStats:
        """The record of matches of about this length."""
        kind = f"{TEXT} of {whose}, {min(1 << length.bit_length() - 1, LONGEST_KIND)}"
        if kind not in self.stats:
            self.stats[kind] = RequestStats(steps_per_token=0.0, source=kind)
        return self.stats[kind]


class TextSource:
    """Drafts of all requests from their texts.

    Args:
        most: tokens of a draft.
        shared: whether responses are remembered for other requests.
        ends: ids behind which nothing is drafted, as a response ends there.
    """

    def __init__(self, most: int, *, shared: bool, ends: Iterable[int] = ()) -> None:
        self._most, self._ends = most, frozenset(ends)
        self._memory = Memory() if shared else None

    def offers(self, state: TextState) -> list[RequestStats]:
        """Records of the drafts that may be made now, each with the tokens that it has."""
        self._look(state)
        for found in state.found:
            found.stats.most = len(found.ids)
        return [found.stats for found in state.found]

    def draft(self, state: TextState, want: int, stats: RequestStats) -> DraftTokens:
        """At most so many tokens.

        Args:
            stats: the record of the draft that was chosen. Where the text has grown since, what it offers now.
        """
        self._look(state)
        found = next((found for found in state.found if found.stats is stats), state.found[0] if state.found else None)
        if found is None:
            return NO_TOKENS
        ids = found.ids[:want]
        return DraftTokens(ids, len(ids), source=TEXT, stats=found.stats)

    def close(self, state: TextState) -> None:
        """A request has left."""
        if self._memory is not None and state.response:
            self._memory.add(state.response)

    def clear(self) -> None:
        """Forget all responses."""
        if self._memory is not None:
            self._memory = Memory()

    def _look(self, state: TextState) -> None:
        """Find what may be drafted behind the text as it is now."""
        text = state.index.ids
        added = len(text) - state.looked
        if not added:
            return
        state.own, state.looked = state.index.own(state.own, added), len(text)
        found = [self._found(state, OWN, state.index, state.own)]
        if self._memory is not None:
            state.others = [self._in_part(state, part, added) for part in self._memory.parts]
            best = max(state.others, key=lambda other: other.match.length)
            found.append(self._found(state, OTHERS, best.part, best.match))
            found.sort(key=lambda one: -one.length)
        drafts = {one.ids: one for one in reversed(found) if one.ids}  # of two that are the same, the longer match
        state.found = list(drafts.values())[::-1]

    def _in_part(self, state: TextState, part: Index, added: int) -> InPart:
        """Where the text's end is in a part of the memory. A match goes on where nothing was added to the part."""
        last = next((other.match for other in state.others if other.part is part and other.size == len(part.ids)),
                    NO_MATCH)
        return InPart(part, len(part.ids), part.of(state.index.ids, last, added))

    def _found(self, state: TextState, whose: str, index: Index, match: Match) -> Found:
        ids = index.behind(match, self._most, own=whose == OWN)
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids))
        ids = ids[: end + 1]
        return Found(state.stats_of(whose, max(match.length, 1)), tuple(ids), match.length)
