"""What one step verifies: a batch's last confirmed tokens and the draft tokens after them, in one frozen object.

The tensors stay on the batch's device, and nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

PAD = -1


@dataclass(frozen=True)
class Draft:
    """The tokens of one verification, padded to one width. Every request has one row: its last confirmed token, then
    its draft tokens.

    Attributes:
        tokens: [n, width] int64, PAD behind each request's tokens.
        lengths: [n] int64, 1 + draft tokens.
        rows: [m] int64, places in the flat [n * width] that are not padding, in order.
        owners: [m] int64, the request of each of them.
        on_host: the draft tokens of each request; None where no request has any.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor
    owners: torch.Tensor
    on_host: Sequence[Sequence[int]] | None = None

    @classmethod
    def without(cls, last: torch.Tensor, width: int = 1) -> Draft:
        """A plain step: no request has a draft token.

        Args:
            last: [n] int, the last confirmed token of each request, on the device.
            width: of the verification.
        """
        n, last = len(last), last.to(torch.int64)
        owners = torch.arange(n, device=last.device)
        tokens, rows = last[:, None], owners
        if width > 1:
            tokens, rows = torch.nn.functional.pad(tokens, (0, width - 1), value=PAD), owners * width
        return cls(tokens, torch.ones_like(last), rows, owners)

    @classmethod
    def of(cls, chains: Sequence[Sequence[int]], width: int, device: torch.device | str) -> Draft:
        """Draft tokens that the host knows, sent to the device in one transfer.

        Args:
            chains: [n], each 1 to `width` ids: the last confirmed token, then the draft tokens.
        """
        lengths = [len(chain) for chain in chains]
        if max(lengths) == 1:
            return cls.without(to_device([chain[0] for chain in chains], device), width)
        flat = [token for chain in chains for token in (*chain, *[PAD] * (width - len(chain)))]
        rows = [i * width + j for i, length in enumerate(lengths) for j in range(length)]
        owners = [i for i, length in enumerate(lengths) for _ in range(length)]
        sizes = [len(flat), len(lengths), len(rows), len(owners)]
        tokens, lens, where, who = to_device([*flat, *lengths, *rows, *owners], device).split(sizes)
        return cls(tokens.view(len(chains), width), lens, where, who, [chain[1:] for chain in chains])

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def padded(self) -> bool:
        """Whether some requests have fewer tokens than `width`."""
        return len(self.rows) < self.tokens.numel()

    @property
    def input_ids(self) -> torch.Tensor:
        """[n * width] int64 ids that can be embedded, padding included."""
        return self.tokens.clamp(min=0).flatten() if self.padded else self.tokens.flatten()

    def positions(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """[n * width] int64, from [n] tokens before the last confirmed one. Some models write to them in place."""
        if self.width == 1:
            return seq_lens.to(torch.int64, copy=True)
        steps = torch.arange(self.width, device=seq_lens.device)
        return (seq_lens.long()[:, None] + steps).flatten()

    def slots(self, table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[n * width] int64, the KV slots that the engine holds for these positions.

        Args:
            table: [requests, positions] int, the engine's slots of every request.
            rows: [n] int, each request's row of it.
            positions: [n * width] int64.
        """
        if self.width == 1:
            return table[rows, positions].long()
        return table[rows[:, None], positions.view(self.tokens.shape)].flatten().long()

    def links(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The chain as the tree of sglang's structures: index, next token and next sibling, each [n, width]."""
        none = torch.full_like(self.tokens, -1)
        if self.width == 1:
            return self.rows[:, None], none, none
        n, width = self.tokens.shape
        steps = torch.arange(width, device=self.tokens.device)
        index = torch.arange(n * width, device=self.tokens.device).view(n, width)
        follows = steps + 1 < self.lengths[:, None]
        return index, torch.where(follows, steps + 1, -1), none

    def accept(self, sampled: torch.Tensor) -> torch.Tensor:
        """How many samples stand in the output: the draft tokens that agree, and one more.

        Args:
            sampled: [n * width] int, what the target wrote at each place.

        Returns:
            [n] int32, 1 to `lengths`.
        """
        if self.width == 1:
            return torch.ones_like(self.lengths, dtype=torch.int32)
        after = torch.arange(1, self.width, device=sampled.device)
        agrees = self.tokens[:, 1:] == sampled.view(self.tokens.shape)[:, :-1]
        agrees &= after < self.lengths[:, None]
        return (1 + agrees.int().cumprod(1).sum(1)).int()


def to_device(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device | str) -> torch.Tensor:
    """Numbers of the host, or lists of one length, as int64 on a device, in one transfer that nothing waits for."""
    host = torch.tensor(values, dtype=torch.int64)
    if torch.device(device).type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def accept_index(accept_lens: torch.Tensor, width: int) -> torch.Tensor:
    """[n, width] int32, places of the accepted samples in the flat [n * width], -1 behind them."""
    steps = torch.arange(width, device=accept_lens.device)
    start = torch.arange(len(accept_lens), device=accept_lens.device)[:, None] * width
    return torch.where(steps < accept_lens[:, None], start + steps, -1).int()


def full_mask(seq_lens: Sequence[int], width: int, device: torch.device | str) -> torch.Tensor:
    """The attention mask as sglang's GPU backends read it: for each request [width, length + width] bool, flat.

    Args:
        seq_lens: [n] tokens before the chain, on the host.
    """
    lens = to_device(seq_lens, device)
    columns = lens + width
    starts = (columns.cumsum(0) - columns) * width
    row, later = torch.triu_indices(width, width, 1, device=device)
    hidden = starts[:, None] + row * columns[:, None] + lens[:, None] + later
    mask = torch.ones(width * sum(length + width for length in seq_lens), dtype=torch.bool, device=device)
    return mask.index_fill_(0, hidden.flatten(), False)
