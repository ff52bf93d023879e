"""What lets the published sglang wheel run on a machine without a GPU.

Active only with sglang's CPU engine (`SGLANG_USE_CPU_ENGINE=1`), without a GPU, and with the CUDA build of
`sglang-kernel`: then that package's native library is left out, the few of its CPU operators that serving needs are
defined in PyTorch, and the processes that sglang spawns do the same before they import sglang.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from .machine import ATTENTION_BACKEND, ENGINE_VARIABLE, LIBRARY_LOADER, gpu_available, install_stand_in, wanted

__all__ = ["ATTENTION_BACKEND", "ENGINE_VARIABLE", "activate", "add_attention_choice", "gpu_available",
           "register_attention", "stand_in_active", "wanted"]


def activate() -> bool:
    """Make `sgl_kernel` importable without CUDA, here and in spawned processes. Call it before sglang is imported.

    Returns:
        Whether anything was done.
    """
    if not wanted() or not _cuda_kernels_installed() or gpu_available():
        return False
    from . import operators, spawned

    install_stand_in()
    operators.define()
    spawned.install()
    return True


def stand_in_active() -> bool:
    """Whether this process runs without the native library of `sgl_kernel`."""
    return getattr(sys.modules.get(LIBRARY_LOADER), "is_stand_in", False)


def register_attention() -> None:
    """Make `--attention-backend torch_batched` known in this process, through sglang's extension point."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    def create(model_runner: Any) -> Any:
        from .attention import BatchedAttention
        from .light import lighten
        from .packed import pack_weights

        try:
            backend = BatchedAttention(model_runner)
        except ValueError as error:  # sglang would print a traceback and kill the process that started this one
            print(f"sglang-ext: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        pack_weights(model_runner)
        lighten(model_runner)
        return backend

    add_attention_choice()
    register_attention_backend(ATTENTION_BACKEND)(create)


def add_attention_choice() -> None:
    """Let sglang's command line accept the backend's name; it does not have to be there for that."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    if ATTENTION_BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([ATTENTION_BACKEND])


def _cuda_kernels_installed() -> bool:
    """Whether the installed `sgl_kernel` is the CUDA build: it has a folder per architecture."""
    spec = importlib.util.find_spec("sgl_kernel")
    locations = (spec.submodule_search_locations or []) if spec else []
    return any((Path(location) / "sm100").is_dir() for location in locations)
