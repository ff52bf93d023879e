"""sglang's CPU graph runner with a wheel that has no CPU operators."""

from __future__ import annotations

from collections.abc import Callable

from sglang_ext import cpu


def register_fake_ops(original: Callable[[int], None], tp_size: int) -> None:
    """Describe sgl_kernel's CPU operators to torch.compile, where there are any."""
    if not cpu.stand_in_active():
        original(tp_size)
