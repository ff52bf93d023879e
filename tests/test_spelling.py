"""Under which names and in which places a request's budget is read, and which names are refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.contract import BudgetError, Limits
from sglang_ext.budget.spelling import ALIASES, NESTED, PLACES, TEXTS, Off, Wish, names, read, unwrapped, without

OPEN = Limits()
FLAT = ("think_budget", *ALIASES)


def spelled(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {outer: {inner: value}} if inner else {outer: value}


def put(place: str, entries: dict[str, Any]) -> dict[str, Any]:
    if place in TEXTS:
        entries = {name: json.dumps(value) for name, value in entries.items()}
    return {place: entries} if place else entries


@pytest.mark.parametrize("place", ["", *PLACES])
@pytest.mark.parametrize("name", names())
def test_every_name_is_read_in_every_place(place: str, name: str) -> None:
    wish = read(put(place, spelled(name, 8)))
    assert [value for _, value in wish.budgets] == [8]
    assert wish.budgets[0][0] == (f"{place}.{name}" if place else name)
    assert (wish.off, wish.error) == (None, None)


@pytest.mark.parametrize("name", ["thinkingBudget", "thinking-budget", "maxThinkingTokens", "ThinkBudget",
                                  "THINK_BUDGET"])
def test_names_are_compared_by_their_words(name: str) -> None:
    assert read({name: 3}).budgets == ((name, 3),)
    assert without({name: 3, "top_p": 1}) == {"top_p": 1}


@pytest.mark.parametrize("text", ["8", '{"max_tokens": 8}', " 8 "])
def test_a_string_of_a_router_is_read_as_json(text: str) -> None:
    (_, value), = read({"metadata": {"think_budget": text}}).budgets
    assert value in (8, {"max_tokens": 8})


@pytest.mark.parametrize("text", ["eight", "8.5", "", "true", "[8]", '"8"'])
def test_a_string_that_is_no_budget_is_refused_later_under_its_name(text: str) -> None:
    from sglang_ext.budget.contract import one_of

    with pytest.raises(BudgetError, match=r"metadata\.think_budget"):
        one_of(read({"metadata": {"think_budget": text}}).given(OPEN, True), OPEN)


UNKNOWN = ["thinking_limit", "max_thinking", "maximum_reasoning_length", "thinking_tokens", "reasoning_budget_message",
           "max_think_len", "thought_budget", "reasoning_token_cap", "budget_tokens", "token_budget",
           "thinkBudgetTokens", "maxReasoningLength", "reasoning.budget", "thinking.max_tokens", "reasoning.max_length",
           "google.thinking.budget", "think_seconds", "thinking_timeout", "reasoning.deadline"]


REPORTS = ("think_seconds", "thinking_timeout", "reasoning.deadline", "thinking_tokens",
           "budget_tokens", "token_budget", "google.thinking.budget")
"""Names that clients have for something else among strings of their own."""


@pytest.mark.parametrize(("place", "name"), [
    (place, name) for place in ("", *PLACES, "some_vendor") for name in UNKNOWN
    if place not in TEXTS or name not in REPORTS])
def test_a_name_that_reads_like_a_budget_is_refused(place: str, name: str) -> None:
    body: Any = 5
    for part in reversed(name.split(".")):
        body = {part: body}
    error = read(put(place, body)).error
    assert error is not None
    assert name.rpartition(".")[2] in error
    assert all(known in error for known in names())


def test_a_number_as_thinking_is_refused_and_a_switch_is_none() -> None:
    assert "thinking: 512" in str(read({"thinking": 512}).error)
    for name in ("return_reasoning_tokens", "show_thinking_tokens", "count_thought_tokens"):
        assert read({name: True}) == Wish()
    assert read({"thinking_limit": None, "think_budget": None}) == Wish()


UNREAD: list[dict[str, Any]] = [
    {"sampling_params": {"think_budget": 4}}, {"sampling_params": {"custom_params": {"thinking_budget": 4}}},
    {"parameters": {"thinking_budget": 8}}, {"parameters": {"sampling_params": {"think_budget": 4}}},
    {"reasoning": {"max_reasoning_tokens": 5}}, {"thinking": {"thinking_budget": 5}},
    {"reasoning": {"reasoning": {"max_tokens": 5}}}, {"vendor": {"thinking": {"budget_tokens": 5}}},
    {"custom_params": {"chat_template_kwargs": {"thinking_budget": 4}}}, {"extraBody": {"thinking_budget": 4}},
    {"metadata": {"extra_body": '{"thinking_budget": 4}'}}, {"metadata": {"options": '{"thinking_budget": 4}'}},
    {"generation": [{"think_budget": 3}]}, {"generation": [[{"a": [{"thinking": {"budget_tokens": 3}}]}]]},
    {"options": {"thinking_config": {"thinking_config": {"thinkingBudget": 3}}}},
    {"generation_config": {"a": {"b": {"c": {"d": {"e": {"f": {"thinkingBudget": 3}}}}}}}},
]


@pytest.mark.parametrize("body", UNREAD, ids=str)
def test_a_budget_where_nothing_reads_it_is_refused_and_told_where_it_is_read(body: dict[str, Any]) -> None:
    """Each of these was a 200 and an unlimited thought."""
    error = str(read(body).error)
    assert "stands where nothing reads a budget" in error
    assert all(place in error for place in PLACES)


@given(st.sampled_from(FLAT), st.lists(st.sampled_from(["vendor", "sampling_params", "extra", "", 0]), max_size=20))
def test_a_budget_is_found_however_deep_it_stands(name: str, path: list[str | int]) -> None:
    body: Any = {name: 4}
    for part in path:
        body = [body] if part == 0 else {part: body}
    assert "stands where nothing reads a budget" in str(read({"vendor": body}).error)


@pytest.mark.parametrize("body", [{"generationConfig": {"thinkingConfig": {"thinkingBudget": 128}}},
                                  {"generation_config": {"thinking_budget": 128}},
                                  {"chatTemplateKwargs": {"thinkingBudget": 128}}], ids=str)
def test_places_are_compared_by_their_words(body: dict[str, Any]) -> None:
    assert [value for _, value in read(body).budgets] == [128]


@pytest.mark.parametrize("body", [
    {"messages": [{"content": {"think_budget": 5}}]}, {"tools": {"vendor": {"think_budget": 4}}},
    {"history": [{"usage": {"reasoning_tokens": 120}}, 5, "text", ["text"]]},
], ids=str)
def test_what_the_server_reads_itself_and_records_are_left_alone(body: dict[str, Any]) -> None:
    assert read(body, ("messages", "tools")) == Wish()


SCHEMA = {"type": "object", "properties": {"reasoning": {"type": "string", "maxLength": 500},
                                           "thinking_budget": {"type": "integer", "maximum": 5}}}


@pytest.mark.parametrize("body", [
    {"output_format": {"type": "json_schema", "schema": {"properties": SCHEMA["properties"]}}},
    {"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}, {"guided_json": {"anyOf": [SCHEMA]}},
    {"guided_json": {"$ref": "#/$defs/Step", "$defs": {"Step": SCHEMA, "reasoning": {"maxLength": 5}}}},
    {"guided_json": {"definitions": {"reasoning": {"maxLength": 5}}}}, {"json_schema": {"thinking": {"maxLength": 5}}},
    {"functions": [{"name": "f", "parameters": SCHEMA}]}, {"vendor": [{"input_schema": {"thinking_budget": 4}}]},
    {"guided_json": {"type": ["object", "null"], "thinking_budget": {"maximum": 5}}},
], ids=str)
def test_a_json_schema_is_not_looked_into(body: dict[str, Any]) -> None:
    assert read(body) == Wish()


@pytest.mark.parametrize("place", TEXTS)
@pytest.mark.parametrize("entries", [
    {"reason": "3"}, {"max_budget": "10.0"}, {"token_budget": "10"}, {"prev_usage": '{"reasoning_tokens": 120}'},
    {"reasoning_tokens": "120"}, {"thinking_tokens": "5"}, {"user": "5"}, {"thinking_max_reached": "true"},
    {"note": '{"think_budget": 5}'}, {"reasoning": '{"tokens": 120}'}, {"reasoning": "3"},
], ids=str)
def test_strings_of_the_clients_own_are_left_alone(place: str, entries: dict[str, str]) -> None:
    assert read({place: entries}) == Wish()


def test_arguments_of_a_clients_own_processor_are_left_alone() -> None:
    params = {"custom_params": {"reasoning_cap": 5, "vendor": {"thinking_budget": 4}}}
    assert read(params).error is not None
    assert read({**params, "custom_logit_processor": "text"}) == Wish()
    assert read({"custom_params": {"thinking_budget": 4}, "custom_logit_processor": "text"}).budgets


ANSWERS = ("Response", "Usage", "Details")


def models() -> list[Any]:
    from pydantic import BaseModel
    from sglang.srt.entrypoints.anthropic import protocol as anthropic
    from sglang.srt.entrypoints.ollama import protocol as ollama
    from sglang.srt.entrypoints.openai import protocol as openai
    from sglang.srt.managers import io_struct

    found = [value for module in (openai, anthropic, ollama) for _, value in inspect.getmembers(module, inspect.isclass)
             if issubclass(value, BaseModel) and not any(part in value.__name__ for part in ANSWERS)]
    return [*found, io_struct.GenerateReqInput]


def test_no_field_of_sglangs_own_reads_like_a_budget() -> None:
    """Nor does it where sglang does not have it: a request for another endpoint is not refused for its name."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    fields = set(SamplingParams.__struct_fields__)
    for model in models():
        known = model.model_fields if hasattr(model, "model_fields") else [f.name for f in dataclasses.fields(model)]
        fields |= set(known)
    assert len(fields) > 200
    fields -= {*FLAT, "think_wish", *NESTED.values()}
    for name in sorted(fields):
        for value in ("text", 5 if name not in ("think", "thinking", "reasoning") else "text", [1], {}):
            assert read({name: value}).error is None, name


