"""The machine that serves: whether it has a GPU, what its container grants, and what stands in for CUDA's library."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

ATTENTION_BACKEND = "torch_batched"
ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"
LIBRARY_LOADER = "sgl_kernel.load_utils"


def wanted() -> bool:
    """Whether this process was told to use sglang's CPU engine."""
    return os.environ.get(ENGINE_VARIABLE) == "1"


def gpu_available() -> bool:
    """Whether torch sees an accelerator that sglang could serve on."""
    import torch

    return torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: those it may run on, and no more than its container is granted."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        return cores


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that may still be taken: what the machine has available, and no more than its container is granted."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        granted = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        return max(0, min(available, granted))
    except (OSError, ValueError):  # no container, or "max"
        return available


def install_stand_in() -> None:
    """Put a stand-in in the place of the module that loads `sgl_kernel`'s native library, which needs libcuda; once.

    Raises:
        RuntimeError: `sgl_kernel` was imported before, so the stand-in comes too late.
    """
    present = sys.modules.get(LIBRARY_LOADER)
    if getattr(present, "is_stand_in", False):
        return
    if present is not None:
        raise RuntimeError("sgl_kernel is imported already; import sglang_ext before sglang")
    module = types.ModuleType(LIBRARY_LOADER, "Loads nothing: there is no GPU.")
    module._load_architecture_specific_ops = lambda: None  # type: ignore[attr-defined]
    module._preload_cuda_library = lambda: None  # type: ignore[attr-defined]
    module.is_stand_in = True  # type: ignore[attr-defined]
    sys.modules[LIBRARY_LOADER] = module
