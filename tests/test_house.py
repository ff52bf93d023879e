"""The shape of the source: an import graph without circles, files and functions that are read at one sitting, and no
module too small to be one."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("sglang_ext", "patches", "kernels")
ALIASES = {"sglang_ext.patches": "patches", "sglang_ext.budget.kernels": "kernels.budget"}
"""Import names of folders at the top level."""
FILE_LINES, FUNCTION_LINES, LEAST_LINES = 300, 50, 40
INTERFACES = {
    "sglang_ext.plugin": "sglang's entry point, named in pyproject.toml",
    "sglang_ext.http_worker": "sglang's tokenizer workers import it by name",
    "sglang_ext.cpu.spawned_main": "the main module of a spawned process",
    "sglang_ext.bench.start": "the main module of a benchmark's server",
    "sglang_ext.budget.entries": "the bits that the automaton writes and the kernels read, without torch",
    "patches.table": "all hooks",
    "patches.end_messages": "the messages between the tokenizer's process and the schedulers",
}
"""Modules that are small because others meet there. Beside them: packages, `__main__`, a file for each place of sglang
that is hooked, and a file for each operation of a kernel folder."""


@cache
def modules() -> dict[str, Path]:
    """Every module's file by its dotted name; a package's is its `__init__`."""
    found = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _canonical(name: str) -> str:
    for alias, real in ALIASES.items():
        if name == alias or name.startswith(alias + "."):
            return real + name[len(alias):]
    return name


def _imported(name: str, path: Path) -> set[str]:
    """Modules of ours that a module imports, in functions too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    found = {_canonical(full) for full in names}
    found = {full if full in modules() else full.rpartition(".")[0] for full in found}
    return (found & modules().keys()) - {name}


def test_the_import_graph_has_no_circle() -> None:
    graph = {name: _imported(name, path) for name, path in modules().items()}
    assert "patches.launch" in graph["patches.scheduler"]
    assert "kernels.budget" in graph["patches.sampling"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_row_of_the_table_names_a_function() -> None:
    from sglang_ext.patches.table import HOOKS

    for hook in HOOKS:
        module, name = hook.function.split(".")
        tree = ast.parse(modules()[f"patches.{module}"].read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _is_interface(name: str) -> bool:
    from sglang_ext.patches.table import HOOKS

    from sglang_ext.budget import kernels

    hooked = {f"patches.{hook.function.split('.')[0]}" for hook in HOOKS}
    if name in INTERFACES or name in hooked or modules()[name].name in ("__init__.py", "__main__.py"):
        return True
    defined = {f"kernels.budget.{getattr(kernels, op).__module__.rpartition('.')[2]}" for op in kernels.__all__}
    return name in defined


def test_no_module_is_too_small() -> None:
    small = {name for name, path in modules().items() if path.read_text().count("\n") < LEAST_LINES}
    assert {name for name in small if not _is_interface(name)} == set()
    assert small >= INTERFACES.keys()


@pytest.mark.parametrize("name", modules())
def test_files_and_functions_are_short(name: str) -> None:
    text = modules()[name].read_text()
    assert text.count("\n") <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"
