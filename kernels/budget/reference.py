"""The definition of the think budget's operations, one row and one token at a time, in plain Python.

Every other implementation, vectorised or Triton, is tested to be equal to this one. The engine uses it on the host
too, to rebuild a row from a request's tokens.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Protocol

from .layout import (
    AUTO_MASK,
    INSIDE,
    KEEP,
    LINE_END,
    NOT_FORCING,
    PROGRAM_END,
    STATE_MASK,
    THINKING,
    UTF8_GUARD,
    Event,
    Flag,
    Outcome,
    Word,
)

MASKED_LOGIT = -(2.0**99)
"""Logit of a masked id, about -6e29. Finite, so that a row to which something else, a grammar say, left no
other id can still be sampled; far below any logit even after division by a small temperature. Above -1e30, which sglang
puts in the place of -inf where it sanitises logits: what a grammar bans stays behind what the budget takes away. A
power of two, so that it is the same number in every dtype that reaches it."""


def masked_logit(dtype_min: float) -> float:
    """MASKED_LOGIT for a dtype whose lowest finite value is `dtype_min`."""
    return max(MASKED_LOGIT, dtype_min / 2)


class HostTables(Protocol):
    """`Tables` as sequences on the host."""

    token_class: Sequence[int]
    step: Sequence[int]
    end_cursor: Sequence[int]
    end_start: Sequence[int]
    ban_start: Sequence[int]
    ban_ids: Sequence[int]
    guard_start: Sequence[int]
    guard_ids: Sequence[int]
    eos_ids: Sequence[int]


def lookup(tables: HostTables, auto: int, token: int) -> int:
    """Entry of `step` for a token in an automaton word: the next word with the token's events."""
    known = 0 <= token < len(tables.token_class)
    classes = len(tables.step) // len(tables.end_cursor)
    return int(tables.step[(auto & STATE_MASK) * classes + (int(tables.token_class[token]) if known else 0)])


def banned(tables: HostTables, auto: int) -> Sequence[int]:
    """Ids that would end the block (where thinking) or write the end marker right behind an end (outside)."""
    state = auto & STATE_MASK
    return tables.ban_ids[tables.ban_start[state] : tables.ban_start[state + 1]]


def tokens_left(row: Sequence[int]) -> int:
    """How many more tokens the model can choose for thinking until it comes to its wall."""
    return min(row[Word.MAX] - row[Word.USED], row[Word.RESPONSE_LIMIT] - row[Word.TOTAL])


def guarded(tables: HostTables, auto: int, left: int) -> Sequence[int]:
    """Ids that could leave a character half-written at the wall, in this automaton word with `left` tokens to go.

    A byte of a character takes at most one token. So while no more bytes are missing than tokens are left, the
    character can be completed, and an id that would break this is not to be chosen.
    """
    if not 1 <= left <= UTF8_GUARD:
        return ()
    index = (auto & STATE_MASK) * UTF8_GUARD + left - 1
    return tables.guard_ids[tables.guard_start[index] : tables.guard_start[index + 1]]


def mask_row(logits: MutableSequence[float], row: Sequence[int], program: Sequence[int], tables: HostTables,
             masked: float = MASKED_LOGIT) -> None:
    """Apply one row's budget to its logits, in place, before sampling.

    A row that is being forced keeps one id, with its logit if that is finite and 0 otherwise. A row below its minimum
    has every id masked that would end thinking. A row near its wall has the ids masked that would leave a character
    half-written there. A row that the budget closed has the ids masked that would write the end marker again, and EOS
    right after the end. Any other row is untouched.

    Args:
        logits: [vocab] of one row; may be wider than the tokenizer's vocabulary.
        row: [WORDS] of the row's slot.
    """
    flags = row[Word.FLAGS]
    if not flags & Flag.ACTIVE:
        return
    if row[Word.CURSOR] != NOT_FORCING:
        keep = program[row[Word.CURSOR]]
        value = logits[keep] if math.isfinite(logits[keep]) else 0.0
        for i in range(len(logits)):
            logits[i] = -math.inf
        logits[keep] = value
        return
    thinking = row[Word.AUTO] & THINKING
    if (thinking and row[Word.USED] < row[Word.MIN]) or (not thinking and flags & Flag.FORCED_END):
        _mask_ids(logits, banned(tables, row[Word.AUTO]), masked)
    if thinking:
        _mask_ids(logits, guarded(tables, row[Word.AUTO], tokens_left(row)), masked)
    if flags & Flag.FRESH:
        _mask_ids(logits, tables.eos_ids, masked)


