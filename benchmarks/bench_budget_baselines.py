"""What the think budget's kernels are compared with. Both were written for this comparison; neither is anyone's code.

`Scan` follows the design of sglang's ThinkingBudgetLogitProcessor: the host rebuilds each sequence and looks back for
the last marker. `Positions` follows the design of the budget in vLLM's model runner V2: positions of the last markers
for each request, a kernel that looks through new history, and one that looks through each row's own draft prefix.
Both know only markers that are one id, and force only the end marker.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

HUGE = 1e9


class Scan:
    """[host] One Python loop per budgeted row over its whole sequence."""

    def __init__(self, prompt: list[int], outputs: list[list[int]], budgets: list[int | None], start: int, end: int):
        self.prompt, self.outputs, self.budgets, self.start, self.end = prompt, outputs, budgets, start, end

    def mask(self, logits: torch.Tensor, draft: list[list[int]]) -> None:
        """`draft` without its first token, which the outputs have already; row i * width + j sees j draft tokens."""
        width = len(draft[0]) + 1
        for i, budget in enumerate(self.budgets):
            if budget is None:
                continue
            for j in range(width):
                ids = [*self.prompt, *self.outputs[i], *draft[i][:j]]
                opened = self._open_block(ids)
                if opened >= 0 and len(ids) - opened - 1 >= budget:
                    row = logits[i * width + j]
                    row.fill_(-torch.inf)
                    row[self.end] = 0.0

    def _open_block(self, ids: list[int]) -> int:
        for at in reversed(range(len(ids))):
            if ids[at] == self.start:
                return at
            if ids[at] == self.end:
                return -1
        return -1


class Positions:
    """[device] Two launches a step; numpy in their place on a CPU."""

    def __init__(self, history: torch.Tensor, lengths: torch.Tensor, fresh: int, budgets: torch.Tensor, start: int,
                 end: int):
        n = len(lengths)
        self.history, self.lengths, self.budgets = history, lengths, budgets  # [n, most], [n], [n] with -1 for none
        self.scanned = lengths - fresh  # [n]; not moved on, so that a step can be repeated
        self.start, self.end = start, end
        self.last_start, self.last_end = (torch.full((n,), -1, dtype=torch.int32, device=history.device)
                                          for _ in range(2))
        for i in range(n):
            ids = history[i, : int(lengths[i])]
            for last, marker in ((self.last_start, start), (self.last_end, end)):
                found = (ids == marker).nonzero()
                last[i] = int(found[-1]) if len(found) else -1

    def mask(self, logits: torch.Tensor, draft: torch.Tensor) -> None:
        n, width = draft.shape
        if logits.device.type == "cpu":
            self._mask_host(logits, draft.numpy())
            return
        _scan_kernel[(n,)](self.history, self.history.stride(0), self.lengths, self.scanned, self.last_start,
                           self.last_end, self.start, self.end, BLOCK=128, num_warps=1)
        _row_kernel[(n * width,)](logits, logits.stride(0), draft, self.lengths, self.budgets, self.last_start,
                                  self.last_end, self.start, self.end, WIDTH=width,
                                  PADDED=triton.next_power_of_2(width), num_warps=1)

    def _mask_host(self, logits: torch.Tensor, draft: np.ndarray) -> None:
        history, lengths, scanned = self.history.numpy(), self.lengths.numpy(), self.scanned.numpy()
        last_start, last_end = self.last_start.numpy(), self.last_end.numpy()
        fresh = int((lengths - scanned).max())
        at = scanned[:, None] + np.arange(fresh)
        new = np.take_along_axis(history, np.minimum(at, history.shape[1] - 1), 1)
        valid = at < lengths[:, None]
        np.maximum(last_start, np.where((new == self.start) & valid, at, -1).max(1), out=last_start)
        np.maximum(last_end, np.where((new == self.end) & valid, at, -1).max(1), out=last_end)
        node = np.arange(draft.shape[1])
        own = (node[None, :] > 0) & (node[None, :] <= node[:, None])  # [row, node]: behind the row
        place = lengths[:, None, None] + node - 1
        starts = np.where(own & (draft == self.start)[:, None], place, last_start[:, None, None]).max(2)
        ends = np.where(own & (draft == self.end)[:, None], place, last_end[:, None, None]).max(2)
        thought = lengths[:, None] + node - starts - 1
        budget = self.budgets.numpy()[:, None]
        forced = (budget >= 0) & (starts > ends) & (thought >= budget)
        for row in forced.reshape(-1).nonzero()[0].tolist():
            logits[row, self.end] = HUGE


@triton.jit
def _scan_kernel(history, stride, lengths, scanned, last_start, last_end, start, end, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    length = tl.load(lengths + i)
    opened, closed = tl.load(last_start + i), tl.load(last_end + i)
    for first in range(tl.load(scanned + i), length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        ids = tl.load(history + i.to(tl.int64) * stride + at, mask=at < length, other=-1)
        opened = tl.maximum(opened, tl.max(tl.where(ids == start, at, -1), 0))
        closed = tl.maximum(closed, tl.max(tl.where(ids == end, at, -1), 0))
    tl.store(last_start + i, opened)
    tl.store(last_end + i, closed)


@triton.jit
def _row_kernel(logits, stride, draft, lengths, budgets, last_start, last_end, start, end, WIDTH: tl.constexpr,
                PADDED: tl.constexpr):
    row = tl.program_id(0)
    i, j = row // WIDTH, row % WIDTH
    budget = tl.load(budgets + i)
    if budget < 0:
        return
    length, node = tl.load(lengths + i), tl.arange(0, PADDED)
    ids = tl.load(draft + i * WIDTH + node, mask=(node > 0) & (node <= j), other=-1)
    at = length + node - 1
    opened = tl.maximum(tl.load(last_start + i), tl.max(tl.where(ids == start, at, -1), 0))
    closed = tl.maximum(tl.load(last_end + i), tl.max(tl.where(ids == end, at, -1), 0))
    if (opened > closed) & (length + j - opened - 1 >= budget):
        tl.store(logits + row.to(tl.int64) * stride + end, 1e9)
