"""What of a definition counts: two sources with the same digests are the same code.

Comments, docstrings and formatting do not count. Functions that are defined inside count, functions that are called do
not. A digest does not depend on the Python that computes it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from typing import Any

from .definitions import Definition, Node

NONE = "-"
"""Stands where a definition has no parameters to speak of."""
_LENGTH = 12


def digest(text: str) -> str:
    """The first hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def source_of(definition: Definition) -> str:
    """Digest of the whole definition."""
    if not definition.nodes:
        return digest(definition.text)
    return digest("\n".join(canonical(node) for node in definition.nodes))


def parameters_of(definition: Definition) -> str | None:
    """Parameters of a function, as `inspect.signature` names them, without annotations and defaults; None for
    anything else."""
    node = definition.nodes[-1] if definition.nodes else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if any(isinstance(d, ast.Name) and d.id == "classmethod" for d in node.decorator_list):
        names = names[1:]
    if arguments.vararg is not None:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [a.arg for a in arguments.kwonlyargs]
    return ", ".join([*names, *(["**" + arguments.kwarg.arg] if arguments.kwarg is not None else [])])


def construction_of(definition: Definition, required: bool = False) -> str:
    """How a class is constructed: the parameters of its `__init__`, else its declared fields.

    Args:
        required: leave out those that have a default.
    """
    return "; ".join(_constructor(node, required) for node in definition.nodes if isinstance(node, ast.ClassDef))


def methods_of(definition: Definition) -> str:
    """The methods of a class, each with its parameters: what a subclass may override."""
    methods = [node for owner in definition.nodes for node in owner.body
               if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return "; ".join(sorted(f"{m.name}({parameters_of(Definition('', (m,), ''))})" for m in methods))


def _constructor(node: ast.ClassDef, required: bool) -> str:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            if required:
                statement = _without_defaults(statement)
            return parameters_of(Definition("", (statement,), "")) or ""
    return ", ".join(s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                     and not (required and s.value is not None))


def _without_defaults(node: ast.FunctionDef) -> ast.FunctionDef:
    """A function with only those parameters that must be given."""
    given = node.args
    arguments = ast.arguments(
        posonlyargs=[], args=[*given.posonlyargs, *given.args][:len(given.posonlyargs + given.args)
                                                               - len(given.defaults)],
        vararg=None, kwonlyargs=[a for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None],
        kw_defaults=[], kwarg=None, defaults=[])
    return ast.FunctionDef(name=node.name, args=arguments, body=node.body, decorator_list=[])


def canonical(node: ast.AST) -> str:
    """A node as text. Fields that are empty are left out: which ones exist differs between versions of Python."""
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__}:{node.value!r}"
    fields = [(name, _value(node, name, value)) for name, value in ast.iter_fields(node)]
    return f"{type(node).__name__}({','.join(f'{name}={value}' for name, value in fields if value)})"


def _value(node: ast.AST, name: str, value: Any) -> str:
    if isinstance(value, ast.AST):
        return canonical(value)
    if isinstance(value, list):
        kept = _without_docstring(node, value) if name == "body" else value
        parts = [canonical(part) if isinstance(part, ast.AST) else repr(part) for part in kept]
        return f"[{' '.join(parts)}]" if parts else ""
    return "" if value is None else repr(value)


def _without_docstring(node: ast.AST, body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    if isinstance(node, Node) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) \
            and isinstance(body[0].value.value, str):
        return body[1:]
    return body
