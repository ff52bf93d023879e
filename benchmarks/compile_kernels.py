"""Compile the think budget's kernels ahead of time, as servers launch them, for GPUs that are not there.

    python benchmarks/compile_kernels.py [--triton FOLDER] [--targets sm_90 gfx942]

Every kernel is launched as `prewarm` launches it before a server is ready, on a stand-in for the GPU's driver: what is
compiled is what that server would compile, for each shape of vocabulary that changes a kernel. A row of the table is
one kernel, with the most that any of its specialisations takes. Registers are a thread's; a kernel that spills, or has
local memory, makes the script fail. FOLDER holds another release of Triton, as `pip install --target FOLDER` makes it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
from sglang_ext.budget.kernels import BudgetState, Tables, device, prewarm
from triton.backends.compiler import GPUTarget

from sglang_ext.budget import kernels

TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32), "sm_100": GPUTarget("cuda", 100, 32),
           "gfx942": GPUTarget("hip", "gfx942", 64)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((64, 1, 10), (61, 2, 16), (64, 2, 10), (61, 1, 16))
"""Vocabularies, ids that end a response, and behaviour classes: a kernel is compiled for whether a number is 1 or
divisible by 16, and for nothing else of it."""
MODULES = {verb: sys.modules[f"{kernels.__name__}.{verb}"] for verb in ("mask", "advance", "walk", "commit")}


class Compiled(NamedTuple):
    """A specialisation of a kernel: its name, with `chain` or `tree` where it has parents or none, and what was made
    of it."""

    name: str
    dtype: torch.dtype | None
    kernel: Any


class Resources(NamedTuple):
    """What a kernel takes on a GPU: registers a thread, and bytes of local memory and spills a thread."""

    registers: int
    local: int


class _Launch:
    """Stands for a kernel; takes a launch as far as Triton can without a GPU, which is to its machine code."""

    def __init__(self, verb: str, kernel: Any, compiled: list[Compiled]) -> None:
        self.verb, self.kernel, self.compiled = verb, kernel, compiled

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            made = self.kernel.warmup(*args, grid=grid, **options)
            named = dict(zip(self.kernel.arg_names, args, strict=False))
            shape = "" if "parents" not in named else " chain" if named["parents"] is None else " tree"
            dtype = named["logits"].dtype if "logits" in named else None
            if not any(made is other.kernel for other in self.compiled):
                self.compiled.append(Compiled(self.verb + shape, dtype, made))

        return launch


def stand_in(target: GPUTarget) -> Any:
    """What a launch needs of a GPU's driver until its kernel is there."""
    return SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0,
                           get_current_stream=lambda _: 0)


@contextmanager
def compiling(target: GPUTarget) -> Iterator[list[Compiled]]:
    """While this is open, launches on host tensors compile for a GPU instead of running; the list grows by each new
    specialisation."""
    compiled: list[Compiled] = []
    driver = triton.runtime.driver
    kept = driver._active, device.launches, {verb: getattr(m, f"_{verb}_kernel") for verb, m in MODULES.items()}
    driver._active, device.launches = stand_in(target), lambda tensor: True
    for verb, kernel in kept[2].items():
        kernel.device_caches.clear()  # the same device was another GPU before
        setattr(MODULES[verb], f"_{verb}_kernel", _Launch(verb, kernel, compiled))
    try:
        yield compiled
    finally:
        driver._active, device.launches = kept[:2]
        for verb, kernel in kept[2].items():
            kernel.device_caches.clear()
            setattr(MODULES[verb], f"_{verb}_kernel", kernel)


def specialisations(target: GPUTarget, dtypes: Sequence[torch.dtype] = DTYPES,
                    shapes: Sequence[tuple[int, int, int]] = SHAPES) -> list[Compiled]:
    """All that servers compile for this GPU. State and tables hold nothing: only their types and sizes matter."""
    found: list[Compiled] = []
    for vocab, eos, classes in shapes:
        state, tables = BudgetState.allocate(1, [0], 8, "cpu"), _tables(vocab, eos, classes)
        with compiling(target) as compiled:
            prewarm(state, tables, vocab, tuple(dtypes), drafts=True)
        found += compiled
    return found


def _tables(vocab: int, eos: int, classes: int) -> Tables:
    sizes = {"token_class": vocab, "step": 7 * classes, "end_cursor": 7, "end_start": 7, "ban_start": 8, "ban_ids": 5,
             "guard_start": 22, "guard_ids": 5, "eos_ids": eos}
    return Tables(**{name: torch.zeros(size, dtype=torch.int32) for name, size in sizes.items()})


def resources(kernel: Any) -> Resources:
    """Read from the machine code."""
    if "amdgcn" in kernel.asm:
        fields = dict(re.findall(r"\.(\w+):\s+(\d+)\n", kernel.asm["amdgcn"].rpartition("amdhsa.kernels")[2]))
        return Resources(int(fields["vgpr_count"]),
                         int(fields["private_segment_fixed_size"]) + int(fields["vgpr_spill_count"]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True)
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage.stdout))
    return Resources(int(fields["REG"]), int(fields["STACK"]) + int(fields["LOCAL"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--triton", type=Path, metavar="FOLDER", help="holds the release of Triton to compile with")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    options = parser.parse_args()
    if options.triton is not None and options.triton.resolve() not in Path(triton.__file__).resolve().parents:
        if not (options.triton / "triton").is_dir():
            parser.error(f"--triton {options.triton}: no Triton in it; make it with pip install --no-deps --target")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(options.triton.resolve()), os.environ.get("PYTHONPATH", "")])
        os.execv(sys.executable, [sys.executable, *sys.argv])
    rows: dict[str, dict[str, str]] = {}
    count = spilled = 0
    for target in options.targets:
        most: dict[str, int] = {}
        for name, _, kernel in specialisations(TARGETS[target]):
            used = resources(kernel)
            count, spilled = count + 1, spilled + (used.local > 0)
            most[name] = max(most.get(name, 0), used.registers)
        for name, registers in most.items():
            rows.setdefault(name, {})[target] = str(registers)
    print(f"Triton {triton.__version__}: {count} specialisations compiled, {spilled} with spills or local memory")
    print("| kernel |", *(f"{target} |" for target in options.targets))
    for name in sorted(rows):
        print(f"| {name} |", *(f"{rows[name].get(target, '')} |" for target in options.targets))
    sys.exit(spilled > 0)


if __name__ == "__main__":
    main()
