"""What a client says about thinking, on every endpoint, directly and through sglang-router with two workers.

Reported: budgets under other servers' names, in a literal `extra_body`, and in fields that the router drops, cost
nothing but the whole response's tokens; thinking that was switched off went on.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fleet as fleets
import pytest
import requests
import servers
from told_model import CLOSE, LOOP, THREE, think

from sglang_ext.budget.spelling import names

FORCED = think(4, 4, CLOSE, "forced")
SAYS = [{"role": "user", "content": LOOP}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "<think>" + LOOP, "sampling_params": {"temperature": 0, "max_new_tokens": 12}},
    "/v1/completions": {"model": "told", "prompt": "<think>" + LOOP, "temperature": 0, "max_tokens": 12},
    "/v1/chat/completions": {"model": "told", "messages": SAYS, "temperature": 0, "max_tokens": 12},
    "/v1/responses": {"model": "told", "input": LOOP, "temperature": 0, "max_output_tokens": 14},
    "/v1/messages": {"model": "told", "messages": SAYS, "temperature": 0, "max_tokens": 12},
    "/api/chat": {"model": "told", "messages": SAYS, "stream": False, "options": {"temperature": 0, "num_predict": 12}},
    "/api/generate": {"model": "told", "prompt": "<think>" + LOOP, "stream": False,
                      "options": {"temperature": 0, "num_predict": 12}},
}
OPENAI = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
TEMPLATED = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
RAW = ("/v1/completions", "/api/generate")
EVERYWHERE = (*TEMPLATED, *RAW)


def ask(server: servers.Server, path: str, more: dict[str, Any]) -> requests.Response:
    body = {**BODIES[path], **more}
    for place in ("options", "sampling_params"):
        if place in BODIES[path]:
            body[place] = {**BODIES[path][place], **more.get(place, {})}
    return server.post(path, body, timeout=60)


def usage(response: requests.Response) -> tuple[Any, int | None]:
    """The `think` object of an answer, and how many tokens it says were thinking, where its format can say so."""
    assert response.status_code == 200, response.text
    body = response.json()
    if "meta_info" in body:
        return body["meta_info"].get("think"), body["meta_info"]["reasoning_tokens"]
    if "usage" not in body:
        return body.get("think"), None
    details = body["usage"].get("completion_tokens_details") or body["usage"].get("output_tokens_details") or {}
    return body["usage"].get("think"), details.get("reasoning_tokens", details.get("thinking_tokens", 0))


def spelled(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {outer: {"type": "enabled", inner: value} if outer == "thinking" else {inner: value}} if inner else {
        name: value}


@pytest.mark.parametrize("name", [*names(), "nvext.max_thinking_tokens", "thinkingBudget"])
@pytest.mark.parametrize("path", EVERYWHERE)
def test_every_name_is_honoured_on_every_endpoint(fleet: fleets.Fleet, path: str, name: str) -> None:
    if path == "/v1/messages" and name == "thinking.budget_tokens":
        pytest.skip("Anthropic's own, from 1,024 on")
    assert usage(ask(fleet.direct, path, spelled(name, 4)))[0] == FORCED
    bad = ask(fleet.direct, path, spelled(name, "4"))
    assert bad.status_code == 400
    assert name.rpartition(".")[2] in bad.text


@pytest.mark.parametrize("place", ["custom_params", "chat_template_kwargs", "metadata", "custom_labels", "options"])
@pytest.mark.parametrize("path", EVERYWHERE)
def test_every_place_is_read_on_every_endpoint(fleet: fleets.Fleet, path: str, place: str) -> None:
    strings = place in ("metadata", "custom_labels")
    for value in ("4", '{"max_tokens": 4}') if strings else (4, {"max_tokens": 4}):
        assert usage(ask(fleet.direct, path, {place: {"reasoning_budget": value}}))[0] == FORCED
    response = ask(fleet.direct, path, {place: {"reasoning_budget": "-7" if strings else -7}})
    assert response.status_code == 400
    assert f"{place}.reasoning_budget: -7" in response.text


@pytest.mark.parametrize("path", EVERYWHERE)
def test_two_that_differ_are_refused(fleet: fleets.Fleet, path: str) -> None:
    for more in ({"think_budget": 4, "metadata": {"think_budget": "5"}}, {"reasoning_budget": 4, "thinkingBudget": 5},
                 {"chat_template_kwargs": {"think_budget": 4}, "custom_labels": {"max_reasoning_tokens": "5"}}):
        response = ask(fleet.direct, path, more)
        assert response.status_code == 400
        assert all(part in response.text for part in ("differ", "4", "5"))


@pytest.mark.parametrize("more", [
    {"sampling_params": {"reasoning_budget": 4}}, {"sampling_params": {"thinkingBudget": 4}},
    {"sampling_params": {"custom_params": {"max_reasoning_tokens": 4}}}, {"custom_labels": {"think_budget": "4"}},
    {"custom_labels": {"thinking": '{"budget_tokens": 4}'}}, {"max_thinking_tokens": 4},
    {"custom_labels": {"think_budget": "4"}, "sampling_params": {"think_budget": 4}},
], ids=str)
def test_generate(fleet: fleets.Fleet, more: dict[str, Any]) -> None:
    assert usage(ask(fleet.direct, "/generate", more)) == (FORCED, 4 + CLOSE)


@pytest.mark.parametrize(("more", "parts"), [
    ({"custom_labels": {"think_budget": "-4"}}, ["custom_labels.think_budget: -4"]),
    ({"custom_labels": {"think_budget": "four"}}, ["custom_labels.think_budget", "four"]),
    ({"custom_labels": {"think_budget": "4"}, "sampling_params": {"think_budget": 5}}, ["differ", "5", "4"]),
    ({"metadata": {"think_budget": "4"}}, ["metadata.think_budget", "sampling_params"]),
    ({"extra_body": {"think_budget": 4}}, ["extra_body.think_budget", "4", "sampling_params"]),
    ({"thinking_limit": 4}, ["thinking_limit", "think_budget"]),
    ({"sampling_params": {"custom_params": {"thinking_limit": 4}}}, ["thinking_limit", "think_budget"]),
    ({"enable_thinking": False}, ["enable_thinking", "budget of 0"]),
    ({"custom_labels": {"think": "false"}, "sampling_params": {"think_budget": 5}}, ["custom_labels.think", "5"]),
], ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_generate_refuses(fleet: fleets.Fleet, more: dict[str, Any], parts: list[str], stream: bool) -> None:
    response = ask(fleet.direct, "/generate", {**more, "stream": stream})
    assert response.status_code == 400
    assert all(part in response.text for part in parts), response.text


def test_labels_of_the_clients_own_go_their_way(fleet: fleets.Fleet) -> None:
    """A label that the metrics do not have ends sglang's own server; here it is no label."""
    response = ask(fleet.direct, "/generate", {"custom_labels": {"tier": "gold", "think_budget": "4"}})
    assert usage(response)[0] == FORCED
    assert ask(fleet.direct, "/generate", {"custom_labels": {"tier": "gold"}}).status_code == 200


