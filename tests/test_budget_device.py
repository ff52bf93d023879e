"""What the kernels promise an engine about a step on a GPU, checked without one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from budget_cases import INTERPRETED, lifted
from sglang_ext.budget.kernels import BudgetState, Tables, Word, advance, commit, mask_logits, walk
from sglang_ext.budget.kernels.layout import NO_LIMIT, WORDS
from torch._subclasses.fake_tensor import FakeTensorMode

HERE = Path(__file__).parent


class Launches:
    """Stands for a kernel; notes each launch with its grid and its tensors."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], list[torch.Tensor]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **_: Any) -> None:
            flat = [x for arg in args for x in (arg if isinstance(arg, tuple) else [arg])]
            self.seen.append((grid, [x for x in flat if isinstance(x, torch.Tensor)]))

        return launch


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Launches]:
    kernels = {verb: Launches() for verb in ("mask", "advance", "walk", "commit")}
    for verb, kernel in kernels.items():
        monkeypatch.setattr(sys.modules[f"sglang_ext.budget.kernels.{verb}"], f"_{verb}_kernel", kernel)
    return kernels


def test_a_step_neither_synchronises_nor_allocates(launches: dict[str, Launches]) -> None:
    """No operation may wait for the device, as a mask's `nonzero` would. Fake CUDA tensors raise on a read of their
    values and on mixed devices; what a step allocates is counted."""
    a, n, k, vocab = lifted("plain", 48, True), 5, 4, 70_000
    with FakeTensorMode(allow_non_fake_inputs=False):
        state = BudgetState(torch.empty(9, WORDS, dtype=torch.int32, device="cuda"),
                            torch.empty(99, dtype=torch.int32, device="cuda"), 4, 8)
        columns = [field.name for field in fields(Tables)]
        tables = Tables(*(torch.empty(len(getattr(a, c)), dtype=torch.int32, device="cuda") for c in columns))
        rows = torch.empty(n, dtype=torch.int64, device="cuda")
        tokens = torch.empty(n, k + 1, dtype=torch.int64, device="cuda")
        logits = torch.empty(n * (k + 1), vocab, dtype=torch.bfloat16, device="cuda")
        nodes = state.allocate_nodes(n, k + 1)
        _ = tables.operands, state.operands
        with Allocations() as made:
            mask_logits(logits[:n], rows, state, tables)
            advance(tokens.view(-1)[:n], rows, state, tables)
            walk(logits, tokens, None, rows, nodes, state, tables)
            walk(logits, tokens, tokens, rows, nodes, state, tables)
            commit(tokens, rows, None, rows, nodes, state, tables)
    assert made.operators == []
    parts = 3  # of a row of 70,000
    assert [grid for grid, _ in launches["mask"].seen] == [(n, parts)]
    assert [grid for grid, _ in launches["advance"].seen] == [(n,)]
    assert [grid for grid, _ in launches["walk"].seen] == [(n, parts)] * 2
    assert [grid for grid, _ in launches["commit"].seen] == [(n,)]
    for kernel in launches.values():
        assert all(tensor.device.type == "cuda" for _, tensors in kernel.seen for tensor in tensors)


class Allocations(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operators that do more than look at a tensor's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view:
            self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def test_shapes_that_do_not_fit_are_refused() -> None:
    a = lifted("plain", 48, True)
    state = BudgetState.allocate(2, a.program, 8, "cpu")
    tables, rows = Tables.from_host(a, "cpu"), torch.arange(2)
    with pytest.raises(ValueError, match="47 columns, the tables know 48 ids"):
        mask_logits(torch.zeros(2, 47), rows, state, tables)
    with pytest.raises(ValueError, match="contiguous rows"):
        mask_logits(torch.zeros(48, 2).T, rows, state, tables)
    draft, nodes = torch.zeros(2, 3, dtype=torch.int64), state.allocate_nodes(2, 3)
    with pytest.raises(ValueError, match="2 requests with 3 nodes need 6 rows"):
        walk(torch.zeros(4, 48), draft, None, rows, nodes, state, tables)
    with pytest.raises(ValueError, match="6 nodes, but contiguous room for 0"):
        walk(torch.zeros(6, 48), draft, None, rows, nodes[:, :2], state, tables)
    with pytest.raises(ValueError, match="must be contiguous"):
        commit(draft.T, rows, None, rows, nodes, state, tables)
    with pytest.raises(ValueError, match="parents of shape"):
        commit(draft, rows, draft[:1], rows, nodes, state, tables)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_replay_from_a_cuda_graph() -> None:
    a = lifted("plain", 48, True)
    state, tables = BudgetState.allocate(4, a.program, 8, "cuda"), Tables.from_host(a, "cuda")
    state.words[:, Word.AUTO] = int(a.bytewise.words[a.bytewise.block_start])
    state.words[:, Word.FLAGS] = torch.tensor([0, 1, 1, 1], device="cuda")
    state.words[:, Word.MAX] = torch.tensor([0, 2, 5, NO_LIMIT], device="cuda")
    state.words[:, Word.GRACE] = state.words[:, Word.RESPONSE_LIMIT] = NO_LIMIT
    rows, nodes, first = torch.arange(4, device="cuda"), state.allocate_nodes(4, 3), state.words.clone()
    draft = torch.full((4, 3), 20, device="cuda")

    def steps() -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.zeros(12, 48, device="cuda")
        logits[:, 20] = 1
        mask_logits(logits[:4], rows, state, tables)
        tokens = logits[:4].argmax(1)
        advance(tokens, rows, state, tables)
        walk(logits, draft, None, rows, nodes, state, tables)
        sampled = logits.argmax(1).view(4, 3)
        last = (draft[:, 1:] == sampled[:, :-1]).int().cumprod(1).sum(1)
        commit(sampled, last, None, rows, nodes, state, tables)
        return tokens, sampled

    steps()  # compiles
    state.words.copy_(first)
    expected = [[x.tolist() for x in steps()] for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = steps()
    state.words.copy_(first)
    for want in expected:
        graph.replay()
        assert [x.tolist() for x in outputs] == want


def test_the_kernels_stand_alone() -> None:
    """They import no engine; and the folder above them is no package, which would hide PyPI's `kernels`."""
    code = """import sys
sys.modules["sglang"] = None
import sglang_ext.budget.kernels
from sglang_ext.budget import automaton
assert not any(name.startswith("sglang.") for name in sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not (HERE.parent / "kernels" / "__init__.py").exists()


@pytest.mark.skipif(INTERPRETED, reason="is in the interpreter already")
def test_the_kernels_in_the_interpreter() -> None:
    """The kernels' own code on the CPU; Triton has to be told before it is imported."""
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider",
                          HERE / "test_budget_kernels.py", HERE / "test_budget_oracle.py"],
                         env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
