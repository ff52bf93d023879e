"""Tensor parallelism: the first rank drafts, and all ranks verify the same draft tokens.

Draft lengths are chosen by the clock, which tells each rank something else. The first rank holds the whole draft, as a
small model's heads need not be divisible. The others hold none of it, and their pools are as large as the first's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed


class Ranks:
    """The ranks of a target, seen from one of them.

    Args:
        group: sglang's `GroupCoordinator` of them.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def several(self) -> bool:
        return bool(self._group.world_size > 1)

    @property
    def first(self) -> bool:
        """Whether this one drafts."""
        return bool(self._group.rank_in_group == 0)

    def broadcast_chains(self, chains: list[list[int]] | None, n: int, width: int) -> list[list[int]] | None:
        """The first rank's chains, on every rank.

        Args:
            chains: [n], each 1 to `width` ids; None for a plain step, and on other ranks than the first.
            n: requests of the batch, which is the same on every rank.
        """
        if not self.several:
            return chains
        rows = [[0] * (width + 1)] * n if chains is None else [
            [len(chain), *chain, *[0] * (width - len(chain))] for chain in chains]
        sent = torch.tensor(rows, dtype=torch.int32)
        torch.distributed.broadcast(sent, src=self._group.ranks[0], group=self._group.cpu_group)
        chains = [row[1 : 1 + row[0]] for row in sent.tolist()]
        return chains if all(chains) else None

    def broadcast(self, sampled: torch.Tensor) -> torch.Tensor:
        """The first rank's samples, [n * width] int32 on the device, on every rank, as in sglang's own
        verifications: probabilities may differ in their last bits, and another token would be another length."""
        if self.several:
            self._group.broadcast(sampled, src=0)
        return sampled

    def single_rank(self) -> AbstractContextManager[None]:
        """A scope in which a model is this rank's own: it is built, captured and run as without tensor parallelism."""
        if not self.several:
            return nullcontext()
        from sglang.srt.distributed.parallel_state import get_self_pp_group, patch_tensor_parallel_group

        return patch_tensor_parallel_group(get_self_pp_group(), owns_attention=True)