def test_a_batch_has_its_labels(fleet: fleets.Fleet) -> None:
    body = {"text": ["<think>" + LOOP, "<think>" + THREE], "sampling_params": {"temperature": 0, "max_new_tokens": 12},
            "custom_labels": {"think_budget": "4"}}
    got = fleet.direct.post("/generate", body).json()
    assert [each["meta_info"]["think"]["budget"] for each in got] == [4, 4]


SURVIVES = [
    ("/v1/chat/completions", {"metadata": {"think_budget": "4"}}),
    ("/v1/chat/completions", {"metadata": {"think_budget": '{"max_tokens": 4, "message": ""}'}}),
    ("/v1/chat/completions", {"chat_template_kwargs": {"think_budget": 4}}),
    ("/v1/chat/completions", {"chat_template_kwargs": {"think_budget": {"max_tokens": 4}}}),
    ("/generate", {"custom_labels": {"think_budget": "4"}}),
    ("/generate", {"custom_labels": {"think_budget": '{"max_tokens": 4}'}}),
    ("/v1/responses", {"metadata": {"think_budget": "4"}}),
    ("/v1/completions", {"think_budget": 4}),
    ("/v1/completions", {"metadata": {"think_budget": "4"}}),
]


@pytest.mark.parametrize(("path", "more"), SURVIVES, ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_through_the_router(fleet: fleets.Fleet, path: str, more: dict[str, Any], stream: bool) -> None:
    """A budget of 8 in a chat through the router thought 50 tokens, and a budget of -5 was a 200."""
    if not stream:
        assert usage(ask(fleet.router, path, more)) == (FORCED, 4 + CLOSE)
        bad = ask(fleet.router, path, json.loads(json.dumps(more).replace("4", "-5")))
        assert bad.status_code == 400
        assert "-5 is out of range" in bad.text
        return
    options = {"stream_options": {"include_usage": True}} if path in OPENAI[:2] else {}
    response = ask(fleet.router, path, {**more, "stream": True, **options})
    assert response.status_code == 200, response.text
    assert json.dumps(FORCED, separators=(",", ":")) in response.text.replace(": ", ":").replace(", ", ",")


@pytest.mark.parametrize(("path", "more"), [
    ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}),
    ("/v1/chat/completions", {"reasoning_effort": "none"}),
    ("/v1/chat/completions", {"metadata": {"think": "false"}}),
    ("/v1/responses", {"metadata": {"enable_thinking": "false"}}),
    ("/v1/completions", {"thinking": {"type": "disabled"}}),
    ("/generate", {"custom_labels": {"think": "false"}}),
], ids=str)
def test_off_through_the_router(fleet: fleets.Fleet, path: str, more: dict[str, Any]) -> None:
    assert_off(ask(fleet.router, path, more), path)


