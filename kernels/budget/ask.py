"""Ask for the end of rows' thinking: what the host decides while the device is ahead of it."""

from __future__ import annotations

import torch

from .layout import KEEP, NOT_FORCING, STATE_MASK, THINKING, BudgetState, Flag, Word


def ask(asks: torch.Tensor, writes: torch.Tensor, missing: torch.Tensor, state: BudgetState) -> None:
    """Bring the wall to rows whose thinking is to end; `reference.ask_row` for each of them.

    The rows themselves decide: the host knows them as they were a step or more ago. It runs before the step that masks
    them, on the same stream, only in steps with such a row. So it is a few torch operations and no kernel of its own;
    nothing here waits for the device.

    Args:
        asks: [k, 4] int64: slot, Outcome, index into `program` or KEEP, and whether the end is standing (1) or not (0).
            A slot may not occur twice.
        writes: [m, 3] int64: index into `program`, the id that goes there, and the place in `asks` that it is for. It
            is written only if that end is taken within a block that nothing is forced in.
        missing: [states] int32, bytes that a half-written character of a block still needs.
        state: on the same device.
    """
    slots, reason, wall, standing = asks.unbind(1)
    words = state.words[slots]
    auto = words[:, Word.AUTO]
    free = ((auto & THINKING) != 0) & (words[:, Word.CURSOR] == NOT_FORCING)
    allowed = torch.where(free, missing[(auto & STATE_MASK).long()].clamp(min=1), 0)
    left = torch.minimum(words[:, Word.MAX] - words[:, Word.USED], words[:, Word.RESPONSE_LIMIT] - words[:, Word.TOTAL])
    active = (words[:, Word.FLAGS] & int(Flag.ACTIVE)) != 0
    taken = active & (left > allowed) & (free | (standing != 0))
    words[:, Word.MAX] = torch.where(taken, words[:, Word.USED] + allowed, words[:, Word.MAX])
    words[:, Word.ASKED] = torch.where(taken, reason.int(), words[:, Word.ASKED])
    words[:, Word.FORCE_START] = torch.where(taken & free & (wall != KEEP), wall.int(), words[:, Word.FORCE_START])
    state.words[slots] = words
    places, ids, whose = writes.unbind(1)
    state.program[places] = torch.where((taken & free)[whose], ids.int(), state.program[places])
