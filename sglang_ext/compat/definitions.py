"""Where a dotted name of sglang is defined, found in the source text.

Only the lines of one definition are parsed where possible: some of sglang's modules take a tenth of a second. A text
that is not as plain as that is parsed whole; both ways find the same.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .tree import PACKAGE, Tree

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_MOST_STEPS = 12
"""How often an imported name is followed to another module."""


@dataclass(frozen=True)
class Definition:
    """A definition of a name.

    Attributes:
        module: dotted name of the module that it stands in.
        nodes: what defines it, in order: mostly one function or class, several where a condition chooses, none where
            the name is assigned or a method is inherited from outside sglang.
        text: source of the nodes; what defines the name where there are none.
    """

    module: str
    nodes: tuple[Node, ...]
    text: str


def find(tree: Tree, path: str) -> Definition | None:
    """The definition of a dotted name, through imports and base classes; None if there is none."""
    return _find(tree, path, _MOST_STEPS)


def _find(tree: Tree, path: str, steps: int) -> Definition | None:
    module, names = _split(tree, path)
    if module is None or not names or steps == 0:
        return Definition(module, (), "module") if module is not None and not names else None
    text = _text(tree, module) or ""
    found = _defined(module, text, names)
    if found is not None:
        return found
    owner = _defined(module, text, names[:1]) if len(names) == 2 else None
    if owner is not None:
        return _inherited(tree, module, owner, names[1], steps)
    return _elsewhere(tree, module, text, names, steps)


def _split(tree: Tree, path: str) -> tuple[str | None, list[str]]:
    """The longest prefix that is a module, and the names behind it."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if _text(tree, module) is not None:
            return module, parts[length:]
    return None, parts


def _text(tree: Tree, module: str) -> str | None:
    if module.split(".")[0] != PACKAGE:
        return None
    path = module.replace(".", "/")
    text = tree.read(path + ".py")
    return tree.read(path + "/__init__.py") if text is None else text


def _inherited(tree: Tree, module: str, owner: Definition, name: str, steps: int) -> Definition | None:
    """An attribute of a class that one of its bases has. A constructor may come from outside sglang."""
    bases = [ast.unparse(base) for node in owner.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    for base in bases:
        found = _find(tree, f"{module}.{base}.{name}", steps - 1)
        if found is not None:
            return found
    return Definition(module, (), f"inherited from {', '.join(bases)}") if name == "__init__" else None


def _elsewhere(tree: Tree, module: str, text: str, names: Sequence[str], steps: int) -> Definition | None:
    """A name that the module imports, or assigns."""
    package = module if tree.read(module.replace(".", "/") + "/__init__.py") is not None else module.rpartition(".")[0]
    stars = []
    for source, imported in _imports(text):
        origin = _absolute(source, package)
        for name, alias in imported:
            if alias == names[0]:
                return _find(tree, ".".join([origin, name, *names[1:]]), steps - 1)
            if name == "*":
                stars.append(origin)
    for origin in stars:
        found = _find(tree, ".".join([origin, *names]), steps - 1) if origin != module else None
        if found is not None:
            return found
    assigned = re.search(rf"^{names[0]}\s*(:[^=\n]*)?=", text, re.MULTILINE)
    return Definition(module, (), "assigned") if assigned and len(names) == 1 else None


def _imports(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Every `from M import N as A` of a text: M, and the pairs of N and A."""
    for source, listed in _FROM.findall(text):
        plain = re.sub(r"#[^\n]*", "", listed).strip("() \t\n")
        pairs = [part.split() for part in plain.split(",") if part.strip()]
        yield source, [(words[0], words[-1]) for words in pairs]


def _absolute(source: str, package: str) -> str:
    """The module that `from SOURCE import` names within a package."""
    dots = len(source) - len(source.lstrip("."))
    if not dots:
        return source
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - dots + 1], source[dots:]]).rstrip(".")


def _defined(module: str, text: str, names: Sequence[str]) -> Definition | None:
    """A function or class of the module, or of a class in it."""
    short = _quick(text, names)
    if short is not None:
        return Definition(module, (short[0],), short[1])
    if not re.search(rf"^\s*(?:async\s+def|def|class)\s+{names[-1]}\b", text, re.MULTILINE):
        return None
    nodes = parsed(text, names)
    return Definition(module, tuple(nodes), "\n".join(ast.unparse(node) for node in nodes)) if nodes else None


def parsed(text: str, names: Sequence[str]) -> list[Node]:
    """The nodes that define a name, by parsing the whole text."""
    scope: list[ast.stmt] = list(ast.parse(text).body)
    nodes: list[Node] = []
    for name in names:
        nodes = [node for node in _flat(scope) if node.name == name]
        scope = [statement for node in nodes for statement in node.body]
    return nodes


def _flat(statements: Sequence[ast.stmt]) -> Iterator[Node]:
    """Functions and classes of a scope, under conditions too."""
    for statement in statements:
        if isinstance(statement, _NODES):
            yield statement
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flat(handler.body)


def _quick(text: str, names: Sequence[str]) -> tuple[Node, str] | None:
    """A definition that stands once, at its scope's own level, and its lines; None if that is not plain."""
    lines, indent = text.split("\n"), ""
    for name in names:
        heads = tuple(f"{indent}{word} {name}{then}" for word in ("def", "class", "async def") for then in "(:[")
        starts = [n for n, line in enumerate(lines) if line.startswith(heads)]
        if len(starts) != 1:
            return None
        first = starts[0]
        if name is not names[-1]:
            lines = lines[first + 1:_ends(lines, first, indent)[0]]
            indent = next((m[0] for line in lines if (m := re.match(r"[ \t]+(?=[\w@])", line))), "")
    start = _decorated(lines, first, indent)
    for end in _ends(lines, first, indent) if start is not None else ():
        node = _parse("\n".join(lines[start:end]), indent)
        if node is not None:
            return node, textwrap.dedent("\n".join(lines[start:end]))
    return None


def _ends(lines: Sequence[str], first: int, indent: str) -> list[int]:
    """Lines before which a block may end: those that are not deeper. The first of them lies within the block only where
    a bracket or a text goes on."""
    deeper = re.compile(rf"{indent}\s|\s*(?:#|$)|\s*[)\]}}]")
    return [n for n in range(first + 1, len(lines)) if not deeper.match(lines[n])] + [len(lines)]


def _parse(block: str, indent: str) -> Node | None:
    """The one definition of a block that may be indented. It is not dedented: that would change texts in it."""
    try:
        body = ast.parse(f"if 1:\n{block}" if indent else block).body
    except SyntaxError:
        return None
    if indent and isinstance(body[0], ast.If):
        body = body[0].body
    return body[0] if len(body) == 1 and isinstance(body[0], _NODES) else None


def _decorated(lines: Sequence[str], first: int, indent: str) -> int | None:
    """The line at which a definition's decorators begin; None if they are longer than a line each."""
    while first > 0 and lines[first - 1].startswith(indent + "@"):
        first -= 1
    return None if first > 0 and re.match(rf"{indent}[)#]", lines[first - 1]) else first