def test_both_workers_keep_it(fleet: fleets.Fleet) -> None:
    """Prompts with nothing in common are spread; each worker has the plugin, so each budget holds."""
    def one(i: int) -> Any:
        text = chr(97 + i) * 40 + "<|turn|><think>" + LOOP
        body = {"text": text, "custom_labels": {"think_budget": str(i)},
                "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
        return fleet.router.post("/generate", body).json()["meta_info"]["think"]

    before = [counted(w) for w in fleet.workers]
    with ThreadPoolExecutor(8) as pool:
        thinks = list(pool.map(one, range(16)))
    assert [t["tokens"] for t in thinks] == list(range(16))
    assert all(after > first for after, first in zip([counted(w) for w in fleet.workers], before, strict=True))


def counted(worker: servers.Server) -> float:
    text = requests.get(worker.url + "/metrics", timeout=60).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines()
               if line.startswith("sglang_ext:think_outcomes_total{"))


@pytest.mark.parametrize("path", EVERYWHERE)
def test_a_literal_extra_body_is_unwrapped(fleet: fleets.Fleet, path: str) -> None:
    assert usage(ask(fleet.direct, path, {"extra_body": {"think_budget": 4}}))[0] == FORCED
    nested = {"extra_body": {"chat_template_kwargs": {"thinking_budget": 4}}}
    assert usage(ask(fleet.direct, path, nested))[0] == FORCED
    for bad in ({"think_budget": 4, "extra_body": {"think_budget": 5}}, {"extra_body": [4]}):
        response = ask(fleet.direct, path, bad)
        assert response.status_code == 400
        assert "extra_body" in response.text


@pytest.mark.parametrize("more", [{"thinking_limit": 4}, {"chat_template_kwargs": {"max_thoughts_length": 4}},
                                  {"reasoning": {"budget": 4}}, {"vendor": {"thinking": {"tokens": 4}}},
                                  {"metadata": {"reasoning_cap": "4"}}, {"budget_tokens": 4}], ids=str)
@pytest.mark.parametrize("path", EVERYWHERE)
def test_an_unknown_name_that_reads_like_a_budget_is_refused(fleet: fleets.Fleet, path: str,
                                                             more: dict[str, Any]) -> None:
    response = ask(fleet.direct, path, more)
    assert response.status_code == 400
    for part in ("think_budget", "reasoning.max_tokens", "reads like a budget"):
        assert part in response.text


