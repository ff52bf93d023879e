"""Take sampled tokens into the think budget's state: the step after sampling."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from . import device, host
from .layout import BudgetState, Tables


def advance(tokens: torch.Tensor, rows: torch.Tensor, state: BudgetState, tables: Tables) -> None:
    """Take one token per row into the state and replace it, in place, by the one that stands in the output.

    Defined by `reference.advance_row`. One launch, without synchronisation or allocation. It has to come before the
    model's next forward pass, which reads the token that stands in the output: so it cannot be one launch with the
    next step's mask, which comes after that pass.

    Args:
        tokens: [n] int32 or int64, sampled ids.
        rows: [n] int, the slot of each token's row; negative for an idle row. A slot may not occur twice.
        state, tables: on the device of the tokens.
    """
    if not device.launches(tokens):
        host.advance(tokens, rows, state, tables)
        return
    _advance_kernel[(tokens.numel(),)](tokens, rows, state.operands, tables.operands, num_warps=1)


@triton.jit(do_not_specialize_on_alignment=["tokens", "rows"])
def _advance_kernel(
    tokens,  # [n] int
    rows,  # [n] int
    state,  # StateOperands
    tables,  # Operands
):
    i = tl.program_id(0)
    slot = tl.load(rows + i).to(tl.int64)
    if slot < 0:
        return
    token = tl.load(tokens + i).to(tl.int32)
    place = state.words + slot * device.WORDS + tl.arange(0, device.WORDS)
    words = tl.load(place)
    if (device.get(words, device.FLAGS) & device.ACTIVE) != 0:
        row, taken = device.take(device.unpack(words), token, state.program, tables)
        tl.store(place, device.pack(words, row))
        tl.store(tokens + i, taken, mask=taken != token)
