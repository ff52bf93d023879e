"""The shape of the source: an import graph without circles, files and functions that are read at one sitting."""

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
FILE_LINES, FUNCTION_LINES = 300, 50


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

@pytest.mark.parametrize("name", modules())
def test_files_and_functions_are_short(name: str) -> None:
    text = modules()[name].read_text()
    assert text.count("\n") <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"
