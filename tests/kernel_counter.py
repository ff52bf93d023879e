"""A plugin of sglang for tests: which kernels a GPU would compile, of a server on the CPU.

Every call that the CPU serves is launched as well, as far as Triton's choice of a specialisation, and each launch is a
line of the file `$KERNEL_COUNTER`; `PREWARMED` is the line behind those before the server was ready.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from kernel_keys import noted
from sglang_ext.budget.kernels import host
from sglang_ext.patches import sampling

from sglang_ext.budget import kernels

FILE = "KERNEL_COUNTER"
PREWARMED = "prewarmed"
OPERATIONS = {"mask": kernels.mask_logits, "advance": kernels.advance, "walk": kernels.walk, "commit": kernels.commit}


def plugin(folder: Path, file: Path) -> dict[str, str]:
    """Variables of a server with this plugin.

    Args:
        folder: empty, where the plugin's metadata is written.
        file: where the server writes its launches.
    """
    metadata = folder / "kernel_counter-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kernel-counter\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nkernel_counter = kernel_counter:register\n")
    tests = Path(__file__).parent
    path = (folder, tests, tests.parent / "benchmarks")
    return {"PYTHONPATH": os.pathsep.join(map(str, path)), "SGLANG_PLUGINS": "sglang_ext,kernel_counter",
            FILE: str(file)}


def launches(file: Path) -> tuple[list[str], list[str]]:
    """Kernels that were launched, with their specialisations: before the server was ready, and later."""
    lines = file.read_text().splitlines()
    at = lines.index(PREWARMED)
    return lines[:at], [line for line in lines[at:] if line != PREWARMED]


def register() -> None:
    """Called by sglang in each of its processes."""
    for name, operation in OPERATIONS.items():
        setattr(host, name, _counted(operation, getattr(host, name)))
    prewarm = sampling.prewarm

    def prewarmed(*args: Any, **kwargs: Any) -> None:
        prewarm(*args, **kwargs)
        _write([PREWARMED])

    sampling.prewarm = prewarmed


def _counted(operation: Callable[..., None], served: Callable[..., None]) -> Callable[..., None]:
    @wraps(served)
    def call(*args: Any) -> None:
        with noted() as launched:
            operation(*args)
        _write([f"{kernel.rpartition('.')[2]} {key}" for kernel, key in launched])
        served(*args)

    return call


def _write(lines: list[str]) -> None:
    with open(os.environ[FILE], "a") as file:
        file.writelines(f"{line}\n" for line in lines)
