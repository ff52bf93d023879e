"""The operators that stand in for sglang-kernel's CPU build, against one step at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.cpu import operators, speculation


@st.composite
def forests(draw: st.DrawFn) -> tuple[torch.Tensor, list[list[int]]]:
    """Masks [bs, n, n] bool, and each node's parent, -1 for node 0 and for nodes that hang on nothing."""
    bs, n = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    parents = [[-1] + [draw(st.integers(-1, i - 1)) for i in range(1, n)] for _ in range(bs)]
    mask = torch.zeros(bs, n, n, dtype=torch.bool)
    for b in range(bs):
        for i in range(n):
            if parents[b][i] >= 0:
                mask[b, i] = mask[b, parents[b][i]]
            mask[b, i, i] = True
    return mask, parents


def _links(mask: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    bs, n = mask.shape[:2]
    positions = torch.full((bs * n,), -9)
    index, child, sibling = (torch.full((bs, n), -9) for _ in range(3))
    speculation.reconstruct_indices_from_tree_mask(mask.flatten(), lens, positions, index, child, sibling, bs, n)
    return positions, index, child, sibling


@given(forest=forests())
@settings(max_examples=100, deadline=None)
def test_links_of_a_tree(forest: tuple[torch.Tensor, list[list[int]]]) -> None:
    mask, parents = forest
    bs, n = mask.shape[:2]
    lens = torch.arange(bs) * 10
    positions, index, child, sibling = _links(mask, lens)
    assert index.flatten().tolist() == list(range(bs * n))
    for b in range(bs):
        for i in range(n):
            children = [k for k in range(n) if parents[b][k] == i]
            siblings = [k for k in range(i + 1, n) if parents[b][k] == parents[b][i] >= 0]
            assert child[b, i] == (children[0] if children else -1)
            assert sibling[b, i] == (siblings[0] if siblings else -1)
            assert positions.view(bs, n)[b, i] == lens[b] + mask[b, i].sum() - 1


@st.composite
def grown(draw: st.DrawFn) -> tuple[int, int, int, torch.Tensor, torch.Tensor]:
    """topk, steps, nodes, `parent_list` and `selected_index` as sglang's draft workers hand them over.

    Step 0 scores group 0; each later step scores a group for each of `topk` candidates of the step before.
    """
    topk, steps, bs = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    total = topk + (steps - 1) * topk * topk
    n = 1 + draw(st.integers(1, total))
    parents, selected = [], []
    for _ in range(bs):
        grew_from, low, high = [-1], 0, topk
        for _ in range(steps - 1):
            chosen = draw(st.lists(st.integers(low, high - 1), min_size=topk, max_size=topk, unique=True))
            grew_from += chosen
            low, high = high, high + topk * topk
        parents.append(grew_from if steps > 1 else [])
        selected.append(sorted(draw(st.lists(st.integers(0, total - 1), min_size=n - 1, max_size=n - 1, unique=True))))
    return topk, steps, n, torch.tensor(parents, dtype=torch.int64).view(bs, -1), torch.tensor(selected)


def _ancestry(candidate: int, grew_from: list[int], selected: list[int], topk: int) -> list[int]:
    """Nodes from a candidate's own up to node 0, which is left out; it ends where a candidate is no node."""
    path = []
    while candidate in selected:
        path.append(selected.index(candidate) + 1)
        if candidate < topk:
            break
        candidate = grew_from[candidate // topk]
    return path


@given(tree=grown())
@settings(max_examples=150, deadline=None)
def test_trees_of_a_draft_model(tree: tuple[int, int, int, torch.Tensor, torch.Tensor]) -> None:
    topk, steps, n, parent_list, selected = tree
    bs = len(selected)
    lens = torch.arange(bs) * 10
    mask = torch.ones(bs * n * n, dtype=torch.bool)
    positions = torch.full((bs * n,), -9)
    index, child, sibling = (torch.full((bs, n), -1) for _ in range(3))
    speculation.build_tree(parent_list, selected, lens, mask, positions, index, child, sibling, topk, steps, n, 1)
    assert index.flatten().tolist() == list(range(bs * n))
    for b, numbers in enumerate(selected.tolist()):
        paths = [[], *(_ancestry(number, parent_list[b].tolist(), numbers, topk) for number in numbers)]
        parents = [-1] + [path[1] if len(path) > 1 else 0 if number < topk else -1
                          for number, path in zip(numbers, paths[1:], strict=True)]
        for i in range(n):
            seen = {j for j in range(n) if mask.view(bs, n, n)[b, i, j]}
            children = [k for k in range(1, n) if parents[k] == i]
            siblings = [k for k in range(i + 1, n) if parents[k] == parents[i] >= 0]
            assert seen == {0, *paths[i]}
            assert positions.view(bs, n)[b, i] == lens[b] + len(paths[i])
            assert child[b, i] == (children[0] if children else -1)
            assert sibling[b, i] == (siblings[0] if siblings else -1)


def test_a_mask_over_the_cached_positions_is_refused() -> None:
    empty = torch.empty(0)
    with pytest.raises(ValueError, match="tree_mask_mode 0"):
        speculation.build_tree(empty, empty, empty, empty, empty, empty, empty, empty, 1, 1, 2, 0)


def _walk(parents: list[int], drafts: list[int], target: list[int], most: int) -> list[int]:
    """Accepted nodes: from node 0, always the first child that the target would have chosen."""
    path = [0]
    while len(path) < most:
        node = next((k for k in range(len(parents)) if parents[k] == path[-1] and drafts[k] == target[path[-1]]), None)
        if node is None:
            break
        path.append(node)
    return path


@given(forest=forests(), seed=st.integers(0, 2**31), short=st.booleans())
@settings(max_examples=200, deadline=None)
def test_greedy_verification_of_trees(forest: tuple[torch.Tensor, list[list[int]]], seed: int, short: bool) -> None:
    mask, parents = forest
    bs, n = mask.shape[:2]
    most = max(1, n // 2) if short else n
    torch.manual_seed(seed)
    drafts, target = torch.randint(0, 2, (bs, n)), torch.randint(0, 2, (bs, n))
    _, index, child, sibling = _links(mask, torch.zeros(bs, dtype=torch.int64))
    predicts = torch.zeros(bs * n, dtype=torch.int32)
    accepted = torch.full((bs, most), -1, dtype=torch.int32)
    count = torch.full((bs,), -9, dtype=torch.int32)
    speculation.verify_tree_greedy(predicts, accepted, count, drafts, index, child, sibling, target)
    for b in range(bs):
        path = _walk(parents[b], drafts[b].tolist(), target[b].tolist(), most)
        assert count[b] == len(path) - 1
        assert accepted[b].tolist() == [b * n + k for k in path] + [-1] * (most - len(path))
        for node in path:
            assert predicts[b * n + node] == target[b, node]


def test_moving_slots_reads_everything_before_it_writes() -> None:
    """Two buffers of different slot sizes; a chain of moves must not overwrite its own sources."""
    before = [torch.arange(40, dtype=torch.float32).view(10, 4), torch.arange(20, dtype=torch.bfloat16).view(10, 2)]
    buffers = [b.clone() for b in before]
    pointers = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
    strides = torch.tensor([b[0].nbytes for b in buffers])
    target, source = torch.tensor([4, 5, 6, 0]), torch.tensor([3, 4, 9, 0])
    speculation.copy_all_layer_kv_cache(pointers, strides, target, source)
    for buffer, old in zip(buffers, before, strict=True):
        expected = old.clone()
        expected[target] = old[source]
        assert torch.equal(buffer, expected)


def test_accepted_locations_are_packed() -> None:
    out = torch.zeros(6, dtype=torch.int64)
    speculation.fill_accept_out_cache_loc(torch.tensor([[0, 2, -1], [4, -1, -1]]), torch.arange(100, 106), out)
    assert out.tolist() == [100, 102, 104, 0, 0, 0]


def test_bonus_tokens_are_the_last_accepted() -> None:
    bonus = torch.zeros(2, dtype=torch.int32)
    speculation.fill_bonus_tokens(torch.tensor([5, 6, 0, 7, 0, 0]), torch.tensor([2, 1]), bonus, 3)
    assert bonus.tolist() == [6, 7]


def test_cache_locations_of_windows() -> None:
    table = torch.arange(40).view(4, 10).int()
    rows, start, end = torch.tensor([2, 0]), torch.tensor([1, 8]), torch.tensor([4, 10])
    out = torch.full((5,), -1)
    operators.assign_extend_cache_locs(rows, table, start, end, out, 10)
    assert out.tolist() == [21, 22, 23, 8, 9]
    drafts = torch.full((6,), -1)
    operators.assign_draft_cache_locs_contiguous(rows, table, torch.tensor([3, 0]), drafts, 10, 1, 3)
    assert drafts.tolist() == [23, 24, 25, 0, 1, 2]
    operators.assign_req_to_token_pool(rows, table, start, end, torch.arange(500, 505), 10)
    assert table[2, :5].tolist() == [20, 500, 501, 502, 24]
    assert table[0, 7:].tolist() == [7, 503, 504]


def _murmur(data: bytes, seed: int = 0) -> int:
    """MurmurHash3 x86 32, from its public description, for data of a multiple of four bytes."""
    state = seed
    for at in range(0, len(data), 4):
        block = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        block = (block << 15 | block >> 17) & 0xFFFFFFFF
        state ^= block * 0x1B873593 & 0xFFFFFFFF
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


def test_hash_of_seed_position_and_column() -> None:
    seeds, positions, columns = torch.tensor([1, -5, 2**62 + 3]), torch.tensor([0, 7, 123456]), torch.tensor([0, 49151])
    found = operators.murmur_hash32(seeds, positions, columns).tolist()
    for i, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        for j, column in enumerate(columns.tolist()):
            data = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(4, "little") + column.to_bytes(4, "little")
            assert found[i][j] == _murmur(data)
