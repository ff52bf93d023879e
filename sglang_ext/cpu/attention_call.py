"""Attention of one tile: gather, product, softmax, product."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from .attention_plan import Tile

SHORT = 512
"""Most keys of a single row for which torch's fused attention is faster than two products, in half precision."""


class Workspace:
    """Buffers that every layer uses again; the allocator would map fresh pages for them each time."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of this shape whose values are left over from the last use."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name, dtype] = torch.empty(size + size // 4, dtype=dtype)
        return buffer[:size].view(shape)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile, scale: float,
           workspace: Workspace, cap: float = 0.0, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Attention of a tile's rows.

    Args:
        query: [blocks * rows, query heads, width] in the model's dtype.
        keys: [slots, key heads, width], the layer's cache.
        values: [slots, key heads, value width], the layer's cache.
        cap: soft cap of the scores: `cap * tanh(score / cap)`; 0 is none.
        sinks: [query heads], scores of a key that has no value.

    Returns:
        [blocks * rows, query heads, value width] in the query's dtype. For one row a block it is the tile's own
        product; otherwise a copy in the order of the rows.
    """
    blocks, columns = tile.slots.shape
    heads = keys.shape[1]
    group = query.shape[1] // heads
    single = len(query) == 1 and columns <= SHORT and query.dtype == keys.dtype != torch.float32
    if single and cap == 0 and sinks is None and not tile.masks:
        return _attend_row(query, keys, values, tile, scale)
    index = tile.index(heads)
    batch = blocks * heads
    k = _gather(keys, index, "keys", workspace, query.dtype).view(batch, columns, -1)
    v = _gather(values, index, "values", workspace, query.dtype).view(batch, columns, -1)
    # the query heads of a key head become rows of one product: no key is repeated
    q = query.view(blocks, tile.rows, heads, group, -1).permute(0, 2, 3, 1, 4).reshape(batch, group * tile.rows, -1)
    scores = workspace.take("scores", (batch, group * tile.rows, columns), query.dtype)
    torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=scale, out=scores)
    weights = _weights(scores.view(blocks, heads, group, tile.rows, columns), tile, cap, sinks, workspace)
    out = torch.bmm(weights.view(batch, group * tile.rows, columns), v)
    if tile.rows == 1:
        return out.view(blocks, heads * group, -1)
    out = out.view(blocks, heads, group, tile.rows, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(blocks * tile.rows, heads * group, -1)


def _attend_row(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile,
                scale: float) -> torch.Tensor:
    """Attention of one row that sees every key of its tile, [1, query heads, value width]."""
    if tile.span is not None:
        k, v = keys[tile.span], values[tile.span]
    else:
        k, v = keys.index_select(0, tile.slots[0]), values.index_select(0, tile.slots[0])
    q = query.view(1, keys.shape[1], -1, query.shape[-1])
    out = scaled_dot_product_attention(q, k.transpose(0, 1)[None], v.transpose(0, 1)[None], scale=scale)
    return out.reshape(1, query.shape[1], -1)


def _gather(cache: torch.Tensor, index: torch.Tensor, name: str, workspace: Workspace,
            dtype: torch.dtype) -> torch.Tensor:
    """[index, width] in the given dtype."""
    width = cache.shape[-1]
    out = workspace.take(name, (len(index), width), cache.dtype)
    torch.index_select(cache.view(-1, width), 0, index, out=out)
    return out.to(dtype)


def _weights(scores: torch.Tensor, tile: Tile, cap: float, sinks: torch.Tensor | None,
             workspace: Workspace) -> torch.Tensor:
    """Softmax of the scores [blocks, heads, group, rows, columns], of the same shape; overwrites the scores."""
    dtype = scores.dtype
    if cap > 0 or sinks is not None:  # rare: in float32, and with copies
        scores = scores.float()
    if cap > 0:
        scores.div_(cap).tanh_().mul_(cap)
    for low, high, mask in tile.masks:
        scores[..., low:high].add_(mask)
    if sinks is not None:
        column = sinks.float().view(1, *scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1].to(dtype).contiguous()
    if scores.dtype != dtype:
        return torch.softmax(scores, -1).to(dtype)
    weights = workspace.take("weights", tuple(scores.shape), dtype)
    torch.softmax(scores, -1, out=weights)
    return weights
