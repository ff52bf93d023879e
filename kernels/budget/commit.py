"""Take what a draft's verification accepted into the think budget's state: its step after sampling."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from . import device, host
from .layout import BudgetState, Tables
from .walk import check_nodes


def commit(tokens: torch.Tensor, last: torch.Tensor, parents: torch.Tensor | None, rows: torch.Tensor,
           nodes: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Make the state after the accepted nodes, and after the token sampled at the last of them, the request's state.

    Defined by `reference.commit_row`. One launch, without synchronisation or allocation. Both `tokens` and `last` are
    corrected in place, for the requests with a budget: `last` moves back where an accepted token does not stand in the
    output (an EOS that the draft foresaw and the end marker replaces), and the token at `last` becomes the one that
    does. Whatever else the engine derives from the acceptance, it derives from the corrected `last`.

    Args:
        tokens: [n, width] int32 or int64, contiguous, the token sampled at each accepted node; at the nodes before
            `last` that is the draft token of the next one. Other nodes are not read.
        last: [n] int, the last accepted node of each request; 0 where no draft token was accepted.
        parents, rows, nodes, state, tables: as `walk` had them.
    """
    check_nodes(nodes, tokens, parents)
    if not device.launches(tokens):
        host.commit(tokens, last, parents, rows, nodes, state, tables)
        return
    n, width = tokens.shape
    _commit_kernel[(n,)](tokens, last, parents, rows, nodes, state.operands, tables.operands, width, num_warps=1)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["tokens", "last", "parents", "rows"])
def _commit_kernel(
    tokens,  # [n, width] int
    last,  # [n] int
    parents,  # [n, width] int32, or None for a chain
    rows,  # [n] int
    nodes,  # [n, width, WORDS] int32, and more
    state,  # StateOperands
    tables,  # Operands
    width,
):
    i = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows + i).to(tl.int64)
    if slot < 0:
        return
    lanes = tl.arange(0, device.WORDS)
    place = state.words + slot * device.WORDS
    if (tl.load(place + device.FLAGS) & device.ACTIVE) == 0:
        return
    accepted = tl.load(last + i).to(tl.int32)
    node = accepted
    words = tl.load(nodes + (i * width + node) * device.WORDS + lanes)
    while (device.get(words, device.FLAGS) & device.ACTIVE) == 0:
        parent = node - 1
        if parents is not None:
            parent = tl.load(parents + i * width + node)
        node = tl.where((parent >= 0) & (parent < node), parent, 0)
        words = tl.load(nodes + (i * width + node) * device.WORDS + lanes)
    token = tl.load(tokens + i * width + node).to(tl.int32)
    row, taken = device.take(device.unpack(words), token, state.program, tables)
    tl.store(place + lanes, device.pack(words, row))
    tl.store(tokens + i * width + node, taken, mask=taken != token)
    tl.store(last + i, node, mask=node != accepted)
