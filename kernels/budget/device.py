"""What the Triton kernels share: `reference`, transcribed for one row that a program holds in registers.

A row's words are one vector of WORDS lanes, loaded and stored at once; in between they are scalars, a `Row`.
Everything here is branch-free except where a branch saves touching the logits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from . import layout

# Kernels see globals only as constexpr, and hash them into their cache key only then.
WORDS = tl.constexpr(layout.WORDS)
AUTO = tl.constexpr(int(layout.Word.AUTO))
USED = tl.constexpr(int(layout.Word.USED))
CURSOR = tl.constexpr(int(layout.Word.CURSOR))
OUTCOME = tl.constexpr(int(layout.Word.OUTCOME))
FORCED = tl.constexpr(int(layout.Word.FORCED))
REASON = tl.constexpr(int(layout.Word.REASON))
FLAGS = tl.constexpr(int(layout.Word.FLAGS))
FORCE_START = tl.constexpr(int(layout.Word.FORCE_START))
MAX = tl.constexpr(int(layout.Word.MAX))
MIN = tl.constexpr(int(layout.Word.MIN))
GRACE = tl.constexpr(int(layout.Word.GRACE))
TOTAL = tl.constexpr(int(layout.Word.TOTAL))
RESPONSE_LIMIT = tl.constexpr(int(layout.Word.RESPONSE_LIMIT))

ACTIVE = tl.constexpr(int(layout.Flag.ACTIVE))
EOS_CLOSES = tl.constexpr(int(layout.Flag.EOS_CLOSES))
NO_BREAK = tl.constexpr(int(layout.Flag.NO_BREAK))
FORCED_END = tl.constexpr(int(layout.Flag.FORCED_END))
FRESH = tl.constexpr(int(layout.Flag.FRESH))

CLOSE = tl.constexpr(int(layout.Event.CLOSE))
IMPLICIT = tl.constexpr(int(layout.Event.IMPLICIT))
EOS = tl.constexpr(int(layout.Event.EOS))
BEGIN = tl.constexpr(int(layout.Event.BEGIN))

BY_MODEL = tl.constexpr(int(layout.Outcome.NATURAL))
BY_GRACE = tl.constexpr(int(layout.Outcome.GRACE))
BY_WALL = tl.constexpr(int(layout.Outcome.FORCED))
BY_EOS = tl.constexpr(int(layout.Outcome.EOS))
BY_TOOL = tl.constexpr(int(layout.Outcome.IMPLICIT))
STILL_OPEN = tl.constexpr(int(layout.Outcome.OPEN))

STATE_MASK = tl.constexpr(layout.STATE_MASK)
AUTO_MASK = tl.constexpr(layout.AUTO_MASK)
INSIDE = tl.constexpr(layout.INSIDE)
LINE_END = tl.constexpr(layout.LINE_END)
THINKING = tl.constexpr(layout.THINKING)
UTF8_GUARD = tl.constexpr(layout.UTF8_GUARD)
NOT_FORCING = tl.constexpr(layout.NOT_FORCING)
PROGRAM_END = tl.constexpr(layout.PROGRAM_END)

BLOCK = tl.constexpr(1024)  # logits that a program overwrites at once
LIST = tl.constexpr(128)  # ids that a program takes away at once; most lists are shorter
SPAN = 32 * 1024  # ids of one row that a program touches in all: more programs would only add to the fast path


def launches(tensor: torch.Tensor) -> bool:
    """Whether the kernels serve this tensor: on every device but the CPU, and there too in Triton's interpreter."""
    return tensor.device.type != "cpu" or bool(triton.knobs.runtime.interpret)


