"""sglang's parsers of messages begin where a prompt ends, and DeepSeek's ends where the budget does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang_ext.budget.kernels.layout import INSIDE
from sglang_ext.patches import message_detectors
from sglang_ext.patches.asked import Asked

from sglang_ext.budget.families import FAMILIES
from sglang_ext.budget.prompt import Start

OPEN, CLOSED, OUTSIDE = Start(INSIDE), Start(0, closed=True), Start(0)


MARKER = re.compile(r"(<\|[A-Za-z_]*\|>)")


def parsed(name: str, start: Start, text: str, size: int, prefilled: bool = False) -> tuple[str, str]:
    """Thinking and answer, of a stream in pieces of a size, markers whole, or in one piece where it is 0."""
    detector: Any = ReasoningParser(name, force_reasoning=True).detector
    message_detectors.begin(detector, FAMILIES[name], Asked(parsed=True, prefilled=prefilled, start=start))
    if not size:
        whole = detector.detect_and_parse(text)
        return whole.reasoning_text, whole.normal_text
    pieces = [piece for part in MARKER.split(text) for piece in (
        [part] if MARKER.fullmatch(part) else [part[at : at + size] for at in range(0, len(part), size)])]
    parts = [detector.parse_streaming_increment(piece) for piece in pieces]
    parts.append(detector.finish())
    return "".join(part.reasoning_text for part in parts), "".join(part.normal_text for part in parts)


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize(("name", "start", "prefilled", "text", "expected"), [
    ("cohere_command4", OPEN, False, "hm<|END_THINKING|><|START_TEXT|>yes<|END_TEXT|>", ("hm", "yes")),
    ("cohere_command4", CLOSED, False, "yes<|END_TEXT|>", ("", "yes")),
    ("cohere_command4", CLOSED, False, "<|START_TEXT|>yes<|END_TEXT|>", ("", "yes")),
    ("cohere_command4", CLOSED, False, "<|START_ACTION|>[]<|END_ACTION|>", ("", "<|START_ACTION|>[]<|END_ACTION|>")),
    ("cohere_command4", CLOSED, False, "<|START", ("", "<|START")),
    ("cohere_command4", OUTSIDE, True, " and so on", ("", " and so on")),
    ("kimi_k3", OUTSIDE, False, "yes<|close|>think<|sep|>no", ("", "yes<|close|>think<|sep|>no")),
    ("kimi_k3", OUTSIDE, True, "and so on", ("", "and so on")),
    ("kimi_k3", OPEN, False, "hm<|close|>think<|sep|><|open|>response<|sep|>yes", ("hm", "yes")),
    ("gpt-oss", OUTSIDE, True, "Analysis of the data", ("", "Analysis of the data")),
    ("gpt-oss", OPEN, False, "hm<|end|><|start|>assistant<|channel|>final<|message|>yes", ("hm", "yes")),
    ("gpt-oss", OUTSIDE, False, "<|channel|>analysis<|message|>hm<|end|>", ("hm", "")),
    ("muse", OPEN, False, "hm<|eom|><|start|>assistant to=user<|message|>yes", ("hm", "yes")),
    ("inkling", OPEN, False, "hm<|end_message|><|message_model|><|content_text|>yes", ("hm", "yes")),
    ("apertus2509", OPEN, False, "hm<|inner_suffix|>yes", ("hm", "yes")),
])
def test_a_response_goes_on_where_its_prompt_ends(name: str, start: Start, prefilled: bool, text: str,
                                                  expected: tuple[str, str], size: int) -> None:
    assert parsed(name, start, text, size, prefilled) == expected
