"""Take sampled tokens into the think budget's state: the step after sampling."""

from __future__ import annotations

import torch

from .layout import (
    AUTO_MASK,
    INSIDE,
    LINE_END,
    NOT_FORCING,
    PROGRAM_END,
    STATE_MASK,
    BudgetState,
    Event,
    Flag,
    Outcome,
    Tables,
    Word,
)


def advance(tokens: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Take one token per row into the state and replace it, in place, by the one that stands in the output.

    Defined by `reference.advance_row`.

    Args:
        tokens: [n] int32 or int64, sampled ids.
        rows: [n] int, the slot of each token's row. A slot may not occur twice.
        state, tables: on the device of the tokens.
    """
    if tokens.device.type != "cpu":
        raise NotImplementedError(f"no kernel for device {tokens.device.type!r}")
    _advance_cpu(tokens, rows, state, tables)


def _advance_cpu(tokens: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    words = state.words[rows]
    col = {w: words[:, w] for w in Word}
    active = col[Word.FLAGS] & Flag.ACTIVE != 0
    flags = col[Word.FLAGS] & ~int(Flag.FRESH)
    was_inside = col[Word.AUTO] & INSIDE != 0
    rest = tables.end_cursor[(col[Word.AUTO] & STATE_MASK).long()]

    sampled = _lookup(tables, col[Word.AUTO], tokens)
    eos = was_inside & (sampled & Event.EOS != 0) & (flags & Flag.EOS_CLOSES != 0) & (col[Word.CURSOR] == NOT_FORCING)
    cursor = torch.where(eos, rest, col[Word.CURSOR])
    reason = torch.where(eos, int(Outcome.EOS), col[Word.REASON])
    forcing = cursor != NOT_FORCING
    taken = torch.where(forcing, state.program[cursor.clamp(min=0).long()], tokens.int())

    step = _lookup(tables, col[Word.AUTO], taken)
    auto = step & AUTO_MASK
    used = col[Word.USED] + (was_inside & ~forcing).int()
    cursor = torch.where(forcing, cursor + 1, cursor)

    closed = step & (Event.CLOSE | Event.IMPLICIT) != 0
    ours = closed & forcing
    own_end = torch.where(step & Event.CLOSE != 0, int(Outcome.NATURAL), int(Outcome.IMPLICIT))
    outcome = torch.where(closed, torch.where(forcing, reason, own_end), col[Word.OUTCOME])
    outcome = torch.where(step & INSIDE != 0, int(Outcome.OPEN), outcome)
    flags = torch.where(ours, flags | int(Flag.FORCED_END), flags)
    wall = torch.where(ours, 0, col[Word.WALL])
    cursor = torch.where(ours & (flags & Flag.NO_BREAK != 0), NOT_FORCING, cursor)

    done = forcing & ((cursor == NOT_FORCING) | (state.program[cursor.clamp(min=0).long()] == PROGRAM_END))
    cursor = torch.where(done, NOT_FORCING, cursor)
    flags = torch.where(done, flags | int(Flag.FRESH), flags)

    may_arm = (cursor == NOT_FORCING) & (auto & INSIDE != 0)
    at_wall = may_arm & (used >= col[Word.MAX])
    in_grace = may_arm & ~at_wall & ~forcing & (used >= col[Word.GRACE]) & (auto & LINE_END != 0)
    rest = tables.end_cursor[(auto & STATE_MASK).long()]
    cursor = torch.where(at_wall | in_grace, torch.where(rest != 0, rest, wall), cursor)
    reason = torch.where(at_wall, int(Outcome.FORCED), torch.where(in_grace, int(Outcome.GRACE), reason))

    after = words.clone()
    after[:, Word.AUTO], after[:, Word.USED], after[:, Word.CURSOR] = auto, used, cursor
    after[:, Word.OUTCOME], after[:, Word.REASON], after[:, Word.FLAGS] = outcome, reason, flags
    after[:, Word.FORCED], after[:, Word.WALL] = col[Word.FORCED] + forcing.int(), wall
    state.words[rows] = torch.where(active[:, None], after, words)
    tokens.copy_(torch.where(active, taken, tokens))


def _lookup(tables: Tables, auto: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[n] int32, `reference.lookup` for a batch."""
    vocab = tables.token_class.numel()
    known = (tokens >= 0) & (tokens < vocab)
    token_class = torch.where(known, tables.token_class[tokens.clamp(0, vocab - 1).long()], 0)
    return tables.step[((auto & STATE_MASK) * tables.classes + token_class).long()]
