"""Draft trees: parents from links, and what a verification does on the device."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels import parents_of
from torch._subclasses.fake_tensor import FakeTensorMode


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Parents of a few trees of one width; parents come first, -1 hangs on nothing."""
    width = draw(st.integers(1, 20))
    return [[-1, *(draw(st.integers(-1, j - 1)) for j in range(1, width))] for _ in range(draw(st.integers(1, 5)))]


def links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node."""
    child, sibling = [-1] * len(parents), [-1] * len(parents)
    for parent in range(len(parents)):
        children = [i for i, p in enumerate(parents) if p == parent]
        child[parent] = children[0] if children else -1
        for a, b in pairwise(children):
            sibling[a] = b
    return child, sibling


@settings(deadline=None)
@given(trees())
def test_parents(parents: list[list[int]]) -> None:
    child, sibling = (torch.tensor(x) for x in zip(*map(links, parents), strict=True))
    assert parents_of(child, sibling).tolist() == parents


def test_a_verification_stays_on_the_device() -> None:
    """Fake CUDA tensors raise on a read of their values and on mixed devices."""
    from sglang_ext.patches import verification

    n, width, depth = 3, 5, 4
    committed: list[torch.Size] = []
    with FakeTensorMode():
        kinds = {"device": "cuda", "dtype": torch.int64}
        link = torch.zeros(n, width, **kinds)
        verify_input = SimpleNamespace(draft_token=torch.zeros(n * width, **kinds), draft_token_num=width,
                                       tree_topk=-1, retrieve_next_token=link, retrieve_next_sibling=link)
        batch = SimpleNamespace(seq_lens=torch.zeros(n, **kinds), req_pool_indices=torch.zeros(n, **kinds))
        device = SimpleNamespace(state=None, tables=None,
                                 nodes=lambda a, b: torch.zeros(a, b, 16, device="cuda", dtype=torch.int32))
        step = verification.Verification.of(device, verify_input, batch, None, [])  # type: ignore[arg-type]
        original, verification.commit = verification.commit, lambda tokens, last, *_: committed.append(last.shape)
        try:
            predict, lens, index = step.commit(torch.zeros(n * width, device="cuda", dtype=torch.int32),
                                               torch.ones(n, device="cuda", dtype=torch.int32),
                                               torch.zeros(n, depth, device="cuda", dtype=torch.int32))
        finally:
            verification.commit = original
        assert (predict.shape, lens.shape, index.shape) == ((n * width,), (n,), (n, depth))
        assert lens.dtype == index.dtype == torch.int32
    assert committed == [(n,)]