def _mask_ids(logits: MutableSequence[float], ids: Sequence[int], masked: float) -> None:
    for i in ids:
        logits[i] = logits[i] if logits[i] < masked else masked


def force_cursor(row: Sequence[int], tables: HostTables, message: bool) -> int:
    """Where forcing starts: the rest of what stands half-written, else the row's message (or nothing) and the end, the
    one that the block has."""
    state = row[Word.AUTO] & STATE_MASK
    return int(tables.end_cursor[state]) or (row[Word.FORCE_START] if message else 0) + int(tables.end_start[state])


def start_forcing_if_due(row: MutableSequence[int], tables: HostTables, chosen: bool) -> None:
    """Start forcing the end if the row has come to its wall, or to a line end in its grace window.

    Args:
        chosen: whether the model itself chose the token that led here; grace looks only at the model's own lines.
    """
    if row[Word.CURSOR] != NOT_FORCING or not row[Word.AUTO] & THINKING:
        return
    if tokens_left(row) <= 0:
        row[Word.REASON] = Outcome.FORCED
    elif chosen and row[Word.USED] >= row[Word.GRACE] and row[Word.AUTO] & LINE_END:
        row[Word.REASON] = Outcome.GRACE
    else:
        return
    row[Word.CURSOR] = force_cursor(row, tables, message=True)


def advance_row(token: int, row: MutableSequence[int], program: Sequence[int], tables: HostTables) -> int:
    """Take one sampled token into a row's state, in place; return the token that stands in the output.

    That is the forced id where the row is being forced, the first id of the end marker where the model sampled EOS
    inside a block that EOS closes, and the sampled token otherwise.
    """
    if not row[Word.FLAGS] & Flag.ACTIVE:
        return token
    row[Word.FLAGS] &= ~Flag.FRESH
    wants_to_stop = row[Word.AUTO] & INSIDE and lookup(tables, row[Word.AUTO], token) & Event.EOS
    if row[Word.CURSOR] == NOT_FORCING and wants_to_stop and row[Word.FLAGS] & Flag.EOS_CLOSES:
        row[Word.REASON] = Outcome.EOS
        row[Word.CURSOR] = force_cursor(row, tables, message=False)
    forcing = row[Word.CURSOR] != NOT_FORCING
    if forcing:
        token = int(program[row[Word.CURSOR]])
    was_inside = row[Word.AUTO] & INSIDE
    step = lookup(tables, row[Word.AUTO], token)
    row[Word.AUTO] = step & AUTO_MASK
    row[Word.TOTAL] += 1
    if forcing:
        row[Word.FORCED] += 1
        row[Word.CURSOR] += 1
    elif was_inside or step & Event.BEGIN:
        row[Word.USED] += 1
    _note_outcome(row, step, forcing, tables)
    if forcing and (row[Word.CURSOR] == NOT_FORCING or program[row[Word.CURSOR]] == PROGRAM_END):
        row[Word.CURSOR] = NOT_FORCING
        row[Word.FLAGS] |= Flag.FRESH
    start_forcing_if_due(row, tables, chosen=not forcing)
    return token


