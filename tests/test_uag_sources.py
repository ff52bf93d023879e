"""Drafts from the text, and what comes of two sources: whose draft is verified, and whose record is told of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from draft_standin import EOS, StandInContext, StandInRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.uag.draft_state import Counts
from sglang_ext.uag.drafter import Drafter
from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.sources import Plan, RequestState, Sources
from sglang_ext.uag.speed_up import RequestStats
from sglang_ext.uag.text_source import Memory, TextSource

MOST = 4
REPEATS = [1, 2, 3, 4, 5, 6, 7, 1, 2]


class Told(FixedLengths):
    """What is observed is kept."""

    def __init__(self) -> None:
        super().__init__(MOST + 1)
        self.observed: list[tuple[str, int, int]] = []

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        self.observed.append((request.source, proposed, accepted))


def sources(*, shared: bool = True, model: bool = True) -> Sources:
    lengths = Told()
    drafter = Drafter(StandInContext, {EOS}, StandInRunner(), lengths, 64, True) if model else None
    return Sources(lengths, drafter, TextSource(MOST, shared=shared))


def drafted(s: Sources, states: Sequence[RequestState]) -> list[list[int]]:
    plans = s.plan(states, [state.num_confirmed for state in states], len(states))
    chosen = [(state, plan) for state, plan in zip(states, plans, strict=True) if plan.length]
    tokens, _ = s.draft([state for state, _ in chosen], [plan for _, plan in chosen], len(states))
    for (state, _), its in zip(chosen, tokens, strict=True):
        state.submitted = its
    return [list(state.submitted.ids) for state in states]


def confirmed(s: Sources, rid: str, ids: Sequence[int], prompt: int = 3) -> RequestState:
    state = s.state(rid, prompt)
    state.confirm(ids)
    return state


def test_a_text_that_comes_again_is_the_draft() -> None:
    s = sources(model=False)
    assert drafted(s, [confirmed(s, "x", REPEATS), confirmed(s, "new", [1, 2, 3])]) == [[3, 4, 5, 6], []]


def test_nothing_is_drafted_behind_an_end() -> None:
    source = TextSource(MOST, shared=False, ends=[4])
    s = Sources(Told(), None, source)
    assert drafted(s, [confirmed(s, "x", REPEATS)]) == [[3, 4]]


def test_the_model_drafts_where_the_text_has_nothing() -> None:
    s = sources()
    old, new = confirmed(s, "x", REPEATS), confirmed(s, "new", [11, 12, 13])
    assert drafted(s, [old, new])[0] == [3, 4, 5, 6]
    assert [state.submitted.source for state in (old, new)] == ["text", "draft"]


def test_the_outcome_is_told_to_the_source_of_the_draft() -> None:
    s = sources()
    old, new = confirmed(s, "x", REPEATS), confirmed(s, "new", [11, 12, 13])
    lengths = list(map(len, drafted(s, [old, new])))
    for state, length in zip((old, new), lengths, strict=True):
        state.counts.launch(length, 0, state.submitted.source)
    s.observe(old, 2)
    s.observe(new, 0)
    assert s.lengths.observed == [("text of own, 2", 4, 2), ("draft", lengths[1], 0)]
    assert old.counts.accepted_by == {"text": 2}
    assert new.counts.accepted_by == {"draft": 0}


def test_matches_of_other_lengths_have_other_records() -> None:
    """A repetition of many ids is not judged by what a repetition of one was worth."""
    s = sources(model=False)
    state = confirmed(s, "x", REPEATS)
    short = s.plan([state], [state.num_confirmed], 1)[0].stats
    state.confirm([3, 4, 5, 6, 7])
    long = s.plan([state], [state.num_confirmed], 1)[0].stats
    assert short is not long
    state.confirm([9, 1, 2])
    assert s.plan([state], [state.num_confirmed], 1)[0].stats is short


def test_a_draft_is_of_the_text_as_it_is_by_then() -> None:
    """Under overlap scheduling a plan is made while the last tokens are not known yet."""
    s = sources(model=False)
    state = confirmed(s, "x", REPEATS)
    plan = s.plan([state], [state.num_confirmed + 1], 1)
    state.confirm([3])
    assert s.draft([state], plan, 1)[0][0].ids == (4, 5, 6, 7)
    state.confirm([30])
    assert s.draft([state], plan, 1)[0][0].requested == 0


@pytest.mark.parametrize("shared", [True, False])
def test_a_response_helps_others_only_where_that_is_asked_for(shared: bool) -> None:
    s = sources(shared=shared, model=False)
    confirmed(s, "first", [20, 21, 22, 5, 6, 7, 8, 9], prompt=3)
    s.close(["first"])
    other = confirmed(s, "other", [30, 5, 6])
    assert drafted(s, [other]) == [[7, 8, 9] if shared else []]
    s.clear()
    assert drafted(s, [confirmed(s, "third", [31, 5, 6])]) == [[]]


def test_a_prompt_reaches_no_other_request() -> None:
    s = sources(model=False)
    confirmed(s, "first", [20, 21, 22, 5, 6], prompt=3)
    s.close(["first"])
    assert drafted(s, [confirmed(s, "other", [30, 20, 21])]) == [[]]


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=30), st.integers(8, 60))
def test_the_memory_keeps_the_latest_responses(responses: list[list[int]], capacity: int) -> None:
    memory = Memory(capacity)
    for response in responses:
        memory.add(response)
        kept = response[-(capacity // 2 - 1) :]
        assert memory.parts[0].ids[-len(kept) :].tolist() == kept
        assert sum(len(part.ids) for part in memory.parts) <= capacity


def test_plans_without_tokens_are_no_plans() -> None:
    s = sources(model=False)
    assert s.plan([s.state("empty", 0)], [0], 1) == [Plan()]


def test_accepted_tokens_are_counted_by_source() -> None:
    """The last step is judged by what the engine counted, and not at all where its outcome was not used."""
    counts = Counts()
    counts.launch(4, 0, "text")
    counts.judge(3)
    counts.judge(3)
    counts.launch(0, 2)
    counts.launch(5, 0, "draft")
    told = counts.result(3 + 2 + 1, verified=3)
    assert (told["proposed_by"], told["accepted_by"]) == ({"draft": 5, "text": 4}, {"draft": 1, "text": 3})
    told = counts.result(3 + 2, verified=2)
    assert (told["proposed_by"], told["accepted_by"]) == ({"draft": 0, "text": 4}, {"draft": 0, "text": 3})
