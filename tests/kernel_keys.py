"""What Triton would compile: the kernels' launches as far as Triton's own choice of a specialisation, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
from compile_kernels import TARGETS, stand_in
from sglang_ext.budget.kernels import device

Launch = tuple[str, str]
"""A kernel's name, and the key under which Triton keeps what it compiled for this launch."""


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """While this is open, launches run no kernel, on tensors of the host too; each one is added to the list.

    Triton asks its hook before it compiles. As nothing is compiled, it asks at each launch.
    """
    launched: list[Launch] = []

    def instead_of_compiling(*, key: Any, fn: Any, **_: Any) -> bool:
        launched.append((fn.name, repr(key)))
        return True

    driver, knobs = triton.runtime.driver, triton.knobs.runtime
    kept = driver._active, knobs.jit_cache_hook, device.launches
    driver._active, knobs.jit_cache_hook, device.launches = (
        stand_in(TARGETS["sm_90"]), instead_of_compiling, lambda _: True)
    try:
        yield launched
    finally:
        driver._active, knobs.jit_cache_hook, device.launches = kept
