"""The operators of `torch.ops.sgl_kernel` that serving on the CPU calls, in PyTorch.

Signatures are those of sglang-kernel's CPU build, as the wheel's Python wrappers call them. Slot and length tensors are
int32 or int64.
"""

from __future__ import annotations

import torch

from . import speculation

_library: torch.library.Library | None = None
_MASK = 0xFFFFFFFF


def define() -> None:
    """Define the operators, once."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("sgl_kernel", "FRAGMENT")
    for schema, function in _OPERATORS.items():
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CPU")


def _windows(req_pool_indices: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Row and column in `req_to_token` of every position from start to end, request after request; as [n, 1] and
    [n, length] where all lengths are the same, as they mostly are when a step of decoding begins."""
    lengths, start = (end - start).long(), start.long()
    first, *others = lengths.tolist() or [0]
    if all(length == first for length in others):
        return req_pool_indices.long()[:, None], start[:, None] + torch.arange(first)
    total = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    columns = torch.repeat_interleave(start, lengths) + torch.arange(len(total)) - total
    return torch.repeat_interleave(req_pool_indices.long(), lengths), columns


def assign_req_to_token_pool(req_pool_indices: torch.Tensor, req_to_token: torch.Tensor, start_offset: torch.Tensor,
                             end_offset: torch.Tensor, out_cache_loc: torch.Tensor, pool_len: int) -> None:
    """Write new cache locations into `req_to_token` [slots, pool_len], from start to end of each request."""
    rows, columns = _windows(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: columns.numel()].to(req_to_token.dtype).view(columns.shape)


def assign_extend_cache_locs(req_pool_indices: torch.Tensor, req_to_token: torch.Tensor, start_offset: torch.Tensor,
                             end_offset: torch.Tensor, out_cache_loc: torch.Tensor, pool_len: int) -> None:
    """Read the cache locations from start to end of each request into `out_cache_loc`, one request after another."""
    rows, columns = _windows(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: columns.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype).flatten()


def assign_draft_cache_locs_contiguous(req_pool_indices: torch.Tensor, req_to_token: torch.Tensor,
                                       seq_lens: torch.Tensor, out_cache_loc: torch.Tensor, pool_len: int, topk: int,
                                       num_steps: int) -> None:
    """Read the cache locations of the `topk * num_steps` drafts behind each request's length."""
    assign_extend_cache_locs(req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc,
                             pool_len)


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (x86, 32 bit) of 16 bytes: a 64-bit seed, a 32-bit position and a 32-bit column.

    Args:
        seed, positions: [n] int.
        col_indices: [m] int.

    Returns:
        [n, m] uint32.
    """
    seed = seed.long()[:, None]
    state = torch.zeros_like(seed)
    for block in (seed & _MASK, (seed >> 32) & _MASK, positions.long()[:, None] & _MASK,
                  col_indices.long()[None, :] & _MASK):
        state = _mix(state, block)
    state = state ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _multiply(_rotate(_multiply(block, 0xCC9E2D51), 15), 0x1B873593)
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _multiply(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Product modulo 2^32 without leaving the 63 bits of int64."""
    low, high = factor & 0xFFFF, factor >> 16
    return (value * low + ((value * high & 0xFFFF) << 16)) & _MASK


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value << bits | value >> (32 - bits)) & _MASK


_WINDOW = ("(Tensor req_pool_indices, Tensor(a!) req_to_token, Tensor start_offset, Tensor end_offset, "
           "Tensor(b!) out_cache_loc, int pool_len) -> ()")
_OPERATORS = {
    "assign_req_to_token_pool_cpu" + _WINDOW: assign_req_to_token_pool,
    "assign_extend_cache_locs_cpu" + _WINDOW: assign_extend_cache_locs,
    "assign_draft_cache_locs_contiguous_cpu(Tensor req_pool_indices, Tensor req_to_token, Tensor seq_lens, "
    "Tensor(a!) out_cache_loc, int pool_len, int topk, int num_steps) -> ()": assign_draft_cache_locs_contiguous,
    "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor": murmur_hash32,
    **speculation.OPERATORS,
}
