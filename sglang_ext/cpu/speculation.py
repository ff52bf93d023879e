"""The operators of `torch.ops.sgl_kernel` that speculation calls on the CPU, in PyTorch.

A draft is a tree of nodes in an order where parents come first; node 0 is the last committed token. Links are [bs, n]
int64 tensors of node numbers, -1 for none: the first child of a node (`retrive_next_token`), its next sibling, and the
node's row in flat tensors (`retrive_index`). Names are sglang's.
"""

from __future__ import annotations

import ctypes

import torch


def reconstruct_indices_from_tree_mask(tree_mask: torch.Tensor, verified_seq_len: torch.Tensor,
                                       positions: torch.Tensor, retrive_index: torch.Tensor,
                                       retrive_next_token: torch.Tensor, retrive_next_sibling: torch.Tensor,
                                       batch_size: int, draft_token_num: int) -> None:
    """Write positions and links of trees that are given by their masks.

    Args:
        tree_mask: [bs * n * n] bool, whether node j is i or an ancestor of i.
        verified_seq_len: [bs] int, committed positions.
        positions: [bs * n] int64, written.
        retrive_index, retrive_next_token, retrive_next_sibling: [bs, n] int64, written.
    """
    n = draft_token_num
    node = torch.arange(n)
    ancestors = tree_mask.view(batch_size, n, n).bool() & (node < node[:, None])
    positions.view(batch_size, n).copy_(ancestors.sum(-1) + verified_seq_len[:, None])
    parent = torch.where(ancestors, node, -1).amax(-1)
    _write_links(parent, retrive_index, retrive_next_token, retrive_next_sibling)


def build_tree(parent_list: torch.Tensor, selected_index: torch.Tensor, verified_seq_len: torch.Tensor,
               tree_mask: torch.Tensor, positions: torch.Tensor, retrive_index: torch.Tensor,
               retrive_next_token: torch.Tensor, retrive_next_sibling: torch.Tensor, topk: int, depth: int,
               draft_token_num: int, tree_mask_mode: int) -> None:
    """Write mask, positions and links of the trees that a draft model grew.

    Every step of the draft scores `topk` candidates for each of the nodes it grows from, and numbers them in order. The
    best candidates become nodes 1 to n - 1, in the order of their numbers.

    Args:
        parent_list: [bs, groups] int64, the number of the candidate that a group of `topk` candidates grew from; group
            0 grew from node 0. Without columns if there is no other group.
        selected_index: [bs, n - 1] int64, candidates that became nodes, ascending.
        verified_seq_len: [bs] int, committed positions.
        tree_mask: [bs * n * n] bool, written: whether node j is i or an ancestor of i.
        positions: [bs * n] int64, written.
        retrive_index, retrive_next_token, retrive_next_sibling: [bs, n] int64, written.
        depth: most steps from node 0.
        tree_mask_mode: 1, the mask between nodes only, which sglang uses on the CPU.

    Raises:
        ValueError: another mask mode.
    """
    if tree_mask_mode != 1:
        raise ValueError(f"tree_mask_mode {tree_mask_mode} is not served on the CPU; expected 1 (QLEN_ONLY)")
    bs, n = len(verified_seq_len), draft_token_num
    parent = torch.full((bs, n), -1)
    parent[:, 1:] = _parents(parent_list, selected_index, topk)
    up = parent.clamp(min=0)
    mask = tree_mask.view(bs, n, n)
    mask.copy_(torch.arange(n) == 0)  # node 0 is everybody's ancestor
    node = torch.arange(n).expand(bs, n)
    steps = torch.zeros(bs, n, dtype=torch.int64)
    for _ in range(depth):
        mask.scatter_(2, node[..., None], True)
        steps += node > 0
        node = up.gather(1, node)
    positions.view(bs, n).copy_(steps + verified_seq_len[:, None])
    _write_links(parent, retrive_index, retrive_next_token, retrive_next_sibling)


def _parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """[bs, n - 1] int64: the parent of each node from 1 on, -1 if its candidate is not among the nodes."""
    group = selected_index // topk
    if parent_list.shape[1] == 0:
        return torch.zeros_like(group)
    candidate = parent_list.gather(1, group)
    found = _first(selected_index[:, None] == candidate[..., None])
    return torch.where(group == 0, 0, torch.where(found < 0, -1, found + 1))


def _write_links(parent: torch.Tensor, retrive_index: torch.Tensor, retrive_next_token: torch.Tensor,
                 retrive_next_sibling: torch.Tensor) -> None:
    """Write the links of nodes whose parents are known, [bs, n] int64, -1 for none."""
    bs, n = parent.shape
    node = torch.arange(n)
    retrive_index.view(bs, n).copy_(torch.arange(bs * n).view(bs, n))
    retrive_next_token.view(bs, n).copy_(_first(parent[:, None] == node[:, None]))
    younger = (parent[:, :, None] == parent[:, None]) & (parent >= 0)[:, :, None] & (node > node[:, None])
    retrive_next_sibling.view(bs, n).copy_(_first(younger))


def _first(which: torch.Tensor) -> torch.Tensor:
    """[...] int64: the first true of the last dimension, -1 where there is none."""
    return torch.where(which.any(-1), which.int().argmax(-1), -1)


