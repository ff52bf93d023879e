"""sglang's CPU engine with a wheel that was built for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_ext import cpu


def register_fake_ops(original: Callable[[int], None], tp_size: int) -> None:
    """Describe sgl_kernel's CPU operators to torch.compile, where there are any."""
    if not cpu.stand_in_active():
        original(tp_size)


def init_model_parallel_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Ranks on CPUs talk through gloo; NCCL, which is installed as well, has no device there."""
    if cpu.stand_in_active():
        kwargs.setdefault("use_pynccl", False)
    return original(*args, **kwargs)
