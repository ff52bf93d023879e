"""What a client is told about a response's thinking. No engine is imported.

Two things leave with a response: how many of its tokens are thinking, counted from their ids, and, where the request
has a budget, the `think` object `{"budget", "tokens", "forced_tokens", "outcome"}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .admission import Admission
from .automaton import Automaton
from .contract import AUTO, UNLIMITED, keys
from .effort import Share
from .kernels.layout import AUTO_MASK, INSIDE, STATE_MASK, Event
from .prompt import Request, start_of
from .spelling import names


@dataclass
class ReasoningCount:
    """How far one response has been counted.

    Attributes:
        auto: automaton word after `length` output tokens.
        tokens: how many of them are thinking.
    """

    auto: int
    length: int = 0
    tokens: int = 0


class ReasoningCounter:
    """Counts the thinking in responses of one served model, from their ids.

    A token is thinking if a block is open before it, or opens with the token's own text. That is from the first token
    after the start marker up to the last piece of the end marker, whether model or budget wrote them. So a forced
    message and a forced end marker are counted. What follows the marker, a line break say, is not.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        # Lists, as one look-up in an array costs several in a list.
        self._token_class: list[int] = automaton.token_class.tolist()
        self._step: list[int] = automaton.step.tolist()
        self._classes = len(self._step) // automaton.states

    def start(self, prompt: Sequence[int], request: Request) -> ReasoningCount:
        """The count before the first output token.

        Args:
            prompt: ids of the whole prompt.
        """
        return ReasoningCount(start_of(self._automaton, prompt, request).word)

    def advance(self, count: ReasoningCount, output: Sequence[int]) -> int:
        """Count what has been added to `output`, all ids of the response so far; return how many are thinking."""
        auto, known, begins = count.auto, len(self._token_class), int(Event.BEGIN)
        for token in output[count.length :]:
            kind = self._token_class[token] if 0 <= token < known else 0
            entry = self._step[(auto & STATE_MASK) * self._classes + kind]
            count.tokens += bool(auto & INSIDE or entry & begins)
            auto = entry & AUTO_MASK
        count.auto, count.length = auto, max(count.length, len(output))
        return count.tokens


class ReasoningTokens(int):
    """A count of reasoning tokens that keeps the `think` objects of the responses it counts.

    The engine hands the count by value from each choice's `meta_info` to `usage`, by another way on every endpoint, and
    adds the choices up. The objects travel inside it.
    """

    thinks: tuple[Mapping[str, Any], ...]

    def __new__(cls, count: int, thinks: Sequence[Mapping[str, Any]] = ()) -> ReasoningTokens:
        self = super().__new__(cls, count)
        self.thinks = tuple(thinks)
        return self

    def __add__(self, other: int) -> ReasoningTokens:
        return ReasoningTokens(int(self) + int(other), (*self.thinks, *getattr(other, "thinks", ())))

    __radd__ = __add__  # what is on the left has no objects of its own: `sum` begins with a plain 0

    @property
    def think(self) -> Mapping[str, Any]:
        """The `think` object of `usage`: the response's own; of several choices, their sums and the object of each."""
        if len(self.thinks) == 1:
            return self.thinks[0]
        sums = {key: sum(think[key] for think in self.thinks) for key in ("tokens", "forced_tokens")}
        return {**sums, "choices": list(self.thinks)}


def advertised(admission: Admission, efforts: Mapping[str, int | Share]) -> dict[str, Any] | None:
    """What a client may know about a server's think budgets before its first request; None if none is served.

    Args:
        efforts: budgets of `reasoning_effort`, by its value.

    Returns:
        `default` and `answer_tokens` of requests that set none, in tokens, -1 for no limit, "auto" for a part of the
        response; `max`, the largest budget that is accepted, None without a ceiling; `loops` and `seconds` of requests
        that do not say; the `keys` of the object form; the `markers`, with the line break that follows an end of the
        server's own; the `spellings` of the field; `effort`.
    """
    if admission.automaton is None:
        return None
    default, markers = admission.limits.default, admission.automaton.markers
    return {
        "default": default.max_tokens if default is not None else UNLIMITED,
        "max": None if admission.limits.allow_unlimited else admission.limits.ceiling,
        "answer_tokens": 0 if default is None else "auto" if default.answer_tokens is AUTO else default.answer_tokens,
        "loops": default is not None and default.loops,
        "seconds": default.seconds if default is not None else None,
        "keys": keys(),
        "markers": {"start": markers.start.decode(), "end": markers.end.decode(),
                    "line_break": markers.line_break.decode()},
        "spellings": names(),
        "effort": {name: str(value) if isinstance(value, Share) else value for name, value in efforts.items()},
    }
