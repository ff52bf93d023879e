"""DeepSeek's own output parser (V4, V4.1): thinking ends for it where the budget sees the end.

It looks for the end marker's id. A marker that the model spells in several tokens is handed to it as that id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_ext.budget.kernels.layout import AUTO_MASK, STATE_MASK, Event
from sglang_ext.budget.kernels.reference import lookup

from sglang_ext.budget import service
from sglang_ext.budget.automaton import Automaton
from sglang_ext.budget.byte_states import Inside
from sglang_ext.budget.prompt import Start

from .asked import asked_of


class EndAsId:
    """Ids of one response, in which the end of its block is written with the marker's own id.

    Args:
        start: how the response starts.
    """

    def __init__(self, automaton: Automaton, start: Start) -> None:
        self._automaton, self._word = automaton, start.word
        self._held: list[int] = []  # they may become a marker
        self._over = not start.open

    def feed(self, ids: Sequence[int]) -> list[int]:
        """What the ids add."""
        out: list[int] = []
        for token in ids:
            out += [token] if self._over else self._take(token)
        return out

    def rest(self) -> list[int]:
        """What waits, as the response is over."""
        held, self._held = self._held, []
        return held

    def _take(self, token: int) -> list[int]:
        entry = lookup(self._automaton, self._word, token)
        self._word = entry & AUTO_MASK
        self._held.append(token)
        self._over = bool(entry & (Event.CLOSE | Event.IMPLICIT))
        if entry & Event.CLOSE:
            return self._ended(self.rest())
        state = self._automaton.bytewise.states[entry & STATE_MASK]
        return [] if isinstance(state, Inside) and state.end else self.rest()

    def _ended(self, held: list[int]) -> list[int]:
        vocabulary, marker = self._automaton.vocabulary, list(self._automaton.vocabulary.end_ids)
        if held[-len(marker) :] == marker:
            return held
        before, _, behind = b"".join(vocabulary.pieces[i] for i in held).rpartition(self._automaton.markers.end)
        try:
            return [*vocabulary.spell(before), *marker, *vocabulary.spell(behind)]
        except ValueError:  # no ids write these bytes: the parser sees what the model wrote
            return held


def new_parser(original: Callable[..., Any], self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """A parser of one choice of a request."""
    parser = original(self, request, *args, **kwargs)
    asked, admission = asked_of(request), service.current_or_none()
    if asked is None or asked.start is None or admission is None or admission.automaton is None:
        return parser
    ends, feed, finish = EndAsId(admission.automaton, asked.start), parser.feed, parser.finish

    def counted(ids: Sequence[int], call: Callable[[list[int]], Any], rest: Callable[[], list[int]]) -> Any:
        consumed = parser.num_consumed_tokens + len(ids)
        delta = call([*ends.feed(ids), *rest()])
        parser.num_consumed_tokens = consumed  # of the response, whatever stands for them
        return delta

    def feed_ids(token_ids: Sequence[int]) -> Any:
        return counted(token_ids, feed, list)

    def finish_ids(token_ids: Sequence[int], finish_reason: dict[str, Any], **options: Any) -> Any:
        return counted(token_ids, lambda ids: finish(ids, finish_reason, **options), ends.rest)

    parser.feed, parser.finish = feed_ids, finish_ids
    return parser
