"""The operations in host memory: numpy over views of the tensors, equal to `reference`.

In most steps most rows take the fast path: nothing is forced, nothing closes, no limit is met. They are done for the
whole batch at once. The others are few. They take the slow path, which is the reference itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .layout import (
    AUTO_MASK,
    INSIDE,
    LINE_END,
    NOT_FORCING,
    STATE_MASK,
    THINKING,
    UTF8_GUARD,
    BudgetState,
    Event,
    Flag,
    Operands,
    Outcome,
    Tables,
    Word,
)
from .reference import advance_row, guarded, masked_logit, walk_row

Array = np.ndarray[Any, Any]

# Plain integers: numpy takes several times as long over an enum.
_AUTO, _USED, _CURSOR, _OUTCOME = int(Word.AUTO), int(Word.USED), int(Word.CURSOR), int(Word.OUTCOME)
_FLAGS, _MAX, _MIN, _GRACE = int(Word.FLAGS), int(Word.MAX), int(Word.MIN), int(Word.GRACE)
_TOTAL, _RESPONSE_LIMIT = int(Word.TOTAL), int(Word.RESPONSE_LIMIT)
_ACTIVE, _FRESH, _FORCED_END = int(Flag.ACTIVE), int(Flag.FRESH), int(Flag.FORCED_END)
_SLOW = int(Event.CLOSE | Event.IMPLICIT | Event.EOS | Event.BEGIN)
_OPEN = int(Outcome.OPEN)


def mask(logits: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    slots = rows.numpy()
    mask_words(logits, state.words.numpy().take(slots, 0, mode="wrap"), slots >= 0, state, tables.arrays)


def advance(tokens: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    slots, sampled, words = rows.numpy(), tokens.numpy(), state.words.numpy()
    mine = words.take(slots, 0, mode="wrap")
    if (idle := slots < 0).any():
        mine[idle, _FLAGS] = 0
        slots = slots[~idle]
    sampled[:] = advance_words(mine, sampled, state.program.numpy(), tables.arrays)
    words[slots] = mine if len(slots) == len(mine) else mine[~idle]


def walk(logits: torch.Tensor, draft: torch.Tensor, parents: torch.Tensor | None, rows: torch.Tensor,
         nodes: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    slots, tokens, arrays = rows.numpy(), draft.numpy(), tables.arrays
    words = state.words.numpy().take(slots, 0, mode="wrap")
    words[slots < 0, _FLAGS] = 0
    reached = _first(nodes, tokens)
    reached[:] = words[:, None]
    above = None if parents is None else parents.numpy()
    slow = _walk_fast(reached, tokens, above, arrays)
    for i in slow.nonzero()[0].tolist():
        tree = None if above is None else above[i].tolist()
        reached[i] = walk_row(tokens[i].tolist(), tree, words[i].tolist(), state.program.numpy(), arrays)  # type: ignore[arg-type]
    flat = reached.reshape(-1, reached.shape[2])
    mask_words(logits, flat, np.ones(len(flat), bool), state, arrays)


def _walk_fast(reached: Array, tokens: Array, parents: Array | None, tables: Operands) -> Array:
    """`reference.walk_row` for requests none of whose nodes takes the slow path; returns which other ones there are."""
    kind = _kinds(tokens, tables)
    entry, used, total = (reached[:, :, word].copy() for word in (_AUTO, _USED, _TOTAL))
    dead, requests = tokens < 0, np.arange(len(tokens))
    dead[:, 0] = False
    for node in range(1, tokens.shape[1]):
        above: Any = (slice(None), node - 1)
        if parents is not None:
            orphan = (parents[:, node] < 0) | (parents[:, node] >= node)
            above = (requests, np.where(orphan, 0, parents[:, node]))
            dead[:, node] |= orphan
        before = entry[above]
        dead[:, node] |= dead[above]
        alive = ~dead[:, node]
        after = tables.step[(before & STATE_MASK) * tables.classes + kind[:, node]]
        entry[:, node] = np.where(alive, after, before)
        used[:, node] = used[above] + (alive & (before & INSIDE != 0))
        total[:, node] = total[above] + alive
    inside, thinking = entry & INSIDE != 0, entry & THINKING != 0
    due = (used >= reached[:, :, _MAX]) | (total >= reached[:, :, _RESPONSE_LIMIT])
    due |= (used >= reached[:, :, _GRACE]) & (entry & LINE_END != 0)
    slow = ((entry & _SLOW != 0) | thinking & due)[:, 1:].any(1)
    row = reached[:, 0]
    slow |= (row[:, _FLAGS] & _FRESH != 0) | (row[:, _CURSOR] != NOT_FORCING)
    slow &= row[:, _FLAGS] & _ACTIVE != 0
    reached[:, :, _AUTO], reached[:, :, _USED], reached[:, :, _TOTAL] = entry & AUTO_MASK, used, total
    np.copyto(reached[:, 1:, _OUTCOME], _OPEN, where=inside[:, 1:])
    np.copyto(reached[:, :, _FLAGS], reached[:, :, _FLAGS] & ~_ACTIVE, where=dead)
    return np.asarray(slow)


def commit(tokens: torch.Tensor, last: torch.Tensor, parents: torch.Tensor | None, rows: torch.Tensor,
           nodes: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    slots, words, sampled = rows.numpy(), state.words.numpy(), tokens.numpy()
    reached = _first(nodes, sampled)
    requests = ((slots >= 0) & (words[slots, _FLAGS] & _ACTIVE != 0)).nonzero()[0]
    node = last.numpy()[requests]
    while (dead := reached[requests, node, _FLAGS] & _ACTIVE == 0).any():
        parent = node - 1 if parents is None else parents.numpy()[requests, node]
        node = np.where(dead, np.where((parent >= 0) & (parent < node), parent, 0), node)
    mine = reached[requests, node]
    taken = advance_words(mine, sampled[requests, node], state.program.numpy(), tables.arrays)
    words[slots[requests]] = mine
    sampled[requests, node] = taken
    last.numpy()[requests] = node


def _first(nodes: torch.Tensor, tokens: Array) -> Array:
    """[requests, width, WORDS], the nodes in use for these tokens."""
    words = nodes.shape[-1]
    return nodes.numpy().reshape(-1)[: tokens.size * words].reshape(*tokens.shape, words)


def _kinds(tokens: Array, tables: Operands) -> Array:
    """Behaviour class of each token; ids beyond the vocabulary are inert."""
    known = (tokens >= 0) & (tokens < tables.vocab)
    return np.asarray(tables.token_class[np.where(known, tokens, 0)] * known)


def advance_words(words: Array, tokens: Array, program: Array, tables: Operands) -> Array:
    """`reference.advance_row` for [n, WORDS] words, in place; returns the tokens that stand in the output."""
    auto, flags, cursor = words[:, _AUTO], words[:, _FLAGS], words[:, _CURSOR]
    entry = tables.step[(auto & STATE_MASK) * tables.classes + _kinds(tokens, tables)]
    used, total = words[:, _USED] + (auto & INSIDE != 0), words[:, _TOTAL] + 1
    inside, thinking = entry & INSIDE != 0, entry & THINKING != 0
    due = (used >= words[:, _MAX]) | (total >= words[:, _RESPONSE_LIMIT])
    due |= (used >= words[:, _GRACE]) & (entry & LINE_END != 0)
    slow = (entry & _SLOW != 0) | (flags & _FRESH != 0) | (cursor != NOT_FORCING) | thinking & due
    active = flags & _ACTIVE != 0
    fast = active & ~slow
    np.copyto(words[:, _AUTO], entry & AUTO_MASK, where=fast)
    np.copyto(words[:, _USED], used, where=fast)
    np.copyto(words[:, _TOTAL], total, where=fast)
    np.copyto(words[:, _OUTCOME], _OPEN, where=fast & inside)
    taken = tokens.copy()
    for i in (active & slow).nonzero()[0].tolist():
        row = words[i].tolist()
        taken[i] = advance_row(int(tokens[i]), row, program, tables)  # type: ignore[arg-type]
        words[i] = row
    return taken


def mask_words(logits: torch.Tensor, words: Array, present: Array, state: BudgetState, tables: Operands) -> None:
    """`reference.mask_row` for [n, WORDS] words, of which some are not present."""
    flags, auto, cursor = words[:, _FLAGS], words[:, _AUTO], words[:, _CURSOR]
    active = present & (flags & _ACTIVE != 0)
    forced = active & (cursor != NOT_FORCING)
    free = active & ~forced
    thinking = auto & THINKING != 0
    barred = thinking & (words[:, _USED] < words[:, _MIN]) | ~thinking & (flags & _FORCED_END != 0)
    left = np.minimum(words[:, _MAX] - words[:, _USED], words[:, _RESPONSE_LIMIT] - words[:, _TOTAL])
    masked = masked_logit(torch.finfo(logits.dtype).min)
    for i in forced.nonzero()[0].tolist():
        keep = int(state.program[int(cursor[i])])
        value = float(logits[i, keep])
        logits[i].fill_(-torch.inf)
        logits[i, keep] = value if np.isfinite(value) else 0.0
    for i in (free & barred).nonzero()[0].tolist():
        index = int(auto[i]) & STATE_MASK
        _mask_ids(logits[i], tables.ban_ids[tables.ban_start[index] : tables.ban_start[index + 1]], masked)
    for i in (free & thinking & (left >= 1) & (left <= UTF8_GUARD)).nonzero()[0].tolist():
        _mask_ids(logits[i], np.asarray(guarded(tables, int(auto[i]), int(left[i])), np.int32), masked)  # type: ignore[arg-type]
    for i in (free & (flags & _FRESH != 0)).nonzero()[0].tolist():
        _mask_ids(logits[i], tables.eos_ids, masked)


def _mask_ids(row: torch.Tensor, ids: Array, masked: float) -> None:
    index = torch.from_numpy(ids).long()
    values = row[index]
    row[index] = torch.where(values < masked, values, masked).to(row.dtype)
