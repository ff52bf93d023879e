"""An oracle that knows nothing of the automaton: it looks at a finished response's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_ext.vocab import token_bytes


@dataclass(frozen=True)
class Rescan:
    """Reads responses of one tokenizer, with the markers `<think>` and `</think>`."""

    pieces: Sequence[bytes]
    end: bytes = b"</think>"

    @classmethod
    def of(cls, tokenizer: Any) -> Rescan:
        return cls(token_bytes(tokenizer))

    def text(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[i] for i in ids)

    def thought(self, ids: Sequence[int]) -> int | None:
        """How many ids of a response whose prompt opened a block lie before the id that completes the end marker;
        None if it is never completed."""
        written = b""
        for n, i in enumerate(ids):
            written += self.pieces[i]
            if self.end in written:
                return n
        return None

    def check_forced(self, ids: Sequence[int], budget: int, close: Sequence[int], free: Sequence[int]) -> None:
        """A response that was closed at its wall: its own first ids, then the end, not twice in a row.

        Args:
            ids: the response.
            close: end marker and line break, in ids.
            free: the same request's response without a budget.
        """
        assert list(ids[:budget]) == list(free[:budget])
        closing = ids[budget : budget + len(close)]
        assert list(closing) == list(close)[: len(closing)], self.text(ids)
        behind = self.text(ids[budget + len(close) :])
        assert self.end not in self.text(ids[:budget]), self.text(ids)
        assert not behind.lstrip().startswith(self.end), self.text(ids)

    def check_wall(self, ids: Sequence[int], budget: int, after: bytes = b"\n\n") -> None:
        """A response that was closed at its wall, whatever it wrote before: the rest of the end marker follows, or all
        of it where none was begun, and what comes after an end."""
        before = self.text(ids[:budget])
        begun = max(n for n in range(len(self.end)) if before.endswith(self.end[:n]))
        assert self.end not in before, self.text(ids)
        assert self.text(ids[budget:]).startswith(self.end[begun:] + after), self.text(ids)