OFF: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}}, {"reasoning": {"enabled": False}}, {"reasoning": {"enabled": "false"}},
    {"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}, {"enable_thinking": False}, {"thinking": False},
    {"think": False}, {"enable_thinking": "false"}, {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}}, {"chat_template_kwargs": {"reasoning_effort": "none"}},
    {"metadata": {"enable_thinking": "false"}}, {"custom_labels": {"think": "false"}}, {"options": {"think": False}},
    {"enableThinking": False}, {"reasoningEffort": "none"}, {"thinking": {"enabled": False}}, {"reasoning": False},
    {"reasoning": "none"}, {"think": 0}, {"enable_thinking": 0}, {"thinking": 0}, {"thinkingMode": "disabled"},
    {"chatTemplateKwargs": {"enableThinking": False}}, {"metadata": {"enable_thinking": "0"}},
    {"metadata": {"reasoning": '{"enabled": false}'}}, {"thinking": {"Type": "disabled"}},
]


@pytest.mark.parametrize("body", OFF, ids=str)
def test_off_is_off_and_no_budget_goes_with_it(body: dict[str, Any]) -> None:
    wish = read(body)
    assert wish.off is not None
    assert wish.given(OPEN, True) == [(wish.off, Off(True))]
    for budget in (5, {"max_tokens": 5}, {"min_tokens": 1}):
        with pytest.raises(BudgetError, match=rf"{wish.off} switches thinking off, and think_budget"):
            read({**body, "think_budget": budget}).given(OPEN, True)
    for budget in (0, -1, {"max_tokens": 0}, {"message": ""}):
        (_, value), = read({**body, "think_budget": budget}).given(OPEN, True)
        assert value == {"max_tokens": 0, "message": ""}


