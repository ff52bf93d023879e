"""The batched attention against a naive one, one row and one key at a time."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.cpu import attention_plan
from sglang_ext.cpu.attention_call import Workspace, attend
from sglang_ext.cpu.attention_plan import Batch, Kind, draft_tree, plan

SLOTS = 700
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """One call: a batch over a poisoned cache, where slots that no request owns are NaN."""

    batch: Batch
    kind: Kind
    query: torch.Tensor  # [rows, query heads, width]
    keys: torch.Tensor  # [slots, key heads, width]
    values: torch.Tensor  # [slots, key heads, value width]
    cap: float
    sinks: torch.Tensor | None


def _tree(draw: st.DrawFn, requests: int, n: int) -> torch.Tensor:
    tree = torch.zeros(requests, n, n, dtype=torch.bool)
    for request in range(requests):
        for i in range(n):
            if i:
                tree[request, i] = tree[request, draw(st.integers(0, i - 1))]
            tree[request, i, i] = True
    return tree


@st.composite
def cases(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["decode", "prefill", "chain", "tree", "encoder"]))
    requests = draw(st.integers(1, 6))
    first = torch.tensor(draw(st.lists(st.sampled_from([0, 1, 7, 40]), min_size=requests, max_size=requests)))
    drafts = draw(st.integers(1, 9))
    rows = torch.full((requests,), drafts if mode in ("chain", "tree") else 1)
    if mode in ("prefill", "encoder"):
        rows = torch.tensor(draw(st.lists(st.integers(1, 50), min_size=requests, max_size=requests)))
        first = first * (mode == "prefill")
    window = draw(st.sampled_from([-1, -1, 0, 3, 20])) if mode != "encoder" else -1
    heads, group, width, value_width = (draw(st.sampled_from(options)) for options in
                                        ([1, 2, 3], [1, 2, 3], [8, 16], [8, 24]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    order = torch.randperm(SLOTS - 1) if draw(st.booleans()) else torch.arange(SLOTS - 1)
    owned = order[: int((first + rows).sum())] + 1
    columns = int((first + rows).max())
    slots = torch.zeros(requests, columns, dtype=torch.int32)  # as in req_to_token, what follows a request is stale
    for request, part in enumerate(owned.split((first + rows).tolist())):
        slots[request, : len(part)] = part
    keys = torch.full((SLOTS, heads, width), float("nan"), dtype=dtype)
    values = torch.full((SLOTS, heads, value_width), float("nan"), dtype=dtype)
    keys[owned] = torch.randn(len(owned), heads, width).to(dtype)
    values[owned] = torch.randn(len(owned), heads, value_width).to(dtype)
    query = torch.randn(int(rows.sum()), heads * group, width).to(dtype)
    tree = _tree(draw, requests, drafts) if mode == "tree" else None
    sinks = torch.randn(heads * group) if draw(st.booleans()) else None
    return Case(Batch(slots, first, rows, tree), Kind(window, mode != "encoder"), query, keys, values,
                draw(st.sampled_from([0.0, 0.0, 1.5])), sinks)


def _sees(batch: Batch, kind: Kind, request: int, row: int, key: int) -> bool:
    first = int(batch.first[request])
    position, at, sees = first + row, key, True
    if batch.tree is not None:
        tree = batch.tree[request]
        position = first + int(tree[row].sum()) - 1
        if key >= first:
            sees, at = bool(tree[row, key - first]), first + int(tree[key - first].sum()) - 1
    elif kind.causal:
        sees = key <= position
    return sees and (kind.window < 0 or at >= position - kind.window)


def naive(case: Case, scale: float) -> torch.Tensor:
    """[rows, query heads, value width] in float64."""
    out, start = [], 0
    group = case.query.shape[1] // case.keys.shape[1]
    for request, (first, rows) in enumerate(zip(case.batch.first.tolist(), case.batch.rows.tolist(), strict=True)):
        own = case.batch.slots[request, : first + rows].long()
        keys = case.keys[own].double().repeat_interleave(group, 1)
        values = case.values[own].double().repeat_interleave(group, 1)
        for row in range(rows):
            scores = torch.einsum("hd,nhd->hn", case.query[start + row].double(), keys) * scale
            if case.cap:
                scores = case.cap * torch.tanh(scores / case.cap)
            seen = torch.tensor([_sees(case.batch, case.kind, request, row, key) for key in range(first + rows)])
            scores[:, ~seen] = float("-inf")
            if case.sinks is not None:
                scores = torch.cat([scores, case.sinks.double()[:, None]], 1)
            weights = scores.softmax(-1)[:, : first + rows]
            out.append(torch.einsum("hn,nhd->hd", weights, values))
        start += rows
    return torch.stack(out)


def batched(case: Case, scale: float) -> tuple[torch.Tensor, int]:
    """[rows, query heads, value width], and how many tiles it took."""
    heads = (case.query.shape[1], case.keys.shape[1])
    tiles = plan(case.batch, case.kind, heads, case.query.shape[2], case.query.dtype)
    out = torch.full((*case.query.shape[:2], case.values.shape[2]), float("nan"), dtype=case.query.dtype)
    workspace = Workspace()
    for tile in tiles:
        out[tile.where] = attend(case.query[tile.where], case.keys, case.values, tile, scale, workspace, case.cap,
                                 case.sinks)
    return out, len(tiles)


@given(case=cases(), padding=st.sampled_from([0, 2000, 200_000]), most_rows=st.sampled_from([4, 128]))
@settings(max_examples=300, deadline=None)
def test_equal_to_naive_attention(case: Case, padding: int, most_rows: int) -> None:
    with mock.patch.object(attention_plan, "PADDING", padding), \
            mock.patch.object(attention_plan, "TILE_ROWS", (2, most_rows)):
        found, _ = batched(case, 0.3)
    torch.testing.assert_close(found.double(), naive(case, 0.3), atol=TOLERANCE[case.query.dtype], rtol=1e-2)


def _decode(lens: list[int]) -> tuple[torch.Tensor, int]:
    slots = torch.randint(1, SLOTS, (len(lens), max(lens)))
    keys, values = torch.randn(SLOTS, 3, 64), torch.randn(SLOTS, 3, 64)
    batch = Batch(slots, torch.tensor(lens) - 1, torch.ones(len(lens), dtype=torch.int64))
    case = Case(batch, Kind(), torch.randn(len(lens), 9, 64), keys, values, 0.0, None)
    return batched(case, 0.125)


def test_similar_lengths_are_one_call_and_ragged_ones_few() -> None:
    assert _decode([100 + i for i in range(16)])[1] == 1
    assert 1 < _decode([10, 600] * 32)[1] <= 4


@pytest.mark.parametrize("slots", [torch.arange(5, 105), torch.randperm(100) + 5])
def test_a_single_row(slots: torch.Tensor) -> None:
    """In half precision its slots are read in place if they follow each other."""
    keys = torch.full((SLOTS, 2, 16), float("nan")).bfloat16()
    keys[slots] = torch.randn(100, 2, 16).bfloat16()
    batch = Batch(slots[None], torch.tensor([99]), torch.tensor([1]))
    case = Case(batch, Kind(), torch.randn(1, 6, 16).bfloat16(), keys, keys, 0.0, None)
    (tile,) = plan(batch, Kind(), (6, 2), 16, torch.bfloat16)
    assert (tile.span is not None) == (slots[0] + 99 == slots[-1] and bool((slots.diff() == 1).all()))
    torch.testing.assert_close(batched(case, 0.3)[0].double(), naive(case, 0.3), atol=3e-2, rtol=1e-2)


def test_long_prompts_are_cut_and_skip_what_no_row_sees() -> None:
    batch = Batch(torch.arange(1, 601)[None], torch.tensor([300]), torch.tensor([300]))
    tiles = plan(batch, Kind(window=20), (9, 3), 64, torch.float32)
    assert [tuple(tile.slots.shape) for tile in tiles] == [(2, 148), (1, 64)]
    full = plan(batch, Kind(), (9, 3), 64, torch.float32)
    assert [tuple(tile.slots.shape) for tile in full] == [(1, 556), (1, 428), (1, 600)]


def test_tree_masks_in_both_layouts() -> None:
    """The drafts' own square, and the layout with cached positions before it."""
    lens, drafts = torch.tensor([3, 5]), 2
    square = torch.tensor([[[True, False], [True, True]], [[True, False], [False, True]]])
    full = torch.cat([torch.cat([torch.ones(drafts, int(n), dtype=torch.bool), square[i]], 1).flatten()
                      for i, n in enumerate(lens)])
    for mask in (square.flatten(), full):
        found = draft_tree(mask, lens, drafts)
        assert found is not None
        assert torch.equal(found, square)
    assert draft_tree(None, lens, drafts) is None
    with pytest.raises(ValueError, match="expected 8, or 24"):
        draft_tree(full[:-1], lens, drafts)
