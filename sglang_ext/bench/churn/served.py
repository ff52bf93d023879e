"""What a client can know of a served model before its first request: `/server_info` and the model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...vocab import added_tokens, kind_of, token_bytes
from .. import BenchError

MOST_RESERVED = 512
"""Most tokens that a server keeps for the answer by itself."""
SHARE_RESERVED = 8
"""Part of `max_new_tokens` that it keeps: an eighth."""


@dataclass(frozen=True)
class Served:
    """A served model as its clients know it.

    Attributes:
        pieces: [vocab] bytes that each id writes.
        control: ids of control tokens, the markers excepted.
        start, end: the markers.
        default: budget of requests that set none, in tokens; -1 for no limit.
        reserve: tokens kept for the answer where a request does not say; -1 where the server chooses.
        ceiling: largest budget that is accepted; None without one, and then -1 is accepted.
        spellings: names of the budget, a dot for an object inside.
        priorities: whether requests may have a priority.
        exact_text: whether a response's text is what its ids write, byte for byte.
        closing: what the server writes behind an end marker of its own; None where it does not say.
        eos: id that ends a response; None if the tokenizer names none.
    """

    pieces: Sequence[bytes]
    control: frozenset[int]
    start: bytes
    end: bytes
    default: int = -1
    reserve: int = 0
    ceiling: int | None = None
    spellings: tuple[str, ...] = ("think_budget",)
    priorities: bool = False
    exact_text: bool = True
    closing: bytes | None = None
    eos: int | None = None
    start_ids: frozenset[int] = field(init=False)
    end_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        for name, marker in (("start_ids", self.start), ("end_ids", self.end)):
            whole = frozenset(i for i, piece in enumerate(self.pieces) if piece == marker)
            object.__setattr__(self, name, whole)

    @classmethod
    def of(cls, info: Mapping[str, Any], tokenizer: Any) -> Served:
        """Read the facts.

        Args:
            info: `/server_info`.
            tokenizer: the served model's.

        Raises:
            BenchError: as `advertised`.
        """
        budgets = advertised(info)
        start, end = (budgets["markers"][name].encode() for name in ("start", "end"))
        line_break = budgets["markers"].get("line_break")
        closing = None if line_break is None else line_break.encode()
        pieces, reserve = token_bytes(tokenizer), budgets["answer_tokens"]
        control = {i for i, token in added_tokens(tokenizer).items() if token.special}
        return cls(pieces, frozenset(i for i in control if pieces[i] not in (start, end)), start, end,
                   budgets["default"], reserve if isinstance(reserve, int) else -1, budgets["max"],
                   tuple(budgets["spellings"]), bool(info.get("enable_priority_scheduling")),
                   kind_of(tokenizer) in ("byte-level", "tiktoken"), closing, tokenizer.eos_token_id)

    @property
    def ends(self) -> list[int]:
        """Ids that end something by themselves: the thinking, or the response."""
        return sorted(self.end_ids) + ([] if self.eos is None else [self.eos])

    def text(self, ids: Sequence[int]) -> bytes:
        """What ids write; one beyond the tokenizer's vocabulary writes nothing."""
        return b"".join(self.pieces[i] for i in ids if 0 <= i < len(self.pieces))

    def most_reserved(self, asked: int | None, max_new: int) -> int:
        """Most tokens that can be kept for the answer of a response.

        Args:
            asked: the request's `answer_tokens`; None if it does not say.
            max_new: most tokens of the response.
        """
        if asked is not None:
            return asked
        return self.reserve if self.reserve >= 0 else max(1, min(MOST_RESERVED, max_new // SHARE_RESERVED))


def advertised(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a server says of its think budgets.

    Raises:
        BenchError: it has none, so there is no contract to check.
    """
    budgets = info.get("think_budget")
    if not budgets:
        raise BenchError("the server says nothing of think budgets (think_budget in /server_info); accepted: a server "
                         "of this package whose model's markers are known")
    return dict(budgets)
