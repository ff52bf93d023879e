"""Mask logits by each row's think budget: the step before sampling."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from . import device, host
from .layout import BudgetState, Tables
from .reference import masked_logit


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Apply every row's budget to its logits, in place. Defined by `reference.mask_row`.

    One launch. It neither synchronises nor allocates, so that it can be captured in a CUDA graph. An engine that knows
    that no request of the batch has a budget leaves the call out.

    Args:
        logits: [n, vocab] floating point, any row stride; vocab may be wider than the tokenizer's.
        rows: [n] int, the slot of each row of logits; negative for an idle row. A slot may not occur twice.
        state, tables: on the device of the logits.
    """
    check_logits(logits, tables)
    if not device.launches(logits):
        host.mask(logits, rows, state, tables)
        return
    n, width = logits.shape
    masked = masked_logit(torch.finfo(logits.dtype).min)
    _mask_kernel[(n, device.parts(width))](
        logits, row_stride(logits), width, rows, state.operands, tables.operands, masked, num_warps=4)


def check_logits(logits: torch.Tensor, tables: Tables) -> None:
    """Refuse what a kernel would turn into a write beyond the row."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits must be a matrix with contiguous rows, got shape {tuple(logits.shape)} with strides "
                         f"{logits.stride()}")
    if logits.shape[1] < tables.token_class.numel():
        raise ValueError(f"logits have {logits.shape[1]} columns, the tables know {tables.token_class.numel()} ids: "
                         "lift the automaton to the ids that the model can produce")


def row_stride(logits: torch.Tensor) -> int:
    """Elements from one row to the next. That of a single row is arbitrary, and 1 would compile a kernel of its own."""
    return logits.stride(0) if logits.shape[0] > 1 else logits.shape[1]


@triton.jit(do_not_specialize_on_alignment=["rows"])
def _mask_kernel(
    logits,  # [n, width] float, row stride `stride`
    stride,
    width,
    rows,  # [n] int
    state,  # StateOperands
    tables,  # Operands
    MASKED_LOGIT: tl.constexpr,  # value of a masked id
):
    i = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows + i).to(tl.int64)
    if slot < 0:
        return
    words = tl.load(state.words + slot * device.WORDS + tl.arange(0, device.WORDS))
    device.mask_row(logits + i * stride, width, device.unpack(words), state.program, tables, MASKED_LOGIT)
