"""A draft whose next token depends on all that its cache holds, and a context in which one id is half a character."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from sglang_ext.uag.draft_pool import DraftRow
from sglang_ext.uag.text.proposal import Proposal

VOCABULARY, HALF, EOS, GROWTH = 50, 49, 48, 8


def next_id(ids: Sequence[int]) -> tuple[int, float]:
    """What the draft writes after these ids, and how sure it is."""
    chance = random.Random(hash(tuple(ids)))
    ends = len(ids) > 12 and chance.random() < 0.1
    return EOS if ends else chance.randrange(1, EOS), chance.uniform(0.2, 0.95)


def written_after(ids: Sequence[int], steps: int) -> list[int]:
    """The draft's text, by a draft without a cache."""
    out = list(ids)
    for _ in range(steps):
        out.append(next_id(out)[0])
        if out[-1] == EOS:
            break
    return out[len(ids) :]


class StandInRunner:
    """`DraftRunner` and `DraftPool` without a model: caches are lists, logits follow from what is in them.

    Args:
        slots: of the pool, in pages of GROWTH.
    """

    device = "cpu"

    def __init__(self, slots: int = 10**6, rows: int = 64, context: int = 10**6) -> None:
        self.context_len = context
        self.pool = self
        self.left = slots
        self.free = list(range(rows, 0, -1))
        self.caches: dict[int, list[int]] = {}
        self.reads: list[list[int]] = []  # new ids of each extension
        self.decoded: list[int] = []  # rows of each step
        self.fault: Exception | None = None
        self.numbers = True

    def open(self) -> DraftRow | None:
        return DraftRow(self.free.pop()) if self.free else None

    def close(self, row: DraftRow) -> None:
        self.left += row.slots
        self.free.append(row.index)
        self.caches.pop(row.index, None)
        row.ids, row.slots = [], 0

    def reserve(self, row: DraftRow, length: int) -> bool:
        pages = -(-max(length - row.slots, 0) // GROWTH) * GROWTH
        if length > self.context_len or pages > self.left:
            return False
        self.left -= pages
        row.slots += pages
        return True

    def extend(self, rows: Sequence[DraftRow], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        self.reads.append([len(new) for new in ids])
        for row, new in zip(rows, ids, strict=True):
            assert len(new), "a request without a token"
            self._write(row, len(row.ids), new)
            row.ids += new
        return self._logits([self.caches[row.index][: len(row.ids)] for row in rows])

    def decode(self, rows: Sequence[DraftRow], tokens: torch.Tensor) -> torch.Tensor:
        return self.decode_step(rows, 0, tokens)

    def decode_inputs(self, rows: Sequence[DraftRow], steps: int) -> Sequence[DraftRow]:
        return rows

    def decode_step(self, rows: Sequence[DraftRow], step: int, tokens: torch.Tensor) -> torch.Tensor:
        self.decoded.append(len(tokens))
        for row, token in zip(rows, tokens.tolist(), strict=False):
            self._write(row, len(row.ids) + step, [token])
        return self._logits([self.caches[row.index][: len(row.ids) + step + 1] for row in rows[: len(tokens)]])

    def _write(self, row: DraftRow, start: int, ids: Sequence[int]) -> None:
        if self.fault is not None:
            raise self.fault
        cache = self.caches.setdefault(row.index, [])
        assert start + len(ids) <= row.slots, "written where nothing is reserved"
        assert start <= len(cache), "a position was left out"
        cache[start:] = ids

    def _logits(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        logits = torch.zeros(len(contexts), VOCABULARY)
        for row, context in zip(logits, contexts, strict=True):
            token, chance = next_id(context)
            row[token] = torch.tensor(chance * (VOCABULARY - 1) / (1 - chance)).log()
        return logits if self.numbers else logits * float("nan")


class StandInContext:
    """The draft's ids are the target's, but for HALF, which is none of the draft's."""

    pending = b""

    def __init__(self, steps_per_token: int = 1, unavailable_reason: str | None = None) -> None:
        self.draft_ids: list[int] = []
        self.num_unchanged = self.num_encoded = 0
        self.unavailable_reason = unavailable_reason
        self._steps = steps_per_token

    def confirm(self, ids: Sequence[int]) -> None:
        self.num_unchanged = len(self.draft_ids)
        self.draft_ids += [i for i in ids if i != HALF]

    def propose(self, ids: Sequence[int], most: int) -> Proposal:
        kept = tuple(ids[: ids.index(EOS) + 1 if EOS in ids else None][:most])
        return Proposal(kept, None, len(kept))

    def steps_for(self, tokens: int) -> int:
        return tokens * self._steps