def verify_tree_greedy(predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor,
                       candidates: torch.Tensor, retrive_index: torch.Tensor, retrive_next_token: torch.Tensor,
                       retrive_next_sibling: torch.Tensor, target_predict: torch.Tensor) -> None:
    """Walk each tree along the nodes that the target would have chosen.

    Every request takes one step at a time: to the first child if its node was accepted, else to the node's sibling. A
    walk visits a node at most once, so there are at most n steps, whatever the batch.

    Args:
        predicts: [bs * n] int32, the target's choice after each accepted node, written at those nodes.
        accept_index: [bs, most accepted] int32, rows of the accepted nodes, written from the left.
        accept_token_num: [bs] int32, accepted nodes without node 0, written.
        candidates: [bs, n] int, the drafts.
        target_predict: [bs, n] int64, the target's choice after each node.
    """
    bs, most = accept_index.shape
    request = torch.arange(bs)
    target = target_predict.reshape(-1)
    row = retrive_index[:, 0].long()  # of the last accepted node
    accept_index[:, 0] = row.to(accept_index.dtype)
    accepted = torch.zeros(bs, dtype=torch.int64)
    node = retrive_next_token[:, 0].long() if most > 1 else torch.full((bs,), -1)
    while bool((node >= 0).any()):
        at = node.clamp(min=0)
        wanted = target[row]
        found = (node >= 0) & (candidates[request, at] == wanted)
        predicts[row[found]] = wanted[found].to(predicts.dtype)
        accepted += found
        row = torch.where(found, retrive_index[request, at].long(), row)
        accept_index[request[found], accepted[found]] = row[found].to(accept_index.dtype)
        node = torch.where(found, retrive_next_token[request, at].long(), retrive_next_sibling[request, at].long()
                           .where(node >= 0, -1)).where(accepted < most - 1, -1)
    predicts[row] = target[row].to(predicts.dtype)
    accept_token_num.copy_(accepted)


def fill_accept_out_cache_loc(accept_index: torch.Tensor, out_cache_loc: torch.Tensor,
                              accept_out_cache_loc: torch.Tensor) -> None:
    """Pack the cache locations of the accepted nodes, [accepted] int64 of `accept_out_cache_loc`; -1 is none."""
    rows = accept_index.reshape(-1)
    rows = rows[rows >= 0].long()
    accept_out_cache_loc[: len(rows)] = out_cache_loc[rows].to(accept_out_cache_loc.dtype)


def fill_bonus_tokens(accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor,
                      accept_stride: int) -> None:
    """The last accepted token of each request: `accept_tokens` [bs * accept_stride] at `accept_lens` [bs], less one."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens[: len(last)] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def copy_all_layer_kv_cache(data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor,
                            src_loc: torch.Tensor) -> None:
    """Copy slots of every buffer, as if all were read before one is written.

    Accepted chains lie where they belong, so there is usually nothing to copy.

    Args:
        data_ptrs: [buffers] uint64, addresses.
        strides: [buffers] int, bytes of a slot.
        tgt_loc, src_loc: [n] int64, slots.
    """
    moved = tgt_loc != src_loc
    if not bool(moved.any()):
        return
    target, source = tgt_loc[moved].long(), src_loc[moved].long()
    slots = int(torch.maximum(target.max(), source.max())) + 1
    for pointer, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(pointer)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[target] = buffer[source]


_LINKS = "Tensor retrive_index, Tensor retrive_next_token, Tensor retrive_next_sibling"
OPERATORS = {
    "reconstruct_indices_from_tree_mask_cpu(Tensor tree_mask, Tensor verified_seq_len, Tensor(a!) positions, "
    "Tensor(b!) retrive_index, Tensor(c!) retrive_next_token, Tensor(d!) retrive_next_sibling, int batch_size, "
    "int draft_token_num) -> ()": reconstruct_indices_from_tree_mask,
    "build_tree_kernel_efficient_cpu(Tensor parent_list, Tensor selected_index, Tensor verified_seq_len, "
    "Tensor(a!) tree_mask, Tensor(b!) positions, Tensor(c!) retrive_index, Tensor(d!) retrive_next_token, "
    "Tensor(e!) retrive_next_sibling, int topk, int depth, int draft_token_num, int tree_mask_mode) -> ()": build_tree,
    "verify_tree_greedy_cpu(Tensor(a!) predicts, Tensor(b!) accept_index, Tensor(c!) accept_token_num, "
    f"Tensor candidates, {_LINKS}, Tensor target_predict) -> ()": verify_tree_greedy,
    "fill_accept_out_cache_loc_cpu(Tensor accept_index, Tensor out_cache_loc, Tensor(a!) accept_out_cache_loc) "
    "-> ()": fill_accept_out_cache_loc,
    "fill_bonus_tokens_cpu(Tensor accept_tokens, Tensor accept_lens, Tensor(a!) bonus_tokens, int accept_stride) "
    "-> ()": fill_bonus_tokens,
    "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, Tensor src_loc) -> ()":
    copy_all_layer_kv_cache,
}
