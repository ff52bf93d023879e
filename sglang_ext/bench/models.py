"""Models that a benchmark serves under more than one server, or loads itself."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from ..cli import has_flag
from ..cpu import gpu_available
from ..serve import DEMOS
from .errors import BenchError


@dataclass(frozen=True)
class Served:
    """A model's folder, its name, and the flags that serve it, on sglang as published too."""

    path: Path
    name: str
    flags: list[str]
    on_cpu: bool


def resolve(demo: str, model_path: str | None, more: list[str]) -> Served:
    """The model that flags name; an embedded one is made on first use.

    Args:
        demo: key of `serve.DEMOS`, used without `model_path`.
        more: flags of the user's, which win.

    Raises:
        BenchError: it cannot be had.
    """
    if model_path:
        path, name = Path(model_path), Path(model_path).name
    else:
        try:
            path = getattr(importlib.import_module(f"sglang_ext.demo.{demo}"), demo)()
        except RuntimeError as error:
            raise BenchError(str(error)) from None
        name = DEMOS[demo][0]
    defaults = {"--served-model-name": name, "--reasoning-parser": "qwen3"}
    flags = ["--model-path", str(path)]
    flags += [part for flag, value in defaults.items() if not has_flag(more, flag) for part in (flag, value)]
    return Served(path, name, [*flags, *more], not gpu_available())
