"""The kernels compile ahead of time for the GPUs they are meant for, without spills, and leave quiet rows alone.

`python tests/test_budget_compile.py` prints the table of docs/kernels.md.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton
from budget_cases import INTERPRETED
from sglang_ext.budget.kernels.layout import Operands, StateOperands
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32),
           "gfx942": GPUTarget("hip", "gfx942", 64)}
TABLES = Operands(*["*i32"] * 9, *["i32"] * 3)
STATE = StateOperands("*i32", "*i32")
LOST = -(2.0**99)
KERNELS = ("mask", "advance", "walk chain", "walk tree", "commit chain", "commit tree")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")


def source(name: str, dtype: str, nodes: int = 9) -> tuple[Any, dict[str, Any], dict[str, Any], int]:
    """Kernel, signature, constants and warps, as the launch in its module has them."""
    from sglang_ext.budget.kernels.advance import _advance_kernel
    from sglang_ext.budget.kernels.commit import _commit_kernel
    from sglang_ext.budget.kernels.mask import _mask_kernel
    from sglang_ext.budget.kernels.walk import _walk_kernel

    rows, op = {"rows": "*i64"}, {"state": STATE, "tables": TABLES}
    matrix = {"logits": f"*{dtype}", "stride": "i32"}
    verb, _, shape = name.partition(" ")
    above = {"parents": "*i32" if shape == "tree" else "constexpr"}
    constants: dict[str, Any] = {} if shape != "chain" else {"parents": None}
    if verb == "mask":
        return _mask_kernel, {**matrix, "width": "i32", **rows, **op, "LOST": "constexpr"}, {"LOST": LOST}, 4
    if verb == "advance":
        return _advance_kernel, {"tokens": "*i64", **rows, **op}, {}, 1
    if verb == "walk":
        signature = {**matrix, "vocab": "i32", "draft": "*i64", **above, **rows, "nodes": "*i32", **op, "width": "i32"}
        return _walk_kernel, {**signature, "LOST": "constexpr"}, {**constants, "LOST": LOST}, 4
    signature = {"tokens": "*i64", "last": "*i64", **above, **rows, "nodes": "*i32", **op, "width": "i32"}
    return _commit_kernel, signature, constants, 1


@cache
def compiled(name: str, target: str, dtype: str = "bf16", nodes: int = 9, aligned: bool = True) -> Any:
    """`aligned`: as launched where the vocabulary and the row stride are multiples of 16; pointers always are."""
    kernel, signature, constants, warps = source(name, dtype, nodes)
    divisible: dict[Any, Any] = {}
    for i, (argument, kind) in enumerate(signature.items()):
        parts = {(i, j): part for j, part in enumerate(kind)} if isinstance(kind, tuple) else {(i,): kind}
        even = aligned and argument in ("stride", "width", "vocab")
        divisible |= {at: [["tt.divisibility", 16]] for at, part in parts.items() if part.startswith("*") or even}
    return triton.compile(ASTSource(kernel, signature, constants, divisible), target=TARGETS[target],
                          options={"num_warps": warps})


def resources(kernel: Any) -> dict[str, int]:
    """Registers a thread takes, and bytes of local memory and spills that it must not."""
    if "amdgcn" in kernel.asm:
        fields = dict(re.findall(r"\.(\w+):\s+(\d+)\n", kernel.asm["amdgcn"].rpartition("amdhsa.kernels")[2]))
        return {"registers": int(fields["vgpr_count"]),
                "local": int(fields["private_segment_fixed_size"]) + int(fields["vgpr_spill_count"])}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True)
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage.stdout))
    return {"registers": int(fields["REG"]), "local": int(fields["STACK"]) + int(fields["LOCAL"])}


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_spills(name: str, target: str, aligned: bool) -> None:
    used = resources(compiled(name, target, aligned=aligned))
    assert used["local"] == 0
    assert used["registers"] <= 64, "more would cost occupancy at batch 256"


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
@pytest.mark.parametrize("name", ["mask", "walk chain", "walk tree"])
def test_other_dtypes(name: str, dtype: str) -> None:
    assert resources(compiled(name, "sm_90", dtype, nodes=17))["local"] == 0


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
    ways = paths(compiled("mask", target).asm["ptx"])
    decided = [conditions for conditions, accesses in ways if accesses == quiet]
    assert max(decided) >= 5, "a slot, a budget, not forcing, nothing barred, not fresh"
    assert all(accesses[:2] == quiet for _, accesses in ways if len(accesses) > 1)


if __name__ == "__main__":
    print("| kernel | warps |", *(f"{target} |" for target in TARGETS))
    for each in KERNELS:
        used = (f"{resources(compiled(each, target))['registers']} |" for target in TARGETS)
        print(f"| {each} | {source(each, 'bf16')[3]} |", *used)
