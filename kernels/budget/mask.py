"""Mask logits by each row's think budget: the step before sampling."""

from __future__ import annotations

import torch

from .layout import INSIDE, NOT_FORCING, STATE_MASK, BudgetState, Flag, Tables, Word
from .reference import lost_value


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Apply every row's budget to its logits, in place. Defined by `reference.mask_row`.

    Args:
        logits: [n, vocab] floating point, any row stride; vocab may be wider than the tokenizer's.
        rows: [n] int, the slot of each row of logits. A slot may not occur twice.
        state, tables: on the device of the logits.
    """
    if logits.device.type != "cpu":
        raise NotImplementedError(f"no kernel for device {logits.device.type!r}")
    _mask_cpu(logits, rows, state, tables)


def _mask_cpu(logits: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    words = state.words.numpy()[rows.numpy()]
    flags, auto, cursor = words[:, Word.FLAGS], words[:, Word.AUTO], words[:, Word.CURSOR]
    active = flags & Flag.ACTIVE != 0
    forced = active & (cursor != NOT_FORCING)
    free = active & ~forced
    inside = auto & INSIDE != 0
    barred = inside & (words[:, Word.USED] < words[:, Word.MIN]) | ~inside & (flags & Flag.FORCED_END != 0)
    lost = lost_value(torch.finfo(logits.dtype).min)
    for i in forced.nonzero()[0].tolist():
        keep = int(state.program[int(cursor[i])])
        value = logits[i, keep].clone()
        logits[i].fill_(-torch.inf)
        logits[i, keep] = value if value.isfinite() else 0.0
    for i in (free & barred).nonzero()[0].tolist():
        index = int(auto[i]) & STATE_MASK
        _lose(logits[i], tables.ban_ids[int(tables.ban_start[index]) : int(tables.ban_start[index + 1])], lost)
    for i in (free & (flags & Flag.FRESH != 0)).nonzero()[0].tolist():
        _lose(logits[i], tables.eos_ids, lost)


def _lose(row: torch.Tensor, ids: torch.Tensor, lost: float) -> None:
    index = ids.long()
    row[index] = torch.where(row[index] == -torch.inf, -torch.inf, lost).to(row.dtype)
