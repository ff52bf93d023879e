"""Which cache slots each query row attends to: worked out once per forward, used by every layer.

The rows of a forward are cut into blocks (one request, at most so many rows), and blocks of similar size are put
together into tiles. A tile is one gather of keys and values and one attention call, padded to its longest block.
Decoding is usually a single tile. Long prompts are many: a tile reads no key behind its last row or, with a sliding
window, before its first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

TILE_SCORES = 1 << 21
"""Most scores (query heads times rows times keys) of a tile: what stays in the cache while the softmax reads what the
product wrote."""
TILE_ROWS = (16, 128)
"""Least and most rows of a block."""
PADDING = 200_000
"""Padding a tile may carry, in gathered values: what another round of calls costs."""


@dataclass(frozen=True)
class Batch:
    """The rows of one forward. Rows of a request follow each other, request after request.

    Attributes:
        slots: [bs, columns] int, the cache slot of each position of each request.
        first: [bs] int64, position of the request's first row; what is before it is cached.
        rows: [bs] int64, rows of the request, at least one.
        tree: [bs, n, n] bool if the rows are drafts (n for every request): whether draft j is i or its ancestor.
    """

    slots: torch.Tensor
    first: torch.Tensor
    rows: torch.Tensor
    tree: torch.Tensor | None = None


def draft_tree(mask: torch.Tensor | None, lens: torch.Tensor, drafts: int) -> torch.Tensor | None:
    """Ancestors of each draft, [bs, drafts, drafts] bool; None, which is a chain, without a mask.

    Args:
        mask: flat, as a speculative worker hands it over: request after request, the drafts' own square, or
            [drafts, length + drafts] with the cached positions.
        lens: [bs] int64, cached positions.
    """
    if mask is None or mask.numel() == 0:
        return None
    size = len(lens) * drafts * drafts
    widths = lens + drafts
    if mask.numel() == size:
        return mask.view(len(lens), drafts, drafts).bool()
    if mask.numel() < int(widths.sum()) * drafts:
        raise ValueError(f"a tree mask of {mask.numel()} values for {len(lens)} requests of {drafts} drafts; expected "
                         f"{size}, or {int(widths.sum()) * drafts} with the cached positions")
    starts = (widths * drafts).cumsum(0) - widths * drafts
    rows = starts[:, None] + torch.arange(drafts) * widths[:, None] + lens[:, None]
    return mask.flatten()[rows[..., None] + torch.arange(drafts)].bool()


@dataclass(frozen=True)
class Kind:
    """What distinguishes the layers of a model.

    Attributes:
        window: how many positions before its own a row sees; -1 is all.
        causal: whether a row sees only positions up to its own.
        swa_pool: whether the layer's cache is the pool of sliding-window layers, which has slots of its own.
    """

    window: int = -1
    causal: bool = True
    swa_pool: bool = False


@dataclass
class Tile:
    """Some requests' rows, padded to `rows` rows and `keys` keys a request.

    Attributes:
        where: the rows in the forward's query, as a slice or as [blocks * rows] int64; padding repeats a real row.
        slots: [blocks, keys] int64; padding repeats a real slot.
        span: the slots as a slice, if there is one row and its slots follow each other: nothing has to be gathered.
        masks: column range, and [blocks, 1, 1, rows, columns] of 0 and -inf for it; other columns are all visible.
    """

    where: slice | torch.Tensor
    slots: torch.Tensor
    rows: int
    masks: list[tuple[int, int, torch.Tensor]]
    span: slice | None = None
    _indices: dict[int, torch.Tensor] = field(default_factory=dict)

    def index(self, heads: int) -> torch.Tensor:
        """[blocks * heads * keys] int64: rows of a cache seen as [slots * heads, width], so that a gather gives keys
        in the order [block, head, key] that a batched product wants."""
        found = self._indices.get(heads)
        if found is None:
            found = (self.slots[:, None] * heads + torch.arange(heads)[:, None]).reshape(-1)
            self._indices[heads] = found
        return found


@dataclass(frozen=True)
class _Blocks:
    """Pieces of requests, [n] int64 each: the request, its rows from low to high, its keys from low to high."""

    request: torch.Tensor
    row_low: torch.Tensor
    row_high: torch.Tensor
    key_low: torch.Tensor
    key_high: torch.Tensor

    def take(self, which: torch.Tensor | slice) -> _Blocks:
        return _Blocks(self.request[which], self.row_low[which], self.row_high[which], self.key_low[which],
                       self.key_high[which])

    @property
    def rows(self) -> torch.Tensor:
        return self.row_high - self.row_low

    @property
    def keys(self) -> torch.Tensor:
        return self.key_high - self.key_low


def plan(batch: Batch, kind: Kind, heads: tuple[int, int], width: int, dtype: torch.dtype) -> list[Tile]:
    """The tiles of one forward for one kind of layer.

    Args:
        heads: query heads and key heads, to size tiles.
        width: values of a key, to size tiles.
        dtype: of the scores.
    """
    blocks = _cut(batch, kind, heads[0])
    starts = batch.rows.cumsum(0) - batch.rows
    return [_tile(batch, kind, blocks.take(members), starts, dtype) for members in _group(blocks, heads, width)]


def _cut(batch: Batch, kind: Kind, query_heads: int) -> _Blocks:
    """One block a request, or several if it has many rows. A tree stays whole: its rows see each other."""
    end = batch.first + batch.rows
    least, most = TILE_ROWS
    limit = max(least, min(most, TILE_SCORES // (query_heads * int(end.max()))))
    request = torch.arange(len(end))
    row_low, row_high = torch.zeros_like(end), batch.rows
    if batch.tree is None and int(batch.rows.max()) > limit:
        pieces = (batch.rows + limit - 1) // limit
        request = torch.repeat_interleave(request, pieces)
        row_low = (torch.arange(len(request)) - (pieces.cumsum(0) - pieces)[request]) * limit
        row_high = torch.minimum(row_low + limit, batch.rows[request])
    first = batch.first[request]
    key_high = first + row_high if kind.causal and batch.tree is None else end[request]
    if kind.window < 0:
        key_low = torch.zeros_like(key_high)
    else:  # a draft stands no later than its row, and no earlier than the first
        key_low = (first + (row_low if batch.tree is None else 0) - kind.window).clamp(min=0)
    return _Blocks(request, row_low, row_high, key_low, key_high)


def _group(blocks: _Blocks, heads: tuple[int, int], width: int) -> list[torch.Tensor | slice]:
    """Which blocks share a tile: all in their own order, if that pads little; else by size.

    The loop is over tiles: each takes as many of the sorted blocks as its padding and size allow.
    """
    if len(blocks.request) == 1 or bool(_fits(blocks.rows, blocks.keys, heads, width)[-1]):
        return [slice(None)]
    order = torch.argsort(blocks.rows * (int(blocks.keys.max()) + 1) + blocks.keys, descending=True)
    groups: list[torch.Tensor | slice] = []
    while len(order):
        fits = _fits(blocks.rows[order], blocks.keys[order], heads, width)
        count = max(1, int(fits.long().cumprod(0).sum()))
        groups.append(order[:count])
        order = order[count:]
    return groups


def _fits(rows: torch.Tensor, keys: torch.Tensor, heads: tuple[int, int], width: int) -> torch.Tensor:
    """[n] bool: whether the first 1, 2, ... n blocks may share a tile.

    A value of a product costs about a sixteenth of a gathered one.
    """
    count = torch.arange(1, len(rows) + 1)
    gathered = count * keys.cummax(0).values
    cells = gathered * rows.cummax(0).values
    padding = (gathered - keys.cumsum(0)) * heads[1] + (cells - (rows * keys).cumsum(0)) * heads[0] // 16
    return (padding * width <= PADDING) & (cells * heads[0] <= TILE_SCORES)


def _tile(batch: Batch, kind: Kind, blocks: _Blocks, starts: torch.Tensor, dtype: torch.dtype) -> Tile:
    rows, keys = int(blocks.rows.max()), int(blocks.keys.max())
    row = torch.minimum(blocks.row_low[:, None] + torch.arange(rows), blocks.row_high[:, None] - 1)  # [blocks, rows]
    where: slice | torch.Tensor = (starts[blocks.request][:, None] + row).reshape(-1)
    if bool((where[1:] - where[:-1] == 1).all()):
        where = slice(int(where[0]), int(where[-1]) + 1)
    key = blocks.key_low[:, None] + torch.arange(keys)  # [blocks, keys]
    inside = torch.minimum(key, blocks.key_high[:, None] - 1)
    slots = batch.slots[blocks.request[:, None], inside].long()
    masks = [(low, high, _mask(batch, kind, blocks, row, key[:, low:high], dtype))
             for low, high in _masked_columns(batch, kind, blocks, keys)]
    span = None
    if len(slots) == rows == 1 and int(slots[0, -1] - slots[0, 0]) == keys - 1 and bool((slots.diff() == 1).all()):
        span = slice(int(slots[0, 0]), int(slots[0, -1]) + 1)
    return Tile(where, slots, rows, masks, span)


def _masked_columns(batch: Batch, kind: Kind, blocks: _Blocks, keys: int) -> list[tuple[int, int]]:
    """The columns that some row of the tile must not see; the others need no mask."""
    first = batch.first[blocks.request]
    right = blocks.key_high
    if batch.tree is not None:
        right = first
    elif kind.causal:
        right = first + blocks.row_low + 1
    right_of = max(0, int((right - blocks.key_low).min()))
    left_of = 0
    if kind.window >= 0:
        left_of = min(keys, max(0, int((first + blocks.row_high - 1 - kind.window - blocks.key_low).max())))
    if left_of >= right_of:
        return [(0, keys)]
    return [(low, high) for low, high in ((0, left_of), (right_of, keys)) if low < high]


def _mask(batch: Batch, kind: Kind, blocks: _Blocks, row: torch.Tensor, key: torch.Tensor,
          dtype: torch.dtype) -> torch.Tensor:
    """[blocks, 1, 1, rows, columns]: 0 where a row sees a key, -inf elsewhere."""
    first = batch.first[blocks.request][:, None]
    position, at = first + row, key  # [blocks, rows], [blocks, columns]
    visible = (key < blocks.key_high[:, None])[:, None]
    if batch.tree is not None:
        tree = batch.tree[blocks.request]
        depth = tree.sum(-1) - 1  # [blocks, n]
        position = first + depth
        draft = (key - first).clamp(0, tree.shape[-1] - 1)  # [blocks, columns]
        at = torch.where(key < first, key, first + depth.gather(1, draft))
        ancestor = tree.gather(2, draft[:, None].expand(-1, tree.shape[1], -1))
        visible = visible & ((key < first)[:, None] | ancestor)
    elif kind.causal:
        visible = visible & (key[:, None] <= position[..., None])
    if kind.window >= 0:
        visible = visible & (at[:, None] >= position[..., None] - kind.window)
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return mask[:, None, None]
