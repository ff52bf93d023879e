"""The request's budget and the operator's settings: what is accepted, what is refused, and how the refusal reads."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.contract import AUTO, CEILING, STOP_MESSAGE, BudgetError, Limits, ThinkBudget, one_of, parse
from sglang_ext.budget.spelling import spellings
from sglang_ext.cli import peel
from sglang_ext.config import Settings, SettingsError

OPEN = Limits()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=12) | st.sampled_from(
        ["max_tokens", "min_tokens", "grace_tokens", "message", "answer_tokens", "loops", "seconds", "since"]), inner,
        max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_every_value_is_a_budget_or_an_error_that_names_the_field(value: Any) -> None:
    refusal = None
    try:
        budget = parse(value, OPEN)
        assert -1 <= budget.max_tokens <= CEILING
        assert parse(budget.to_dict(), OPEN) == budget
    except BudgetError as error:
        refusal = str(error)
    assert refusal is None or refusal.startswith("think_budget")


@given(st.integers(-1, 60) | st.integers(-1, CEILING), st.integers(0, 50), st.integers(0, 50), st.text(max_size=20))
def test_the_object_form_reads_back(most: int, least: int, grace: int, message: str) -> None:
    value = {"max_tokens": most, "min_tokens": least, "grace_tokens": grace, "message": message}
    if (most == -1 and grace) or (most != -1 and max(least, grace) > most):
        with pytest.raises(BudgetError, match=r"grace_tokens|above max_tokens"):
            parse(value, OPEN)
        return
    budget = parse(value, OPEN)
    assert (budget.max_tokens, budget.min_tokens, budget.grace_tokens, budget.message) == (most, least, grace, message)


@pytest.mark.parametrize(("value", "parts"), [
    (-2, ["-2", "-1 (no limit)", str(CEILING)]),
    (1.5, ["1.5", "number"]),
    (1.0, ["1.0", "number"]),
    ("512", ['"512"', "string"]),
    (True, ["true", "boolean"]),
    (None, ["null"]),
    ([5], ["[5]", "array"]),
    (2**40, [str(2**40)]),
    ({"max_tokens": None}, ["think_budget.max_tokens", "null"]),
    ({"max_token": 4}, ['"max_token"', "answer_tokens"]),
    ({4: 4}, ["unknown key 4"]),
    ({"min_tokens": -1}, ["think_budget.min_tokens", "0 to"]),
    ({"message": "\ud800"}, ["think_budget.message", "surrogate"]),
    ("\ud800", ["\\ud800", "string"]),
    ({"max_tokens": -1, "grace_tokens": 5}, ["think_budget.grace_tokens", "5"]),
    *(({"seconds": value}, ["think_budget.seconds", shown, "0 to 86400", "null"]) for value, shown in (
        (-1, "-1"), (-0.5, "-0.5"), (float("nan"), "NaN"), (float("inf"), "Infinity"), (86401, "86401"),
        (True, "boolean"), ("8", "string"), ([8], "array"), (10**400, "10000"))),
    *(({"loops": value}, ["think_budget.loops", shown, "true or false"]) for value, shown in (
        (1, "integer"), ("true", "string"), (None, "null"), (0.0, "number"))),
    *(({"seconds": 1, "since": value}, ["think_budget.since", '"arrival"', '"first_token"']) for value in (
        "start", None, 1, ["arrival"], True)),
    ({"since": "arrival"}, ["think_budget.since", "no seconds"]),
    ({"seconds": None, "since": "first_token"}, ["think_budget.since", "no seconds"]),
])
def test_refusals_name_field_value_and_range(value: Any, parts: list[str]) -> None:
    with pytest.raises(BudgetError) as error:
        parse(value, OPEN)
    assert str(error.value).startswith("think_budget")
    assert all(part in str(error.value) for part in parts), error.value


@given(st.none() | st.floats(0, 86400) | st.integers(0, 86400), st.booleans(),
       st.sampled_from(["arrival", "first_token"]))
def test_times_and_loops_read_back(seconds: float | None, loops: bool, since: str) -> None:
    """With defaults of the server's too: what a request says stands, that it has no deadline included."""
    value = {"loops": loops, "seconds": seconds, **({"since": since} if seconds is not None else {})}
    for limits in (OPEN, Settings(think_loops=True, think_seconds=3.0).limits):
        budget = parse(value, limits)
        assert (budget.loops, budget.seconds) == (loops, seconds)
        assert budget.since == (since if seconds is not None else "arrival")
        assert parse(budget.to_dict(), limits) == budget
        assert budget.limited == (loops or seconds is not None)


def test_defaults_of_loops_and_seconds() -> None:
    settings, rest = peel(["--think-loops", "--think-seconds", "2.5"])
    assert rest == []
    assert settings.limits.default == ThinkBudget(answer_tokens=AUTO, loops=True, seconds=2.5)
    assert settings.enforces
    assert parse(7, settings.limits) == ThinkBudget(7, answer_tokens=AUTO, loops=True, seconds=2.5)
    assert parse({"loops": False, "seconds": None}, settings.limits) == ThinkBudget(answer_tokens=AUTO)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "86401"])
