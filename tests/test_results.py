"""What a response says about its thinking, on every endpoint, streamed or not, and where it is counted."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from told_model import CLOSE, LOOP, OPENS, PLAIN, STOPS, THREE, think

from sglang_ext.budget.spelling import names

FORCED = think(4, 4, CLOSE, "forced")


def asked(server: servers.Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One call that must succeed, with the usage as the only thing of its answer."""
    response = server.post(path, {"model": "told", "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()["usage"]  # type: ignore[no-any-return]


def events(server: servers.Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a streamed call."""
    response = requests.post(server.url + path, json={"model": "told", "temperature": 0, "stream": True, **body},
                             stream=True, timeout=300)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix(b"data: ") for line in response.iter_lines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def says(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def test_completions(scripted_server: servers.Server) -> None:
    usage = asked(scripted_server, "/v1/completions", {"prompt": "<think>" + LOOP, "max_tokens": 12, "think_budget": 4})
    assert usage["think"] == FORCED
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4 + CLOSE}


def test_chat(scripted_server: servers.Server) -> None:
    """A client sees that and why its thinking ended."""
    body = {"messages": says(LOOP), "max_tokens": 12, "think_budget": 4}
    usage = asked(scripted_server, "/v1/chat/completions", body)
    assert usage["think"] == FORCED
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4 + CLOSE}


def test_responses(scripted_server: servers.Server) -> None:
    usage = asked(scripted_server, "/v1/responses", {"input": LOOP, "max_output_tokens": 14, "think_budget": 4})
    assert usage["think"] == FORCED
    assert usage["output_tokens_details"] == {"reasoning_tokens": 4 + CLOSE}


def test_messages(scripted_server: servers.Server) -> None:
    usage = asked(scripted_server, "/v1/messages", {"messages": says(LOOP), "max_tokens": 12, "think_budget": 4})
    assert usage["think"] == FORCED
    assert usage["output_tokens_details"] == {"thinking_tokens": 4 + CLOSE}


@pytest.mark.parametrize(("path", "prompt"), [
    ("/v1/completions", {"prompt": "<think>" + LOOP}), ("/v1/chat/completions", {"messages": says(LOOP)}),
], ids=str)
def test_streams_of_openai(scripted_server: servers.Server, path: str, prompt: dict[str, Any]) -> None:
    """The last chunk has the usage; with `continuous_usage_stats` every chunk says how far the thinking has come."""
    body = {**prompt, "max_tokens": 12, "think_budget": 4}
    last = events(scripted_server, path, {**body, "stream_options": {"include_usage": True}})[-1]
    assert last["choices"] == []
    assert last["usage"]["think"] == FORCED
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4 + CLOSE}
    every = events(scripted_server, path, {**body, "stream_options": {"include_usage": True,
                                                                  "continuous_usage_stats": True}})
    counts = [e["usage"]["reasoning_tokens"] for e in every if e.get("usage")]
    assert counts == sorted(counts)
    assert counts[-1] == 4 + CLOSE
    assert every[-1]["usage"]["think"] == FORCED
    open_ = [e["usage"]["think"] for e in every if (e.get("usage") or {}).get("think", FORCED)["outcome"] == "open"]
    assert open_


def test_stream_of_responses(scripted_server: servers.Server) -> None:
    last = events(scripted_server, "/v1/responses", {"input": LOOP, "max_output_tokens": 14, "think_budget": 4})[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert last["response"]["usage"]["think"] == FORCED
    assert last["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 4 + CLOSE}


def test_stream_of_messages(scripted_server: servers.Server) -> None:
    every = events(scripted_server, "/v1/messages", {"messages": says(LOOP), "max_tokens": 12, "think_budget": 4})
    usage = next(e["usage"] for e in every if e["type"] == "message_delta")
    assert usage["think"] == FORCED
    assert usage["output_tokens_details"] == {"thinking_tokens": 4 + CLOSE}
    assert "think" not in next(e["message"]["usage"] for e in every if e["type"] == "message_start")


def test_several_choices(scripted_server: servers.Server) -> None:
    """Usage sums them up and has the object of each, in the order of the choices."""
    body = {"prompt": ["<think>" + THREE, "<think>" + LOOP], "max_tokens": 12, "think_budget": 7}
    expected = {"tokens": 6 + 7, "forced_tokens": CLOSE,
                "choices": [think(7, 6, 0, "natural"), think(7, 7, CLOSE, "forced")]}
    usage = asked(scripted_server, "/v1/completions", body)
    assert usage["think"] == expected
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 6 + 7 + CLOSE}
    last = events(scripted_server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})[-1]
    assert last["usage"]["think"] == expected


def test_choices_of_chat(scripted_server: servers.Server) -> None:
    response = scripted_server.post("/v1/chat/completions", {
        "model": "told", "messages": says(LOOP), "max_tokens": 12, "temperature": 0, "n": 2, "think_budget": 4,
        "return_meta_info": True}).json()
    assert response["usage"]["think"] == {"tokens": 8, "forced_tokens": 2 * CLOSE, "choices": [FORCED, FORCED]}
    assert [choice["meta_info"]["think"] for choice in response["choices"]] == [FORCED, FORCED]


@pytest.mark.parametrize(("prompt", "tokens", "budget", "outcome"), [
    (THREE, 6, -1, think(-1, 6, 0, "natural")),
    (STOPS, 1 + CLOSE, 5, think(5, 1, CLOSE, "eos")),
    (LOOP, 12, -1, think(-1, 12, 0, "open")),
    (LOOP, CLOSE, 0, think(0, 0, CLOSE, "forced")),
])
def test_outcomes(scripted_server: servers.Server, prompt: str, tokens: int, budget: int,
                  outcome: dict[str, Any]) -> None:
    usage = asked(scripted_server, "/v1/chat/completions", {"messages": says(prompt), "max_tokens": 12,
                                                        "think_budget": budget})
    assert usage["think"] == outcome
    assert usage["reasoning_tokens"] == tokens


@pytest.mark.parametrize(("prompt", "tokens"), [("<think>" + THREE, 6), ("<think>" + LOOP, 20), (PLAIN, 0),
                                                (OPENS, 15)])
def test_without_a_budget_the_thinking_is_counted_all_the_same(scripted_server: servers.Server, prompt: str,
                                                               tokens: int) -> None:
    """`reasoning_tokens` is right on endpoints that do not ask for reasoning. Nothing else is added."""
    body = {"prompt": prompt, "max_tokens": 20}
    usage = asked(scripted_server, "/v1/completions", body)
    assert usage["reasoning_tokens"] == tokens
    assert "think" not in usage
    assert usage.get("completion_tokens_details") == ({"reasoning_tokens": tokens} if tokens else None)
    params = {"max_new_tokens": 20, "temperature": 0}
    assert scripted_server.generate(text=prompt, sampling_params=params)["meta_info"]["reasoning_tokens"] == tokens


def test_every_endpoint_counts_the_same_without_a_budget(scripted_server: servers.Server) -> None:
    """The same on the other endpoints."""
    chat = asked(scripted_server, "/v1/chat/completions", {"messages": says(THREE), "max_tokens": 12})
    responses = asked(scripted_server, "/v1/responses", {"input": THREE, "max_output_tokens": 14})
    messages = asked(scripted_server, "/v1/messages", {"messages": says(THREE), "max_tokens": 12})
    assert chat["completion_tokens_details"] == {"reasoning_tokens": 6}
    assert responses["output_tokens_details"] == {"reasoning_tokens": 6}
    assert messages["output_tokens_details"] == {"thinking_tokens": 6}
    assert not {"think"} & {*chat, *responses, *messages}


def test_a_stop_string_ends_the_count(scripted_server: servers.Server) -> None:
    """What stands behind a stop is not in the response, and not in its count."""
    result = scripted_server.generate(text="<think>" + THREE, sampling_params={"max_new_tokens": 20, "temperature": 0,
                                                                           "stop": "two", "think_budget": 9})
    assert result["meta_info"]["reasoning_tokens"] == 2
    assert result["meta_info"]["think"] == think(9, 2, 0, "open")


def test_a_server_says_what_it_serves(scripted_server: servers.Server) -> None:
    expected = {
        "default": -1, "max": None, "answer_tokens": "auto", "loops": False, "seconds": None,
        "keys": ["max_tokens", "min_tokens", "grace_tokens", "message", "answer_tokens", "loops", "seconds", "since"],
        "markers": {"start": "<think>", "end": "</think>", "line_break": ""}, "spellings": names(),
        "effort": {"low": 2, "medium": "25%", "high": -1},
    }
    for path in ("/server_info", "/get_server_info"):
        assert requests.get(scripted_server.url + path, timeout=60).json()["think_budget"] == expected
    cards = requests.get(scripted_server.url + "/v1/models", timeout=60).json()["data"]
    assert [card["think_budget"] for card in cards] == [expected]
    assert requests.get(scripted_server.url + "/v1/models/told", timeout=60).json()["think_budget"] == expected


COUNTS = ("reasoning_tokens", "completion_tokens_details", "output_tokens_details")


def lasting(value: Any) -> Any:
    """An answer without what differs from one call to the next, times among it, and without counts of thinking."""
    if isinstance(value, list):
        return [lasting(v) for v in value]
    if isinstance(value, dict):
        varying = ("id", "created", "created_at", "cached_tokens", "cached_tokens_details", *COUNTS)
        return {k: lasting(v) for k, v in value.items() if k not in varying and not isinstance(v, float)}
    return value


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"text": "<think>" + THREE, "sampling_params": {"max_new_tokens": 12, "temperature": 0}}),
    ("/v1/completions", {"prompt": "<think>" + THREE, "max_tokens": 12}),
    ("/v1/chat/completions", {"messages": says(THREE), "max_tokens": 12, "n": 2, "return_meta_info": True}),
    ("/v1/responses", {"input": THREE, "max_output_tokens": 14}),
    ("/v1/messages", {"messages": says(THREE), "max_tokens": 12}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_without_a_budget_an_answer_is_as_published(scripted_server: servers.Server,
                                                    stock_scripted_server: servers.Server, path: str,
                                                    body: dict[str, Any]) -> None:
    """A request without a budget is untouched, but for the count of its thinking."""
    ours, stock = (lasting(s.post(path, {"model": "told", "temperature": 0, **body}).json())
                   for s in (scripted_server, stock_scripted_server))
    assert ours == stock


@pytest.fixture(scope="module")
def other_server(scripted_model: Path) -> Iterator[servers.Server]:
    """Markers named by the operator, no reasoning parser, a default and a ceiling, drafts, two tokenizer workers."""
    server = servers.launch("--model-path", str(scripted_model), "--think-start", "<think>", "--think-end", "</think>",
                            "--think-budget", "5", "--think-budget-max", "9", "--tokenizer-worker-num", "2",
                            "--speculative-ngram-capacity", "100000", "--speculative-algorithm", "NGRAM",
                            "--speculative-num-draft-tokens", "5",
                            "--enable-metrics", "--served-model-name", "told", "--dtype", "float32")
    yield server
    assert not server.stop(signal.SIGTERM, seconds=90)


@pytest.mark.served
def test_without_a_parser_and_with_drafts(other_server: servers.Server) -> None:
    """The count needs no parser, and what a draft holds beyond the end is not in it."""
    for _ in range(2):  # drafts come from what was said before
        for path, body in (("/v1/completions", {"prompt": "<think>" + LOOP, "max_tokens": 12}),
                           ("/v1/chat/completions", {"messages": says(LOOP), "max_tokens": 12}),
                           ("/v1/responses", {"input": LOOP, "max_output_tokens": 14}),
                           ("/v1/messages", {"messages": says(LOOP), "max_tokens": 12})):
            usage = asked(other_server, path, body)
            assert usage["think"] == think(5, 5, CLOSE, "forced")
            details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
            assert set(details.values()) == {5 + CLOSE}


@pytest.mark.served
def test_the_ceiling_is_advertised(other_server: servers.Server) -> None:
    told = requests.get(other_server.url + "/server_info", timeout=60).json()["think_budget"]
    assert (told["default"], told["max"]) == (5, 9)


@pytest.mark.served
def test_workers_share_their_metrics(other_server: servers.Server) -> None:
    """Two processes count; a scrape of either has the sum."""
    before = other_server.metrics()
    for _ in range(6):
        asked(other_server, "/v1/completions", {"prompt": "<think>" + LOOP, "max_tokens": 12})
    after = [other_server.metrics() for _ in range(4)]
    assert {a["sglang_ext:think_tokens_total"] - before["sglang_ext:think_tokens_total"] for a in after} == {30}