def test_an_anthropic_budget_beside_its_own_off() -> None:
    wish = read({"thinking": {"type": "disabled", "budget_tokens": 50}})
    with pytest.raises(BudgetError, match=r"thinking.type .*thinking.budget_tokens is 50"):
        wish.given(OPEN, True)


def test_an_explicit_message_is_kept() -> None:
    wish = read({"think": False, "think_budget": {"max_tokens": 0, "message": "Quick."}})
    assert wish.given(OPEN, True) == [("think_budget", {"max_tokens": 0, "message": "Quick."})]


@pytest.mark.parametrize("body", [
    {"thinking": {"type": "enabled"}, "reasoning": {"enabled": False}},
    {"enable_thinking": True, "thinking": {"type": "disabled"}},
    {"think": True, "chat_template_kwargs": {"enable_thinking": False}},
], ids=str)
def test_on_and_off_differ(body: dict[str, Any]) -> None:
    assert "differ" in str(read(body).error)


def test_an_effort_of_none_is_overridden_by_a_templates_switch_as_in_sglang() -> None:
    assert read({"reasoningEffort": "none", "chatTemplateKwargs": {"enableThinking": True}}) == Wish()
    assert read({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}) == Wish()


@pytest.mark.parametrize("body", [
    {"think": True}, {"think": "low"}, {"thinking": {"type": "enabled"}}, {"thinking": {"type": "adaptive"}},
    {"reasoning": {"summary": "auto"}}, {"reasoning_effort": "low"}, {"reasoning_effort": 0.5}, {},
    {"custom_params": {"thinking": False}}, {"messages": [{"content": {"thinking_limit": 5}}], "tools": []},
], ids=str)
def test_what_says_nothing(body: dict[str, Any]) -> None:
    assert read(body, ("messages", "tools")) == Wish()


def test_a_literal_extra_body_is_unwrapped() -> None:
    assert unwrapped({"model": "m", "extra_body": {"think_budget": 4}}) == {"model": "m", "think_budget": 4}
    assert unwrapped({"top_k": 3, "extra_body": {"top_k": 3}}) == {"top_k": 3}
    assert unwrapped({"extra_body": None}) == {}
    assert unwrapped({"extra_body": {"extra_body": {"think_budget": 4}, "a": 1}}) == {"a": 1, "think_budget": 4}
    with pytest.raises(BudgetError, match=r"top_k and extra_body.top_k differ: 3 and 4"):
        unwrapped({"top_k": 3, "extra_body": {"top_k": 4}})
    with pytest.raises(BudgetError, match="extra_body: 5"):
        unwrapped({"extra_body": 5})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.text(max_size=12) | st.sampled_from([*FLAT, *NESTED, *PLACES, "max_tokens", "type", "enabled", "effort"]),
        inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from([*FLAT, *NESTED, *PLACES, "think", "reasoning_effort"]),
                       json_values, max_size=5))
def test_whatever_stands_in_a_body_is_read_or_refused(body: dict[str, Any]) -> None:
    """A flat name with a value is in the wish, or the request has an error."""
    wish = read(body)
    flat = [name for name in FLAT if body.get(name) is not None]
    assert wish.error or {*flat} <= {name for name, _ in wish.budgets}


@pytest.mark.parametrize("value", [True, False, 1])
def test_loops_beside_a_budget_are_refused(value: Any) -> None:
    """They are a key of a budget; a switch of that name would be dropped."""
    error = read({"think_loops": value}).error
    assert error is not None
    assert "think_loops" in error
    assert "keys of think_budget" in error