def test_seconds_of_the_operator_are_checked(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--think-seconds: .*accepted: a number from 0 to 86400"):
        _ = peel(["--think-seconds", text])[0].limits


def test_spellings_mean_the_same_and_must_agree() -> None:
    source = {"thinking_budget": 5, "reasoning": {"max_tokens": 5}, "thinking": {"budget_tokens": 5},
              "max_thinking_tokens": None, "think_budget": {"max_tokens": 5}}
    given_ = list(spellings(source))
    assert len(given_) == 4
    assert one_of(given_, OPEN) == ThinkBudget(5)
    with pytest.raises(BudgetError, match=r"think_budget and thinking_token_budget differ: .*5.* and 6"):
        one_of([*given_, *spellings({"thinking_token_budget": 6})], OPEN)
    assert one_of([], OPEN) is None


def test_ceiling_and_defaults() -> None:
    limits = Settings(think_budget=100, think_budget_max=200, think_message="m", think_answer_tokens=7).limits
    assert parse(50, limits) == ThinkBudget(50, answer_tokens=7)
    assert limits.message == "m"
    assert parse({"min_tokens": 10}, limits).max_tokens == 100
    for beyond in (201, -1):
        with pytest.raises(BudgetError, match="0 to 200"):
            parse(beyond, limits)


def test_a_ceiling_alone_is_the_default() -> None:
    assert Settings(think_budget_max=9).limits.default == ThinkBudget(9, answer_tokens=AUTO)


@pytest.mark.parametrize(("kwargs", "part"), [
    ({"think_budget": -2}, "--think-budget: -2"),
    ({"think_budget": 9, "think_budget_max": 8}, "--think-budget: 9"),
    ({"think_budget_max": -1}, "--think-budget-max"),
    ({"think_answer_tokens": -1}, "--think-answer-tokens"),
    ({"think_start": "<a>"}, "--think-end"),
    ({"think_start": "a", "think_end": "a"}, "different"),
    ({"think_message": "x" * 5000}, "--think-message"),
    ({"think_seconds": -1.0}, "--think-seconds: -1.0"),
])
def test_settings_are_checked(kwargs: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        Settings(**kwargs)


def test_flags_win_over_the_environment_and_the_rest_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_EXT_THINK_BUDGET", "5")
    monkeypatch.setenv("SGLANG_EXT_THINK_MESSAGE", "enough")
    settings, rest = peel(["--model-path", "m", "--think-budget=8", "--tp", "1", "--think-answer-tokens", "3"])
    assert (settings.think_budget, settings.think_message, settings.think_answer_tokens) == (8, "enough", 3)
    assert rest == ["--model-path", "m", "--tp", "1"]
    settings.to_environment()
    assert Settings.from_environment() == settings
    Settings().to_environment()
    assert "SGLANG_EXT_THINK_BUDGET" not in os.environ


@pytest.mark.parametrize("name", ["SGLANG_EXT_THINK_BUGDET", "SGLANG_EXT_UAG_LENGHTS", "SGLANG_EXT_ANYTHING"])
def test_an_unknown_variable_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}; known: .*SGLANG_EXT_UAG_OVERLAP"):
        Settings.from_environment({name: "5"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    others = {"SGLANG_EXT_CACHE": "/tmp", "SGLANG_EXT_MAIN_NAME": "m", "SGLANG_EXT_TEST_FLAGS": "", "SGLANG_OTHER": "1"}
    assert Settings.from_environment(others) == Settings()


def test_the_reserve_is_a_part_of_the_response_unless_it_is_set() -> None:
    assert Settings().limits.default == ThinkBudget(answer_tokens=AUTO)
    assert Settings().limits.message == STOP_MESSAGE
    assert not ThinkBudget(answer_tokens=AUTO).limited
    settings, _ = peel(["--think-answer-tokens", "auto"])
    assert settings.think_answer_tokens is AUTO
    assert peel(["--think-answer-tokens", "0"])[0].limits.default == ThinkBudget()
    with pytest.raises(SettingsError, match="--think-answer-tokens: 'some' is not an integer or auto"):
        peel(["--think-answer-tokens", "some"])


@given(st.integers(0, 20) | st.integers(0, 20000), st.integers(0, 5) | st.integers(0, 40), st.integers(-1, 100))
def test_the_automatic_reserve(most: int, closing: int, budget: int) -> None:
    """An eighth, 1 to 512, of a response that has room for more than the end of the thinking."""
    kept = ThinkBudget(budget, answer_tokens=AUTO).reserve(most, closing)
    if budget == -1 or most <= closing:
        assert kept == 0
    else:
        assert 1 <= kept <= 512
        assert kept == 512 or kept == 1 or kept * 8 <= most < kept * 8 + 8
    assert ThinkBudget(budget, answer_tokens=7).reserve(most, closing) == 7
    assert ThinkBudget(budget, answer_tokens=AUTO).reserve(None, closing) == 0


def test_a_number_that_is_none_is_an_error() -> None:
    with pytest.raises(SettingsError, match="--think-budget: 'ten' is not an integer"):
        peel(["--think-budget", "ten"])
    with pytest.raises(SettingsError, match="--think-seconds: 'ten' is not a number"):
        peel(["--think-seconds", "ten"])
