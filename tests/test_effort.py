"""`--think-effort`: what the operator may write, and what it does to a request."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import servers
from told_model import LOOP

from sglang_ext.budget.contract import CEILING, BudgetError, Limits
from sglang_ext.budget.effort import EFFORTS, Share, limits_something, parse_efforts
from sglang_ext.budget.service import refusing
from sglang_ext.cli import peel
from sglang_ext.config import Settings, SettingsError

OPEN = Limits()


def test_tokens_percentages_and_no_limit() -> None:
    assert parse_efforts("low=1024, medium = 25%,high=-1,none=0,max=12.5%", OPEN) == {
        "low": 1024, "medium": Share(Fraction(25), CEILING), "high": -1, "none": 0,
        "max": Share(Fraction(25, 2), CEILING),
    }
    assert parse_efforts("", OPEN) == {}


@pytest.mark.parametrize(("percent", "length", "tokens"), [("25", 100, 25), ("29", 100, 29), ("33", 10, 3),
                                                            ("100", 7, 7), ("0", 7, 0), ("12.5", 16, 2)])
def test_a_percentage_is_exact_and_rounded_down(percent: str, length: int, tokens: int) -> None:
    assert Share(Fraction(percent), CEILING).of(length) == tokens


def test_a_percentage_stays_below_the_ceiling() -> None:
    share = parse_efforts("low=50%", Limits(None, 100, allow_unlimited=False))["low"]
    assert isinstance(share, Share)
    assert (share.of(150), share.of(1000)) == (75, 100)


@pytest.mark.parametrize(("text", "parts"), [
    ("low", ["'low'", "NAME=BUDGET"]),
    ("low=1,", ["''", "NAME=BUDGET"]),
    ("lo=1", ["'lo'", *EFFORTS]),
    ("LOW=1", ["'LOW'", "low"]),
    ("low=1,low=2", ["low", "twice"]),
    ("low=", ["low", "''", "-1 (no limit)", "0% to 100%"]),
    ("low=-2", ["low", "'-2'", str(CEILING)]),
    ("low=1.5", ["low", "'1.5'"]),
    ("low=101%", ["low", "'101%'", "100%"]),
    ("low=-1%", ["low", "'-1%'"]),
    ("low=many", ["low", "'many'"]),
    (f"low={CEILING + 1}", ["low", str(CEILING + 1)]),
])
def test_what_is_not_accepted_is_named(text: str, parts: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        peel(["--think-effort", text])
    assert str(error.value).startswith("--think-effort")
    assert all(part in str(error.value) for part in parts), error.value


def test_a_ceiling_holds_for_efforts() -> None:
    for text in ("high=-1", "high=201"):
        with pytest.raises(SettingsError, match=r"--think-effort high: .*0 to 200"):
            Settings(think_budget_max=200, think_effort=text)


def test_the_map_goes_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, rest = peel(["--think-effort=low=4,medium=25%", "--tp", "1"])
    monkeypatch.setenv("SGLANG_EXT_THINK_EFFORT", settings.think_effort)
    assert rest == ["--tp", "1"]
    assert Settings.from_environment().efforts == settings.efforts


def test_a_server_that_cannot_enforce_an_effort_does_not_start() -> None:
    with pytest.raises(SettingsError, match="--think-effort cannot be enforced: unknown"):
        refusing(Settings(think_effort="low=5"), "unknown")
    assert refusing(Settings(think_effort="high=-1"), "unknown").automaton is None
    assert not limits_something(parse_efforts("high=-1", OPEN))


def test_an_unknown_name_is_the_pure_layers_error() -> None:
    with pytest.raises(BudgetError, match="'hi' is no effort"):
        parse_efforts("hi=5", OPEN)


def chat(server: servers.Server, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", {"model": "told", "temperature": 0, "max_tokens": 40,
                                                    "messages": [{"role": "user", "content": LOOP}], **body})
    assert response.status_code == 200, response.text
    return response.json()["usage"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("body", "budget"), [
    ({"reasoning_effort": "low"}, 2),
    ({"reasoning_effort": "medium"}, 10),
    ({"reasoning_effort": "medium", "max_tokens": None, "max_completion_tokens": 21}, 5),
    ({"reasoning_effort": "high"}, -1),
    ({"reasoning": {"effort": "low"}}, 2),
    ({"chat_template_kwargs": {"reasoning_effort": "low"}}, 2),
    ({"reasoning_effort": "low", "think_budget": 7}, 7),
    ({"reasoning": {"effort": "low", "max_tokens": 7}}, 7),
    ({"reasoning_effort": "low", "think_budget": -1}, -1),
], ids=str)
def test_chat(scripted_server: servers.Server, body: dict[str, Any], budget: int) -> None:
    """An effort gives the budget that the operator wrote; an explicit budget wins over it."""
    assert chat(scripted_server, **body)["think"]["budget"] == budget


def test_a_percentage_for_several_choices(scripted_server: servers.Server) -> None:
    choices = chat(scripted_server, reasoning_effort="medium", n=2)["think"]["choices"]
    assert [think["budget"] for think in choices] == [10, 10]


@pytest.mark.parametrize("body", [{"reasoning_effort": "minimal"}, {"reasoning_effort": 0.5}, {}], ids=str)
def test_an_effort_that_the_map_does_not_know_has_no_budget(scripted_server: servers.Server,
                                                            body: dict[str, Any]) -> None:
    assert "think" not in chat(scripted_server, **body)


def test_a_percentage_without_a_length_is_of_the_context_left(scripted_server: servers.Server) -> None:
    """`told` has a context of 2,048 tokens; sglang leaves one of it unused."""
    usage = chat(scripted_server, reasoning_effort="medium", max_tokens=None, stop="answer")
    assert usage["think"]["budget"] == (2048 - usage["prompt_tokens"] - 1) // 4


@pytest.mark.parametrize(("body", "budget"), [
    ({"reasoning": {"effort": "low"}}, 2),
    ({"reasoning": {"effort": "medium"}}, 10),
    ({"reasoning": {"effort": "low", "max_tokens": 7}}, 7),
    ({"chat_template_kwargs": {"reasoning_effort": "low"}}, 2),
    ({"reasoning": {"summary": "auto"}}, None),
], ids=str)
def test_responses(scripted_server: servers.Server, body: dict[str, Any], budget: int | None) -> None:
    """An effort that the client did not write is sglang's default, and no budget. sglang takes two tokens off
    `max_output_tokens`."""
    response = scripted_server.post("/v1/responses", {"model": "told", "temperature": 0, "max_output_tokens": 42,
                                                  "input": LOOP, **body})
    assert response.status_code == 200, response.text
    assert response.json()["usage"].get("think", {}).get("budget") == budget


def test_messages(scripted_server: servers.Server) -> None:
    response = scripted_server.post("/v1/messages", {"model": "told", "temperature": 0, "max_tokens": 40,
                                                 "messages": [{"role": "user", "content": LOOP}],
                                                 "output_config": {"effort": "low"}})
    assert response.json()["usage"]["think"]["budget"] == 2
