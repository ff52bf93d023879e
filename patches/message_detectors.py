"""sglang's parsers that read messages: for a request with a budget they begin where its prompt ends.

They read a response from its first byte, as if nothing stood before it. Where the prompt has begun a block or an
answer, they would take the one for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_ext.budget.families import Family, Implied

from .asked import Asked

Lead = Callable[[str, bool], str | None]
"""What is read before a response, from its text so far and whether more comes; None if that does not tell yet."""


def begin(detector: Any, family: Family, asked: Asked) -> None:
    """Let the detector of one response begin as its prompt says."""
    from sglang.srt.parser.harmony_parser import CanonicalStrategy, HarmonyParser

    assert asked.start is not None
    parser = getattr(detector, "parser", None)
    if isinstance(parser, HarmonyParser):
        parser.strategy = CanonicalStrategy()  # the other one takes any text that begins with "analysis" for thinking
    if family.implied is Implied.ALWAYS:
        if asked.begins_with_the_answer:
            _read_behind(detector, _answer_of(family))
    elif family.implied is Implied.ASKED:
        detector._in_reasoning = asked.start.open
        if not asked.start.open:
            _read_as_a_stream(detector)
    elif asked.start.open and (family.anywhere or family.openings):
        _read_behind(detector, lambda text, over: family.start)


def _answer_of(family: Family) -> Lead:
    """An end of thinking, and the header of the answer, unless the response has its own."""
    headers = [family.start, *(i.marker for i in family.implicit)]

    def lead(text: str, over: bool) -> str | None:
        body = text.lstrip()
        if body.startswith(family.start):
            return ""
        if body.startswith(tuple(headers)):
            return family.end
        if not over and any(header.startswith(body) for header in headers):
            return None
        return family.end + (family.answer or "")

    return lead


def _read_behind(detector: Any, lead: Lead) -> None:
    whole, increment, finish = detector.detect_and_parse, detector.parse_streaming_increment, detector.finish
    held: list[str] = [""]  # empty once the lead was read

    def detect_and_parse(text: str) -> Any:
        return whole((lead(text, True) or "") + text)

    def parse_streaming_increment(new_text: str) -> Any:
        if not held:
            return increment(new_text)
        held[0] += new_text
        before = lead(held[0], False)
        return increment("") if before is None else increment(before + held.pop())

    def finish_behind() -> Any:
        if not held:
            return finish()
        text = held.pop()
        return _together(increment((lead(text, True) or "") + text), finish())

    detector.detect_and_parse, detector.finish = detect_and_parse, finish_behind
    detector.parse_streaming_increment = parse_streaming_increment


def _read_as_a_stream(detector: Any) -> None:
    """In one piece sglang takes what stands before an end marker for thinking, in a stream it does not."""
    def detect_and_parse(text: str) -> Any:
        return _together(detector.parse_streaming_increment(text), detector.finish())

    detector.detect_and_parse = detect_and_parse


def _together(first: Any, second: Any) -> Any:
    from sglang.srt.parser.reasoning_parser import StreamingParseResult

    return StreamingParseResult(normal_text=first.normal_text + second.normal_text,
                                reasoning_text=first.reasoning_text + second.reasoning_text)
