"""Mask the logits of a draft's verification: speculative decoding's step before sampling."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from . import device, host
from .layout import WORDS, BudgetState, Tables
from .mask import check_logits, row_stride
from .reference import masked_logit

CHUNK = tl.constexpr(16)  # nodes whose behaviour classes are loaded at once


def walk(logits: torch.Tensor, draft: torch.Tensor, parents: torch.Tensor | None, rows: torch.Tensor,
         nodes: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Mask each row of a verification with the state after its ancestors; leave every node's state for `commit`.

    Defined by `reference.walk_row` and `reference.mask_row`. One launch, without synchronisation or allocation; the
    state does not change. One step of a chain with `k` draft tokens, where the sampler fills `sampled` [n, k + 1]::

        walk(logits, draft, None, rows, nodes, state, tables)
        sampled = sampler(logits).view(n, k + 1)
        last = (draft[:, 1:] == sampled[:, :-1]).int().cumprod(1).sum(1)
        commit(sampled, last, None, rows, nodes, state, tables)
        # the output of request i is sampled[i, : last[i] + 1]

    Match the draft with what was sampled, before `commit` replaces anything. Where an EOS was sampled that the end
    marker replaces, the draft ends: it may have foreseen the EOS, which is not in the output (`commit` moves `last`
    back), or the end marker, which the model did not choose (the comparison rejects it).

    Args:
        logits: [n * width, vocab] floating point, any row stride; row i * width + j is node j of request i.
        draft: [n, width] int, contiguous. Column 0 stands for the last token of the output, which the state has
            already, and is not looked at. A negative id is padding.
        parents: [n, width] int32, contiguous, each node's parent among the nodes before it; anything else is padding.
            None for a chain. Column 0 is not looked at.
        rows: [n] int, the slot of each request; negative for an idle one. A slot may not occur twice.
        nodes: int32 from `BudgetState.allocate_nodes`, with room for n * width nodes; which then are its first ones,
            request by request, whatever its own shape. Those of requests without a budget are undefined.
        state, tables: on the device of the logits.
    """
    check_logits(logits, tables)
    n, width = draft.shape
    if logits.shape[0] != n * width:
        raise ValueError(f"{n} requests with {width} nodes need {n * width} rows of logits, got {logits.shape[0]}")
    check_nodes(nodes, draft, parents)
    if not device.launches(logits):
        host.walk(logits, draft, parents, rows, nodes, state, tables)
        return
    masked = masked_logit(torch.finfo(logits.dtype).min)
    vocab = logits.shape[1]
    _walk_kernel[(n, device.parts(vocab))](
        logits, row_stride(logits), vocab, draft, parents, rows, nodes, state.operands, tables.operands, width, masked,
        num_warps=4)


def check_nodes(nodes: torch.Tensor, draft: torch.Tensor, parents: torch.Tensor | None) -> None:
    """Refuse what a kernel would read or write in the wrong place."""
    if not draft.is_contiguous() or (parents is not None and not parents.is_contiguous()):
        raise ValueError("the tokens and the parents of nodes must be contiguous")
    if parents is not None and parents.shape != draft.shape:
        raise ValueError(f"tokens of shape {tuple(draft.shape)} have parents of shape {tuple(parents.shape)}")
    room = nodes.numel() // WORDS if nodes.is_contiguous() else 0
    if room < draft.numel():
        raise ValueError(f"{draft.numel()} nodes, but contiguous room for {room}")


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["draft", "parents", "rows"])
def _walk_kernel(
    logits,  # [n * width, vocab] float, row stride `stride`
    stride,
    vocab,
    draft,  # [n, width] int
    parents,  # [n, width] int32, or None for a chain
    rows,  # [n] int
    nodes,  # [n, width, WORDS] int32, and more
    state,  # StateOperands
    tables,  # Operands
    width,
    MASKED_LOGIT: tl.constexpr,  # value of a masked id
):
    i = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows + i).to(tl.int64)
    if slot < 0:
        return
    lanes = tl.arange(0, device.WORDS)
    words = tl.load(state.words + slot * device.WORDS + lanes)
    if (device.get(words, device.FLAGS) & device.ACTIVE) == 0:
        return
    if parents is not None:
        parents += i * width
    draft += i * width
    nodes += i * width * device.WORDS
    logits += i * width * stride
    row = device.unpack(words)
    kinds = tl.zeros((CHUNK,), tl.int32)
    for j in range(width):
        if parents is not None:
            # Every program of the request writes the same words, and reads them back itself.
            tl.store(nodes + j * device.WORDS + lanes, device.pack(words, row))
            tl.debug_barrier()
        else:
            tl.store(nodes + j * device.WORDS + lanes, device.pack(words, row),
                     mask=(lanes < device.WORDS) & (tl.program_id(1) == 0))
        device.mask_row(logits + j * stride, vocab, row, state.program, tables, MASKED_LOGIT)

        # The next node. After the last one there is none: its token reads as padding.
        if ((CHUNK - 1) & j) == 0:  # the constant is on the left: the interpreter has a plain integer for j
            kinds = _kinds(draft, j + 1, width, tables)
        parent = j
        if parents is not None:
            parent = tl.load(parents + j + 1, mask=j + 1 < width, other=-1)
        orphan = (parent < 0) | (parent > j)
        if parents is not None:
            row = _reload(row, nodes + tl.where(orphan, 0, parent) * device.WORDS)
        token = tl.load(draft + j + 1, mask=j + 1 < width, other=-1).to(tl.int32)
        kind = tl.sum(tl.where(tl.arange(0, CHUNK) == ((CHUNK - 1) & j), kinds, 0), 0)
        row = _step(row, orphan | (token < 0), token, kind, state.program, tables)


@triton.jit
def _kinds(draft, first, width, tables):
    """Behaviour classes of a chunk of a request's draft. All are loaded at once, as each is a cache miss."""
    node = first + tl.arange(0, CHUNK)
    return device.token_kind(tl.load(draft + node, mask=node < width, other=-1), tables)


@triton.jit
def _reload(row, at):
    """The row in the state whose words are at `at`. Its limits are the same."""
    return device.Row(
        tl.load(at + device.AUTO), tl.load(at + device.USED), tl.load(at + device.CURSOR), tl.load(at + device.OUTCOME),
        tl.load(at + device.FORCED), tl.load(at + device.REASON), tl.load(at + device.FLAGS),
        tl.load(at + device.FORCE_START), row.most, row.least, row.grace, tl.load(at + device.TOTAL),
        row.response_limit)


@triton.jit
def _step(row, padding, token, kind, program, tables):
    """The state of a node whose parent's is given."""
    entry = device.lookup(row.auto, kind, tables)
    taken, cursor, reason = device.replace_eos(row, token, entry, program, tables)
    dead = padding | (taken != token) | ((row.flags & device.ACTIVE) == 0)
    after = device.consume(row, entry, cursor, reason, program, tables)
    return device.Row(
        tl.where(dead, row.auto, after.auto), tl.where(dead, row.used, after.used),
        tl.where(dead, row.cursor, after.cursor), tl.where(dead, row.outcome, after.outcome),
        tl.where(dead, row.forced, after.forced), tl.where(dead, row.reason, after.reason),
        tl.where(dead, row.flags & ~device.ACTIVE, after.flags), tl.where(dead, row.force_start, after.force_start),
        row.most, row.least, row.grace, tl.where(dead, row.total, after.total), row.response_limit)
