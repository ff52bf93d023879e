"""Models that a benchmark serves under more than one server, or loads itself; sglang's own budget for their ids."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from ..cli import has_flag
from ..cpu import gpu_available
from ..serve import DEMOS
from . import BenchError


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


@dataclass(frozen=True)
class Markers:
    """Ids of the start marker, the end marker and a line break."""

    start: int
    end: int
    line_break: int


def markers_of(model: Path) -> Markers | None:
    """The ids of `<think>`, `</think>` and a line break; None where a tokenizer has not one id for each."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in ("<think>", "</think>", "\n")]
    return Markers(*(i[0] for i in ids)) if all(len(i) == 1 for i in ids) else None


def processor_text(markers: Markers) -> str:
    """The text that goes into `custom_logit_processor`."""
    from sglang.srt.sampling.custom_logit_processor import ThinkingBudgetLogitProcessor

    class Budget(ThinkingBudgetLogitProcessor):  # type: ignore[misc]
        THINKING_START_TOKEN_ID = markers.start
        THINKING_END_TOKEN_ID = markers.end
        NEW_LINE_TOKEN_ID = markers.line_break

    return str(Budget().to_str())
