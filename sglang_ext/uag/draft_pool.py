"""The rows and slots of the draft's KV pool, counted in the draft's tokens.

A request's row holds the slots that it was given until the request leaves, so that going back after a rejected draft
costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

GROWTH = 64
"""Slots that a request is given at a time."""


@dataclass
class DraftRow:
    """A request's place in the draft's pool.

    Attributes:
        index: row of the table, from 1 on; row 0 is padding.
        ids: the tokens whose keys and values are in the pool, in order.
        slots: the slots it holds, by position; more than `ids`, in whole pages.
    """

    index: int
    ids: list[int] = field(default_factory=list)
    slots: int = 0


class DraftPool:
    """Rows and slots of requests.

    Args:
        allocator: sglang's allocator of slots.
        table: [rows + 1, positions] int32, each request's slots.
        page: slots of a page.
        tokens: slots of the pool.
        rows: most requests with a row at once.
        context_len: most tokens of a request.
    """

    def __init__(self, allocator: Any, table: torch.Tensor, page: int, tokens: int, rows: int, context_len: int
                 ) -> None:
        self.context_len, self.table = context_len, table
        self._allocator, self._page = allocator, page
        self.growth = _whole(GROWTH, page)
        self.tokens, self.rows = tokens, min(rows, len(table) - 1)
        self._free = list(range(self.rows, 0, -1))

    def open(self) -> DraftRow | None:
        """A place for a request, or None if all are taken."""
        return DraftRow(self._free.pop()) if self._free else None

    def close(self, row: DraftRow) -> None:
        """Give a place and its slots back. Only between forwards: a running one may read them."""
        if row.slots:
            self._allocator.free(self.table[row.index, : row.slots].to(torch.int64))
        row.ids, row.slots = [], 0
        self._free.append(row.index)

    @property
    def idle(self) -> bool:
        """Whether no request holds a place or a slot."""
        return len(self._free) == self.rows and self._allocator.available_size() >= self.tokens

    @property
    def usage(self) -> str:
        """How much of the pool is held, for the log."""
        return (f"{self.rows - len(self._free)} of {self.rows} places, "
                f"{self.tokens - self._allocator.available_size()} of {self.tokens} tokens held")

    def reserve(self, row: DraftRow, length: int) -> bool:
        """Make room for `length` tokens; False if the pool is full or the context ends before."""
        width = self.table.shape[1]
        if length > min(self.context_len, width):
            return False
        missing = length - row.slots
        if missing <= 0:
            return True
        least = _whole(missing, self._page)
        size = max(min(_whole(missing, self.growth), _whole(width - row.slots, self._page)), least)
        slots = self._allocator.alloc(size)
        if slots is None and least < size:
            slots = self._allocator.alloc(least)
        if slots is None:
            return False
        slots = slots[: width - row.slots]  # of the last page, what the table has room for: any slot frees its page
        self.table[row.index, row.slots : row.slots + len(slots)] = slots.to(self.table.dtype)
        row.slots += len(slots)
        return True


def _whole(count: int, of: int) -> int:
    """The next multiple."""
    return -(-count // of) * of