def assert_off(response: requests.Response, path: str) -> None:
    """Nothing was thought. Where no template has a switch, the block is closed at once, and nothing is said in it."""
    about, reasoning = usage(response)
    if path in TEMPLATED:
        assert about is None
        assert not reasoning
    else:
        assert about == think(0, 0, CLOSE, "forced")
    assert "<think>" not in response.text


OFF: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}}, {"reasoning": {"enabled": False}}, {"reasoning": {"effort": "none"}},
    {"reasoning_effort": "none"}, {"enable_thinking": False}, {"think": False},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"thinking": False}},
    {"extra_body": {"enable_thinking": False}},
]


@pytest.mark.parametrize("more", OFF, ids=str)
@pytest.mark.parametrize("path", EVERYWHERE)
def test_off_is_off(fleet: fleets.Fleet, path: str, more: dict[str, Any]) -> None:
    assert_off(ask(fleet.direct, path, more), path)
    both = ask(fleet.direct, path, {**more, "think_budget": 3})
    assert both.status_code == 400
    assert "think_budget" in both.text
    for name, value in (("think_budget", 0), ("thinking_budget", -1)):
        about = usage(ask(fleet.direct, path, {**more, name: value}))[0]
        assert (about["budget"], about["tokens"]) == (0, 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_an_off_with_a_budget_of_its_own(fleet: fleets.Fleet, path: str) -> None:
    response = ask(fleet.direct, path, {"thinking": {"type": "disabled", "budget_tokens": 50}})
    assert response.status_code == 400
    assert all(part in response.text for part in ("thinking.type", "thinking.budget_tokens", "50"))


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollama(fleet: fleets.Fleet, path: str) -> None:
    response = ask(fleet.direct, path, {"think": True, "options": {"think_budget": 4}})
    assert usage(response)[0] == FORCED
    assert response.json()["eval_count"] > 4
    assert usage(ask(fleet.direct, path, {"think": "low"}))[0] == think(2, 2, CLOSE, "forced")
    assert usage(ask(fleet.direct, path, {"think": "low", "options": {"think_budget": 5}}))[0]["budget"] == 5
    assert "think" not in ask(fleet.direct, path, {}).json()
    lines = ask(fleet.direct, path, {"stream": True, "options": {"think_budget": 4}}).text.splitlines()
    assert json.loads(lines[-1])["think"] == FORCED
    assert all("think" not in json.loads(line) for line in lines[:-1])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("more", "parts"), [
    ({"options": {"think_budget": -4}}, ["options.think_budget: -4"]),
    ({"options": {"think_budget": "4"}}, ["options.think_budget", "string"]),
    ({"options": {"thinking_limit": 4}}, ["options.thinking_limit", "think_budget"]),
    ({"think": "much"}, ["think"]), ({"think": 5}, ["think"]),
    ({"think": False, "options": {"think_budget": 4}}, ["think", "options.think_budget", "4"]),
    ({"options": {"num_predict": "many"}}, ["num_predict"]),
], ids=str)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollama_refuses(fleet: fleets.Fleet, path: str, more: dict[str, Any], parts: list[str], stream: bool) -> None:
    response = ask(fleet.direct, path, {**more, "stream": stream})
    assert response.status_code == 400
    assert all(part in response.text for part in parts), response.text


@pytest.mark.parametrize("path", EVERYWHERE)
def test_who_says_nothing_is_told_nothing(fleet: fleets.Fleet, path: str) -> None:
    for more in ({}, {"metadata": {"user": "5"}}, {"extra_body": {}}, {"reasoning": {"summary": "auto"}}):
        assert usage(ask(fleet.direct, path, more))[0] is None


def test_the_table_of_the_manual_is_what_is_read(fleet: fleets.Fleet) -> None:
    cards = requests.get(fleet.direct.url + "/v1/models", timeout=60).json()["data"]
    assert cards[0]["think_budget"]["spellings"] == names()
