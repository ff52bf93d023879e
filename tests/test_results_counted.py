"""The counts behind the results: from ids, and summed over choices. No server is started."""

from __future__ import annotations

import json
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_ext.patches.usage import Report, calculate_streaming_usage, update_request_meta_info
from told_model import think

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton, Markers, Vocabulary
from sglang_ext.budget.contract import Limits
from sglang_ext.budget.prompt import Request
from sglang_ext.budget.results import ReasoningCounter, ReasoningTokens, advertised

PIECES = [b"a", b"\n", b"<t>", b"</t>", b"</", b"t", b">", b">\n", b"<|end|>"]
END = len(PIECES) - 1
AUTOMATON = Automaton(Markers(b"<t>", b"</t>", b"\n"), Vocabulary(PIECES, 2, (3,), (1,), (END,), frozenset({END})))


def counted(prompt: list[int], output: list[int]) -> int:
    counter = ReasoningCounter(AUTOMATON)
    return counter.advance(counter.start(prompt, Request()), output)


def test_a_token_is_thinking_if_a_block_is_open_before_it() -> None:
    assert counted([2], [0, 0, 3, 1, 0]) == 3
    assert counted([0], [2, 0, 3, 0]) == 2
    assert counted([2, 3], [0, 0]) == 0
    assert counted([2], [0, 4, 5, 7, 0]) == 4
    assert counted([2], [0, 99, -1]) == 3


@given(st.lists(st.integers(-1, END + 3), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_counting_in_parts_is_counting_at_once(output: list[int], cuts: list[int]) -> None:
    counter = ReasoningCounter(AUTOMATON)
    count = counter.start([2], Request())
    for cut in sorted(cuts):
        counter.advance(count, output[:cut])
    assert counter.advance(count, output) == counted([2], output)
    assert counter.advance(count, output) == count.tokens


def test_a_sum_keeps_the_objects_of_its_parts() -> None:
    parts = [ReasoningTokens(5, [think(9, 5, 0, "natural")]), ReasoningTokens(7, [think(4, 4, 3, "forced")])]
    total = sum(parts)
    assert isinstance(total, ReasoningTokens)
    assert total == 12
    assert total.think == {"tokens": 9, "forced_tokens": 3, "choices": [think(9, 5, 0, "natural"),
                                                                      think(4, 4, 3, "forced")]}
    assert parts[0].think == think(9, 5, 0, "natural")


def test_a_count_is_written_as_a_number_and_survives_a_pickle() -> None:
    count = ReasoningTokens(5, [think(9, 5, 0, "natural")])
    assert json.dumps({"reasoning_tokens": count}) == '{"reasoning_tokens": 5}'
    again = pickle.loads(pickle.dumps(count))
    assert (again, again.think) == (5, think(9, 5, 0, "natural"))


def test_unknown_markers_are_advertised_as_nothing() -> None:
    assert advertised(Admission(Limits(), None, lambda text: []), {}) is None
    known = advertised(Admission(Limits(), AUTOMATON, lambda text: []), {})
    assert known is not None
    assert known["markers"] == {"start": "<t>", "end": "</t>", "line_break": "\n"}


def reported(report: Report, finish_reason: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """`meta_info` after a report of the scheduler, and what is left for sglang."""
    meta_info = {"id": "r", "reasoning_tokens": 99}
    left: dict[str, Any] = {}

    def original(self: Any, meta_info: Any, state: Any, customized_info: dict[str, Any], *rest: Any) -> None:
        left.update(customized_info)

    info = {"think": [[], [report]], "other": [[1], [2]]}
    update_request_meta_info(original, None, meta_info, SimpleNamespace(), info, 1, finish_reason)
    return meta_info, left


def test_a_report_becomes_meta_info() -> None:
    meta_info, left = reported(Report(7, think(4, 4, 3, "forced")), None)
    assert (meta_info["reasoning_tokens"], meta_info["think"]) == (7, think(4, 4, 3, "forced"))
    assert left == {"other": [[1], [2]]}


def test_a_report_without_a_budget_is_a_count_alone() -> None:
    meta_info, _ = reported(Report(7, None), None)
    assert meta_info == {"id": "r", "reasoning_tokens": 7}
    assert type(meta_info["reasoning_tokens"]) is int
    assert reported(Report(None, None), None)[0] == {"id": "r", "reasoning_tokens": 99}


def test_a_forced_end_is_logged_once_and_only_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for outcome, finish_reason in (("forced", None), ("natural", {"type": "stop"}), ("open", {"type": "abort"})):
        reported(Report(7, think(4, 4, 3, outcome)), finish_reason)
    assert caplog.records == []
    reported(Report(7, think(4, 4, 3, "forced")), {"type": "stop"})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "Request r: its budget of 4 ended the thinking (forced) after 4 tokens and wrote 3")]


def test_the_choices_of_a_stream_are_put_in_order() -> None:
    """Whichever choice began first."""
    counts = {1: ReasoningTokens(7, [think(4, 4, 3, "forced")]), 0: ReasoningTokens(5, [think(9, 5, 0, "natural")])}
    total = calculate_streaming_usage(lambda prompts, reasoning: sum(reasoning.values()), {}, counts)
    assert [choice["tokens"] for choice in total.think["choices"]] == [5, 4]
