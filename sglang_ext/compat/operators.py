"""The operators of `sgl_kernel` that the CPU engine gets from us, as sglang calls them.

A call may move from one module to another; what counts is what it passes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from .digest import canonical
from .tree import Tree

FOLDERS = ("sglang/kernels/ops/kvcache", "sglang/kernels/ops/sampling", "sglang/kernels/ops/speculative",
           "sglang/srt/mem_cache", "sglang/srt/speculative")
"""Where sglang calls them."""
_IMPORT = re.compile(r"from[ \t]+sgl_kernel[.\w]*[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)")


def calls(tree: Tree, names: Sequence[str]) -> dict[str, list[ast.Call]]:
    """Every call of some operators, by the operator's name.

    Args:
        names: as they are registered, with `_cpu` at the end. The wrapper of one may have the name without it.
    """
    found: dict[str, list[ast.Call]] = {name: [] for name in names}
    for folder in FOLDERS:
        for path in tree.below(folder):
            text = tree.read(path) or ""
            for name in names if "sgl_kernel" in text else ():
                if name.removesuffix("_cpu") in text:
                    found[name] += _calls_in(text, name)
    return found


def signature(found: Sequence[ast.Call]) -> str:
    """How many arguments are passed, and which by name."""
    return "; ".join(sorted({f"{len(c.args)} {sorted(k.arg or '**' for k in c.keywords)}" for c in found}))


def source(found: Sequence[ast.Call]) -> str:
    """What is passed."""
    return "; ".join(sorted({",".join(canonical(a) for a in (*c.args, *c.keywords)) for c in found}))


def _calls_in(text: str, name: str) -> Iterator[ast.Call]:
    wrapper = name.removesuffix("_cpu")
    local = {rf"torch\.ops\.sgl_kernel\.{name}(?:\.default)?"}
    for listed in _IMPORT.findall(text):
        local |= set(re.findall(rf"\b(?:{name}|{wrapper})\b(?:\s+as\s+(\w+))?", listed)) - {""}
        local |= set(re.findall(rf"\b({name}|{wrapper})\b(?!\s+as\b)", listed))
    for start in re.finditer(rf"\b(?:{'|'.join(sorted(local))})\(", text):
        if text[max(0, start.start() - 4):start.start()].endswith(("def ", ".")):
            continue
        call = _expression(text, start.start())
        if call is not None:
            yield call


def _expression(text: str, start: int) -> ast.Call | None:
    """The call that begins at a position."""
    for end in (m.end() for m in re.finditer(r"\)", text[start:start + 4000])):
        try:
            node = ast.parse(text[start:start + end], mode="eval").body
        except SyntaxError:
            continue
        return node if isinstance(node, ast.Call) else None
    return None