def parts(width: int) -> int:
    """Programs that share one row of logits. All of them read the row's words, to find that there is nothing to do."""
    return -(-width // SPAN)


class Row(NamedTuple):
    """The words of one row."""

    auto: Any
    used: Any
    cursor: Any
    outcome: Any
    forced: Any
    reason: Any
    flags: Any
    force_start: Any
    most: Any
    least: Any
    grace: Any
    total: Any
    response_limit: Any


@triton.jit
def get(words, index):
    """One word of a loaded row, as a scalar."""
    return tl.sum(tl.where(tl.arange(0, WORDS) == index, words, 0), 0)


@triton.jit
def put(words, index, value):
    """A loaded row with one word replaced."""
    return tl.where(tl.arange(0, WORDS) == index, value, words)


@triton.jit
def unpack(words):
    return Row(get(words, AUTO), get(words, USED), get(words, CURSOR), get(words, OUTCOME), get(words, FORCED),
               get(words, REASON), get(words, FLAGS), get(words, FORCE_START), get(words, MAX), get(words, MIN),
               get(words, GRACE), get(words, TOTAL), get(words, RESPONSE_LIMIT))


@triton.jit
def pack(words, row):
    """The words of a row, given those of any earlier state of it."""
    words = put(put(put(words, AUTO, row.auto), USED, row.used), CURSOR, row.cursor)
    words = put(put(put(words, OUTCOME, row.outcome), FORCED, row.forced), REASON, row.reason)
    return put(put(put(words, FLAGS, row.flags), FORCE_START, row.force_start), TOTAL, row.total)


@triton.jit
def token_kind(token, tables):
    """Behaviour class of tokens; ids beyond the vocabulary are inert."""
    return tl.load(tables.token_class + token, mask=(token >= 0) & (token < tables.vocab), other=0)


@triton.jit
def lookup(auto, kind, tables):
    """Automaton word after a token of this class, with its events."""
    return tl.load(tables.step + (auto & STATE_MASK) * tables.classes + kind)


@triton.jit
def replace_eos(row, token, entry, program, tables):
    """The token that stands in the output for a sampled one, with the row's cursor and reason while it is taken in."""
    wants_to_stop = ((row.auto & INSIDE) != 0) & ((entry & EOS) != 0)
    replaced = (row.cursor == NOT_FORCING) & wants_to_stop & ((row.flags & EOS_CLOSES) != 0)
    rest = tl.load(tables.end_cursor + (row.auto & STATE_MASK), mask=replaced, other=0)
    whole = tl.load(tables.end_start + (row.auto & STATE_MASK), mask=replaced, other=0)
    cursor = tl.where(replaced, tl.where(rest != 0, rest, whole), row.cursor)
    forced = tl.load(program + cursor, mask=cursor != NOT_FORCING, other=0)
    taken = tl.where(cursor != NOT_FORCING, forced, token)
    return taken, cursor, tl.where(replaced, BY_EOS, row.reason)


@triton.jit
def consume(row, entry, cursor, reason, program, tables):
    """The row after the token that stands in the output, whose entry in `step` is given."""
    forcing = cursor != NOT_FORCING
    auto, flags = entry & AUTO_MASK, row.flags & ~FRESH
    chosen = (((row.auto & INSIDE) != 0) | ((entry & BEGIN) != 0)) & ~forcing
    used, total = row.used + chosen.to(tl.int32), row.total + 1
    cursor += forcing.to(tl.int32)

    closed = (entry & (CLOSE | IMPLICIT)) != 0
    ours = closed & forcing
    own_end = tl.where((entry & CLOSE) != 0, BY_MODEL, BY_TOOL)
    outcome = tl.where(closed, tl.where(forcing, reason, own_end), row.outcome)
    outcome = tl.where((auto & INSIDE) != 0, STILL_OPEN, outcome)
    flags = tl.where(closed, tl.where(forcing, flags | FORCED_END, flags & ~FORCED_END), flags)
    force_start = tl.where(ours, 0, row.force_start)
    cursor = tl.where(ours & ((flags & NO_BREAK) != 0), NOT_FORCING, cursor)

    upcoming = tl.load(program + cursor, mask=forcing & (cursor != NOT_FORCING), other=PROGRAM_END)
    done = forcing & (upcoming == PROGRAM_END)
    cursor = tl.where(done, NOT_FORCING, cursor)
    flags = tl.where(done, flags | FRESH, flags)

    may_start = (cursor == NOT_FORCING) & ((auto & THINKING) != 0)
    at_wall = may_start & ((used >= row.most) | (total >= row.response_limit))
    in_grace = may_start & ~at_wall & ~forcing & (used >= row.grace) & ((auto & LINE_END) != 0)
    starts = at_wall | in_grace
    rest = tl.load(tables.end_cursor + (auto & STATE_MASK), mask=starts, other=0)
    whole = force_start + tl.load(tables.end_start + (auto & STATE_MASK), mask=starts, other=0)
    cursor = tl.where(starts, tl.where(rest != 0, rest, whole), cursor)
    reason = tl.where(at_wall, BY_WALL, tl.where(in_grace, BY_GRACE, reason))
    return Row(auto, used, cursor, outcome, row.forced + forcing.to(tl.int32), reason, flags, force_start, row.most,
               row.least, row.grace, total, row.response_limit)


@triton.jit
def take(row, token, program, tables):
    """One sampled token taken into a row: the row after it, and the token that stands in the output."""
    entry = lookup(row.auto, token_kind(token, tables), tables)
    taken, cursor, reason = replace_eos(row, token, entry, program, tables)
    if taken != token:
        entry = lookup(row.auto, token_kind(taken, tables), tables)
    return consume(row, entry, cursor, reason, program, tables), taken


@triton.jit
def mask_row(logits, width, row, program, tables, MASKED_LOGIT: tl.constexpr):
    """This program's share of one row of logits: every `num_programs(1)`-th block of what the row masks."""
    if (row.flags & ACTIVE) != 0:
        if row.cursor != NOT_FORCING:
            keep_one(logits, width, tl.load(program + row.cursor))
        else:
            thinking = (row.auto & THINKING) != 0
            if (thinking & (row.used < row.least)) | (~thinking & ((row.flags & FORCED_END) != 0)):
                ids = tables.ban_start + (row.auto & STATE_MASK)
                mask_ids(logits, tables.ban_ids, tl.load(ids), tl.load(ids + 1), MASKED_LOGIT)
            left = tl.minimum(row.most - row.used, row.response_limit - row.total)
            if thinking & (left >= 1) & (left <= UTF8_GUARD):
                ids = tables.guard_start + (row.auto & STATE_MASK) * UTF8_GUARD + left - 1
                mask_ids(logits, tables.guard_ids, tl.load(ids), tl.load(ids + 1), MASKED_LOGIT)
            if (row.flags & FRESH) != 0:
                mask_ids(logits, tables.eos_ids, 0, tables.eos, MASKED_LOGIT)


@triton.jit
def keep_one(logits, width, keep):
    dtype: tl.constexpr = logits.dtype.element_ty
    # Threads of the program that writes this element may read it before or after: a finite value stays what it is.
    value = tl.load(logits + keep).to(wider(dtype))
    value = tl.where(tl.abs(value) < float("inf"), value, 0.0)  # NaN is not below either
    for start in range(tl.program_id(1) * BLOCK, width, tl.num_programs(1) * BLOCK):
        ids = start + tl.arange(0, BLOCK)
        tl.store(logits + ids, tl.where(ids == keep, value, float("-inf")).to(dtype), mask=ids < width)


@triton.jit
def mask_ids(logits, ids, start, stop, MASKED_LOGIT: tl.constexpr):
    dtype: tl.constexpr = logits.dtype.element_ty
    for first in range(start + tl.program_id(1) * LIST, stop, tl.num_programs(1) * LIST):
        at = first + tl.arange(0, LIST)
        column = tl.load(ids + at, mask=at < stop, other=0)
        value = tl.load(logits + column, mask=at < stop, other=0.0).to(wider(dtype))
        value = tl.where(value < MASKED_LOGIT, value, MASKED_LOGIT)
        tl.store(logits + column, value.to(dtype), mask=at < stop)


@triton.constexpr_function
def wider(dtype):
    """The dtype to compute in: float16 and bfloat16 have no arithmetic of their own everywhere."""
    return tl.float64 if dtype == tl.float64 else tl.float32
