"""A stand-in for the module that loads `sgl_kernel`'s native library, which needs libcuda."""

from __future__ import annotations

import sys
import types

_NAME = "sgl_kernel.load_utils"


def install() -> None:
    """Put the stand-in in place, once.

    Raises:
        RuntimeError: `sgl_kernel` was imported before, so the stand-in comes too late.
    """
    present = sys.modules.get(_NAME)
    if getattr(present, "is_stand_in", False):
        return
    if present is not None:
        raise RuntimeError("sgl_kernel is imported already; import sglang_ext before sglang")
    module = types.ModuleType(_NAME, "Loads nothing: there is no GPU.")
    module._load_architecture_specific_ops = lambda: None  # type: ignore[attr-defined]
    module._preload_cuda_library = lambda: None  # type: ignore[attr-defined]
    module.is_stand_in = True  # type: ignore[attr-defined]
    sys.modules[_NAME] = module
