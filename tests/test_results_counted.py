"""The counts behind the results: from ids, and summed over choices. No server is started."""

from __future__ import annotations

import json
import pickle

from hypothesis import given
from hypothesis import strategies as st
from told_model import think

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton, Markers, Vocabulary
from sglang_ext.budget.contract import Limits
from sglang_ext.budget.results import ReasoningCounter, ReasoningTokens, advertised

PIECES = [b"a", b"\n", b"<t>", b"</t>", b"</", b"t", b">", b">\n", b"<|end|>"]
END = len(PIECES) - 1
AUTOMATON = Automaton(Markers(b"<t>", b"</t>", b"\n"), Vocabulary(PIECES, 2, (3,), (1,), (END,), frozenset({END})))


def counted(prompt: list[int], output: list[int]) -> int:
    counter = ReasoningCounter(AUTOMATON)
    return counter.advance(counter.start(prompt), output)


def test_a_token_is_thinking_if_a_block_is_open_before_it() -> None:
    assert counted([2], [0, 0, 3, 1, 0]) == 3
    assert counted([0], [2, 0, 3, 0]) == 2
    assert counted([2, 3], [0, 0]) == 0
    assert counted([2], [0, 4, 5, 7, 0]) == 4
    assert counted([2], [0, 99, -1]) == 3


@given(st.lists(st.integers(-1, END + 3), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_counting_in_parts_is_counting_at_once(output: list[int], cuts: list[int]) -> None:
    counter = ReasoningCounter(AUTOMATON)
    count = counter.start([2])
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
    assert known["markers"] == {"start": "<t>", "end": "</t>"}
