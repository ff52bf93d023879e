"""What we take of sglang, besides the hooks of the table: names that are imported, classes that are subclassed, methods
that are overridden, and the operators of its CPU engine. Read from our own source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

HOOK, BASE, IMPORT, OPERATOR = "hook", "base", "import", "operator"
OVERRIDDEN = {
    "build_additional_customized_info": "what the scheduler reports of a request leaves sglang here",
    "is_request_level_customized_info_key": "the same",
}
STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
_TOOLS = ("bench", "demo", "double_query", "hf", "compat")
"""Folders of programs beside the server: a server does without the names that they import."""


@dataclass(frozen=True, order=True)
class Place:
    """Something of sglang's that we rely on.

    Attributes:
        path: its dotted name; of an operator, the name that it is registered under.
        kind: HOOK, BASE (subclassed or overridden), IMPORT or OPERATOR.
    """

    path: str
    kind: str


def taken() -> dict[Place, str]:
    """Every place beside the hooks, and the file that needs it."""
    found: dict[Place, str] = {Place(f"{STREAMER}.{name}", BASE): "patches/scheduler.py" for name in OVERRIDDEN}
    for name, text in _modules():
        for place in _places(ast.parse(text)):
            found.setdefault(place, name)
    bases = {place.path for place in found if place.kind == BASE}
    return {place: name for place, name in found.items() if place.kind != IMPORT or place.path not in bases}


def _modules() -> Iterator[tuple[str, str]]:
    """Our files that a server runs, and their text."""
    yield from _below(files("sglang_ext"), "sglang_ext", (*_TOOLS, "patches"))
    yield from _below(files("sglang_ext.patches"), "patches", ())


def _below(folder: Traversable, name: str, left_out: Sequence[str]) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name not in left_out:
            yield from _below(entry, f"{name}/{entry.name}", ())
        elif entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry.read_text(encoding="utf-8")


def _places(tree: ast.Module) -> Iterator[Place]:
    imported: dict[str, str] = {}
    for node in _run(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang" and not node.level:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from (Place(path, IMPORT) for path in imported.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in imported:
                    yield Place(imported[base.id], BASE)
        elif isinstance(node, ast.Dict):
            yield from _operators(node)


def _operators(node: ast.Dict) -> Iterator[Place]:
    """The operators of a dictionary from schemas to functions."""
    for key in node.keys:
        texts = [part.value for part in ast.walk(key or node) if isinstance(part, ast.Constant)]
        name = str(texts[0]).partition("(")[0] if texts else ""
        if name.endswith("_cpu") and name.isidentifier():
            yield Place(name, OPERATOR)


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _run(node)
