"""sglang's relay between steps, without a wait for lengths that the host knows.

Before each step sglang copies the lengths of all texts from the device, as a verification may have accepted any number
of tokens, and the host waits for that. After a plain step every text is one token longer: nothing has to be copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.managers.overlap_utils import FutureMap

UNKNOWN = -1
ATTRIBUTE = "uag_known_lengths"


class KnownLengths:
    """Lengths of the texts that the host knows without a wait, by the engine's request slots. They are read through
    numpy, whose operations cost the host a fraction of torch's.

    Args:
        slots: of the engine's request pool.
    """

    def __init__(self, slots: int) -> None:
        self._lengths = torch.full((slots,), UNKNOWN, dtype=torch.int64)
        self._array: npt.NDArray[np.int64] = self._lengths.numpy()  # the same memory

    @classmethod
    def of(cls, pool: Any) -> KnownLengths:
        """Those of a pool of the engine's, made when they are first asked for."""
        if not hasattr(pool, ATTRIBUTE):
            setattr(pool, ATTRIBUTE, cls(pool.req_to_token.shape[0]))
        known: KnownLengths = getattr(pool, ATTRIBUTE)
        return known

    def note(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """After this step texts will be so long: [n] int64 slots and lengths, on the host."""
        self._lengths[slots] = lengths

    def forget(self, slots: torch.Tensor) -> None:
        """How long these texts will be is known on the device alone."""
        self._lengths[slots] = UNKNOWN

    def get(self, slots: torch.Tensor) -> npt.NDArray[np.int64] | None:
        """[n] lengths; None where one of them is not known."""
        lengths = self._array[slots.numpy()]
        return None if (lengths == UNKNOWN).any() else lengths


class UagFutureMap(FutureMap):
    """sglang's relay; `UagWorker` tells `KnownLengths` what each step does to the lengths."""

    needs_cpu_seq_lens: bool

    def __init__(self, device: Any, algorithm: Any, req_to_token_pool: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(device, algorithm, req_to_token_pool, *args, **kwargs)
        self._known = KnownLengths.of(req_to_token_pool)

    def resolve_seq_lens_cpu(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        """Take the lengths from the device; on the host, those that are known there.

        The other arguments are sglang's own, and not in every release.
        """
        relayed = batch.spec_info is not None and batch.spec_info.future_indices is not None
        known = self._known.get(batch.req_pool_indices_cpu) if relayed and self.needs_cpu_seq_lens else None
        if known is None:
            super().resolve_seq_lens_cpu(batch, *args, **kwargs)
            return
        self.needs_cpu_seq_lens = False  # the copy, and the wait for it
        try:
            super().resolve_seq_lens_cpu(batch, *args, **kwargs)
        finally:
            self.needs_cpu_seq_lens = True
        batch.seq_lens_cpu, batch.seq_lens_sum = torch.from_numpy(known), int(known.sum())
