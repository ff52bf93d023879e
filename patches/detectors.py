"""`ReasoningParser`: what it calls thinking in a response that has a budget is what was counted and limited.

sglang's tag parsers look for markers as texts, wherever they stand. For a request with a budget they are told by the
budget's automaton instead; what they do with thinking and answer stays theirs. Parsers of families that have a protocol
of their own are told where the prompt ends (`message_detectors.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.splitter import Splitter

from . import message_detectors
from .asked import asked_of


def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    request = kwargs.get("request", args[3] if len(args) > 3 else None)
    asked, admission = asked_of(request), service.current_or_none()
    if asked is None or asked.start is None or admission is None or admission.automaton is None:
        return
    if not hasattr(self.detector, "stripped_think_start"):  # it is told what the prompt has begun
        return
    if admission.family.protocol:
        message_detectors.begin(self.detector, admission.family, asked)
        return
    self.detector.think_splitter = Splitter(admission.automaton, asked.start, asked.tools)
    self.detector._in_reasoning = self.detector.think_splitter.thinking


def detect_and_parse(original: Callable[..., Any], self: Any, text: str) -> Any:
    splitter: Splitter | None = getattr(self, "think_splitter", None)
    if splitter is None:
        return original(self, text)
    thought, answer = splitter.feed(text)
    rest, thinks = splitter.rest(), splitter.thinking
    return _result(thought + rest if thinks else thought, answer if thinks else answer + rest)


def parse_streaming_increment(original: Callable[..., Any], self: Any, new_text: str) -> Any:
    splitter: Splitter | None = getattr(self, "think_splitter", None)
    if splitter is None:
        return original(self, new_text)
    thought, answer = splitter.feed(new_text)
    self.stripped_think_start |= splitter.thinking or bool(thought)
    self._in_reasoning = splitter.thinking
    if not self.stream_reasoning:
        self._buffer += thought
        thought = "" if splitter.thinking else self._buffer
        self._buffer = self._buffer if splitter.thinking else ""
    return _result(thought, answer)


def finish(original: Callable[..., Any], self: Any) -> Any:
    splitter: Splitter | None = getattr(self, "think_splitter", None)
    if splitter is not None:
        self._buffer += splitter.rest()
        self._in_reasoning = splitter.thinking
    return original(self)


def _result(thought: str, answer: str) -> Any:
    from sglang.srt.parser.reasoning_parser import StreamingParseResult

    return StreamingParseResult(normal_text=answer, reasoning_text=thought)
