"""Launch every kernel before the first request, so that no step waits for the compiler."""

from __future__ import annotations

import torch

from .advance import advance
from .commit import commit
from .layout import BudgetState, Tables
from .mask import mask_logits
from .walk import walk

ROW_STRIDES = (16, 17)
"""Triton compiles one kernel for row strides that are divisible by 16, and another one for all others."""


def prewarm(state: BudgetState, tables: Tables, vocab: int, dtypes: tuple[torch.dtype, ...], *,
            drafts: bool = False) -> None:
    """Launch all kernels that steps on this state can come to, each on one idle row: no data is read or changed.

    A kernel is compiled for the types of its tensors, for whether vocabulary and row stride are divisible by 16, and
    for whether parents are given. Neither the batch nor the width of a draft matters. Sampled tokens may be int32 or
    int64; slots, drafts and last nodes are int64, as engines have them.

    Args:
        state, tables: on the device.
        vocab: columns of the logits.
        dtypes: that logits may have.
        drafts: whether steps verify drafts too.
    """
    rows = torch.full((2,), -1, dtype=torch.int64, device=state.words.device)
    tokens = [torch.zeros((1, 2), dtype=kind, device=rows.device) for kind in (torch.int32, torch.int64)]
    parents = torch.zeros((1, 2), dtype=torch.int32, device=rows.device)
    last, nodes = torch.zeros_like(rows[:1]), state.allocate_nodes(1, 2)
    for dtype in dtypes:
        buffer = torch.empty(vocab + max(ROW_STRIDES), dtype=dtype, device=rows.device)
        for stride in ROW_STRIDES:  # rows overlap: nothing is written
            logits = buffer.as_strided((2, vocab), (stride, 1))
            mask_logits(logits, rows, state, tables)
            for above in (None, parents) if drafts else ():
                walk(logits, tokens[1], above, rows[:1], nodes, state, tables)
    for sampled in tokens:
        advance(sampled[0], rows, state, tables)
        for above in (None, parents) if drafts else ():
            commit(sampled, last, above, rows[:1], nodes, state, tables)
