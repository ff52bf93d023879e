"""sglang's own ThinkingBudgetLogitProcessor for the ids of any model, as a client sends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
