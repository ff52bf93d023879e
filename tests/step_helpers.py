"""The helpers that run in every step, each ready to be called on a device: a real GPU, or a fake one.

`HELPERS` has for each a function that makes its inputs on a device and returns the call. What it makes beforehand is
made in pieces that the host may wait for; the call may not wait. A helper whose module needs sglang is left out where
there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang_ext.budget.kernels import BudgetState, Tables, advance, commit, mask_logits, parents_of, walk
from sglang_ext.budget.kernels.layout import WORDS
from sglang_ext.patches import forward_batch
from sglang_ext.patches.sampling import _DeviceWords
from sglang_ext.patches.verification import Verification

try:
    from sglang_ext.uag.draft import Draft, accept_index, full_mask
except ImportError:
    Draft = None

N, WIDTH, VOCAB, SLOTS = 3, 4, 48, 9
Call = Callable[[], Any]


def ids(device: str, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def state_on(device: str) -> BudgetState:
    return BudgetState(ids(device, SLOTS, WORDS, dtype=torch.int32), ids(device, 99, dtype=torch.int32), 4, 8)


def tables_on(device: str) -> Tables:
    sizes = (VOCAB, 70, 7, 7, 8, 5, 22, 5, 2)
    return Tables(*(ids(device, size, dtype=torch.int32) for size in sizes))


class Kernels:
    """Operands of the kernels: every row is idle."""

    def __init__(self, device: str) -> None:
        self.state, self.tables = state_on(device), tables_on(device)
        self.rows = torch.full((N,), -1, device=device)
        self.logits = torch.zeros(N * WIDTH, VOCAB, device=device)
        self.tokens, self.last = ids(device, N, WIDTH), ids(device, N)
        self.nodes = self.state.allocate_nodes(N, WIDTH)
        _ = self.state.operands, self.tables.operands

    def mask(self) -> None:
        mask_logits(self.logits[:N], self.rows, self.state, self.tables)

    def advance(self) -> None:
        advance(self.tokens[:, 0].contiguous(), self.rows, self.state, self.tables)

    def walk(self) -> None:
        walk(self.logits, self.tokens, None, self.rows, self.nodes, self.state, self.tables)

    def commit(self) -> None:
        commit(self.tokens, self.last, None, self.rows, self.nodes, self.state, self.tables)


def staging(device: str) -> Call:
    """Rows of requests that enter: made on the host, and written on the device."""
    target: Any = SimpleNamespace(state=state_on(device), held=[None] * SLOTS)
    reqs = [SimpleNamespace(kv=SimpleNamespace(req_pool_idx=slot), think=None) for slot in range(N)]

    def call() -> None:
        with mock.patch.object(forward_batch.service, "current"):
            staged = forward_batch._stage(reqs, target)
        assert staged is not None
        staged.flush(target)

    return call


def reporting(device: str) -> Call:
    """A step's words, gathered; sglang copies them with the tokens."""
    state, rows, taken = state_on(device), ids(device, N), ids(device, N, dtype=torch.int32)
    return lambda: _DeviceWords(state.words[rows], taken, []).copy_to_host(lambda tensor: tensor)


def verification(device: str, topk: int) -> Call:
    """A verification from sglang's description of its drafts to what was accepted."""
    link = ids(device, N, WIDTH)
    verify_input = SimpleNamespace(draft_token=ids(device, N * WIDTH), draft_token_num=WIDTH, tree_topk=topk,
                                   retrieve_next_token=link, retrieve_next_sibling=link)
    batch = SimpleNamespace(seq_lens=ids(device, N), req_pool_indices=torch.full((N,), -1, device=device))
    target: Any = SimpleNamespace(state=state_on(device), tables=tables_on(device))
    target.nodes = target.state.allocate_nodes
    logits = torch.zeros(N * WIDTH, VOCAB, device=device)
    predict, index = (ids(device, *shape, dtype=torch.int32) for shape in ((N * WIDTH,), (N, WIDTH)))
    lens = torch.ones(N, dtype=torch.int32, device=device)

    def call() -> Any:
        step = Verification.of(target, verify_input, batch, None, [])
        step.apply(logits)
        return step.commit(predict, lens, index)

    return call


def parents(device: str) -> Call:
    child, sibling = ids(device, N, WIDTH), torch.full((N, WIDTH), -1, device=device)
    return lambda: parents_of(child, sibling)


def round_helpers(device: str, n: int, width: int) -> dict[str, Call]:
    """The tensors of a UAG round, in the order of the round; no helpers where its modules cannot be imported."""
    if Draft is None:
        return {}
    chains = [[1] * (1 + i % width) for i in range(n - 1)] + [[1] * width]
    laid = Draft.of(chains, width, device)
    before, rows, table = ids(device, n), ids(device, n), ids(device, 9, 99, dtype=torch.int32)
    lens = torch.ones(n, dtype=torch.int32, device=device)
    sampled = ids(device, n * width, dtype=torch.int32)
    return {
        "drafts to the device": lambda: Draft.of(chains, width, device),
        "no drafts": lambda: Draft.without(before, width),
        "ids": lambda: laid.input_ids,
        "positions": lambda: laid.positions(before),
        "slots": lambda: laid.slots(table, rows, ids(device, n * width)),
        "links": laid.links,
        "mask of drafts": lambda: full_mask([500 + i for i in range(n)], width, device),
        "acceptance": lambda: laid.accept(sampled),
        "accepted places": lambda: accept_index(lens, width),
    }


def _uag(name: str) -> Callable[[str], Call]:
    return lambda device: round_helpers(device, N, WIDTH)[name]


HELPERS: dict[str, Callable[[str], Call]] = {
    "mask": lambda device: Kernels(device).mask,
    "advance": lambda device: Kernels(device).advance,
    "walk": lambda device: Kernels(device).walk,
    "commit": lambda device: Kernels(device).commit,
    "rows that enter": staging,
    "words to the host": reporting,
    "verification of chains": lambda device: verification(device, 1),
    "verification of trees": lambda device: verification(device, -1),
    "parents of a tree": parents,
    **{name: _uag(name) for name in round_helpers("cpu", N, WIDTH)},
}
