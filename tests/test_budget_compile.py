"""The kernels compile ahead of time for the GPUs they are meant for, without spills, and leave quiet rows alone.

Here they are compiled for one shape of model; `benchmarks/compile_kernels.py` has all.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from budget_cases import INTERPRETED
from compile_kernels import SHAPES, TARGETS, Compiled, resources, specialisations

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")


@cache
def compiled(target: str, *dtypes: torch.dtype) -> list[Compiled]:
    return specialisations(TARGETS[target], dtypes, SHAPES[:1])


@pytest.mark.parametrize("target", TARGETS)
def test_no_spills(target: str) -> None:
    kernels = compiled(target, torch.float32)
    assert {kernel.name for kernel in kernels} == {
        "mask", "advance", "walk chain", "walk tree", "commit chain", "commit tree"}
    for name, _, kernel in kernels:
        used = resources(kernel)
        assert used.local == 0, name
        assert used.registers <= 64, f"{name}: more would cost occupancy at batch 256"


def test_other_dtypes() -> None:
    kernels = compiled("sm_90", torch.bfloat16, torch.float16, torch.float64)
    assert len({(name, dtype) for name, dtype, _ in kernels if dtype is not None}) == 9
    assert all(resources(kernel).local == 0 for _, _, kernel in kernels)


def paths(ptx: str) -> list[tuple[int, list[str]]]:
    """Every way through a kernel without going round a loop: conditions passed, and accesses to memory."""
    parts = re.split(r"^(\$L__BB\w+):.*$", ptx, flags=re.M)
    labels = ["entry", *parts[1::2]]
    blocks = dict(zip(labels, parts[0::2], strict=True))
    found: list[tuple[int, list[str]]] = []

    def follow(label: str, seen: frozenset[str], conditions: int, accesses: list[str]) -> None:
        if label in seen:
            return
        seen |= {label}
        for line in blocks[label].splitlines():
            if access := re.search(r"\b(?:ld|st|atom|red)\.(?:global|shared|local)\S*", line):
                accesses = [*accesses, access.group()]
            if jump := re.search(r"(@!?%p\d+)?\s*bra(?:\.uni)?\s+(\$L__BB\w+);", line):
                if not jump.group(1):
                    return follow(jump.group(2), seen, conditions, accesses)
                conditions += 1
                follow(jump.group(2), seen, conditions, accesses)
            if re.search(r"\bret;", line):
                return found.append((conditions, accesses))
        return follow(labels[labels.index(label) + 1], seen, conditions, accesses)

    follow("entry", frozenset(), 0, [])
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_quiet_rows_are_left_alone(target: str) -> None:
    """A row that loses nothing costs the mask one load of its slot and one of its 64 bytes of words."""
    quiet = ["ld.global.b64", "ld.global.b32"]
    for name, _, kernel in compiled(target, torch.float32):
        if name == "mask":
            ways = paths(kernel.asm["ptx"])
            decided = [conditions for conditions, accesses in ways if accesses == quiet]
            assert max(decided) >= 5, "a slot, a budget, not forcing, nothing barred, not fresh"
            assert all(accesses[:2] == quiet for _, accesses in ways if len(accesses) > 1)