def ask_row(row: MutableSequence[int], missing: Sequence[int], reason: int, wall: int = KEEP,
            standing: bool = False) -> bool:
    """Ask for the end of a row's thinking, in place; return whether the row takes it.

    The wall comes to the row: one token more, or those that complete a half-written character. A row that is being
    forced goes on as it was, and one whose wall is as near takes no other. Outside a block only a standing end is
    taken: the next block is then ended as it begins.

    Args:
        missing: [states], bytes that a half-written character of a block still needs.
        reason: Outcome of the end.
        wall: index into `program` of what is forced then, or KEEP.
        standing: it holds for later blocks too.
    """
    free = bool(row[Word.AUTO] & THINKING) and row[Word.CURSOR] == NOT_FORCING
    allowed = max(1, int(missing[row[Word.AUTO] & STATE_MASK])) if free else 0
    if not row[Word.FLAGS] & Flag.ACTIVE or tokens_left(row) <= allowed or not (free or standing):
        return False
    row[Word.MAX] = row[Word.USED] + allowed
    row[Word.ASKED] = reason
    if wall != KEEP and free:
        row[Word.FORCE_START] = wall
    return True


def _note_outcome(row: MutableSequence[int], step: int, forcing: bool, tables: HostTables) -> None:
    """Record what the token closed or opened; both can be true of one token."""
    if step & (Event.CLOSE | Event.IMPLICIT):
        if forcing:
            row[Word.OUTCOME] = row[Word.REASON]
            row[Word.FLAGS] |= Flag.FORCED_END
            row[Word.FORCE_START] = 0
            if row[Word.FLAGS] & Flag.NO_BREAK:
                row[Word.CURSOR] = NOT_FORCING
        else:
            row[Word.OUTCOME] = Outcome.NATURAL if step & Event.CLOSE else Outcome.IMPLICIT
            row[Word.FLAGS] &= ~Flag.FORCED_END
    if step & INSIDE:
        row[Word.OUTCOME] = Outcome.OPEN


def parent_of(parents: Sequence[int] | None, node: int) -> int:
    """The parent of a draft node, -1 for padding. Parents come before their children; without `parents`, a chain."""
    parent = node - 1 if parents is None else int(parents[node])
    return parent if 0 <= parent < node else -1


def walk_row(draft: Sequence[int], parents: Sequence[int] | None, row: Sequence[int], program: Sequence[int],
             tables: HostTables) -> list[list[int]]:
    """The state of each node of one request's draft, with which `mask_row` masks the node's row of logits.

    Node 0 is the last token of the output, which the state already has. A node is dead if it is padding (no parent, or
    a negative id), if its parent is dead, or if its token cannot stand in the output after its ancestors: it differs
    from the id being forced, or it is an EOS that the end marker replaces. A dead node can never be accepted; it has
    its parent's words without `Flag.ACTIVE`, and so its logits are left alone.
    """
    nodes = [list(row)]
    for node in range(1, len(draft)):
        parent = parent_of(parents, node)
        words, token = list(nodes[max(parent, 0)]), int(draft[node])
        alive = parent >= 0 and token >= 0 and words[Word.FLAGS] & Flag.ACTIVE
        if not alive or advance_row(token, words, program, tables) != token:
            words = list(nodes[max(parent, 0)])
            words[Word.FLAGS] &= ~Flag.ACTIVE
        nodes.append(words)
    return nodes


def commit_row(tokens: MutableSequence[int], last: int, parents: Sequence[int] | None, nodes: Sequence[Sequence[int]],
               row: MutableSequence[int], program: Sequence[int], tables: HostTables) -> int:
    """Take what one request's verification accepted into its row; return the last accepted node.

    That is `last` itself, unless a token on the way to it was replaced (a sampled EOS that the draft foresaw): then it
    is the node where that happened. `tokens[last]` becomes the token that stands in the output.

    Args:
        tokens: [nodes], the token sampled at each accepted node; the others are not looked at.
        nodes: what `walk_row` returned.
    """
    if not row[Word.FLAGS] & Flag.ACTIVE:
        return last
    while not nodes[last][Word.FLAGS] & Flag.ACTIVE:
        last = max(parent_of(parents, last), 0)
    row[:] = nodes[last]
    tokens[last] = advance_row(int(tokens[last]), row, program, tables)
    return last
