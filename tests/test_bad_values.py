"""Budgets that are not accepted: 400 with field, value and range, at once, and the server goes on serving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from servers import FLOAT32

BAD = {
    "negative": ({"think_budget": -2}, ["think_budget", "-2", "-1", "2147483646"]),
    "fraction": ({"think_budget": 1.5}, ["think_budget", "1.5", "integer"]),
    "string": ({"think_budget": "64"}, ["think_budget", '"64"', "string", "integer"]),
    "boolean": ({"think_budget": True}, ["think_budget", "true", "boolean"]),
    "list": ({"think_budget": [64]}, ["think_budget", "[64]", "array"]),
    "null inside": ({"think_budget": {"max_tokens": None}}, ["think_budget.max_tokens", "null"]),
    "too large": ({"think_budget": 2**40}, ["think_budget", str(2**40), "2147483646"]),
    "unknown key": ({"think_budget": {"tokens": 5}}, ["think_budget", "tokens", "max_tokens"]),
    "two spellings": ({"think_budget": 5, "thinking_budget": 6}, ["think_budget", "thinking_budget", "5", "6"]),
    "custom_params": ({"custom_params": {"think_budget": -7}}, ["custom_params.think_budget", "-7"]),
    "two places": ({"think_budget": 5, "custom_params": {"think_budget": 6}}, ["custom_params.think_budget"]),
    "minimum above maximum": ({"think_budget": {"max_tokens": 3, "min_tokens": 4}}, ["min_tokens", "4", "3"]),
    "grace above maximum": ({"think_budget": {"max_tokens": 3, "grace_tokens": 4}}, ["grace_tokens", "4", "3"]),
    "negative minimum": ({"think_budget": {"min_tokens": -1}}, ["min_tokens", "-1", "0"]),
    "answer does not fit": ({"think_budget": {"max_tokens": 3, "answer_tokens": 99}, "max_new_tokens": 20},
                            ["answer_tokens", "99", "20"]),
    "end marker in message": ({"think_budget": {"max_tokens": 3, "message": "stop</think>"}}, ["message", "marker"]),
    "control token in message": ({"think_budget": {"max_tokens": 3, "message": "<|im_end|>"}},
                                 ["message", "<|im_end|>"]),
    "long message": ({"think_budget": {"max_tokens": 3, "message": "a" * 5000}}, ["message", "5000", "4096"]),
    "carrier that is no object": ({"think_budget": 3, "custom_params": [1]}, ["custom_params", "[1]", "object"]),
    "beams": ({"think_budget": 3, "beam_width": 2}, ["think_budget", "beam"]),
    "grace without a limit": ({"think_budget": {"max_tokens": -1, "grace_tokens": 4}}, ["grace_tokens", "4"]),
    "message of another type": ({"think_budget": {"message": 5}}, ["message", "5", "string"]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_on_generate(demo_server: servers.Server, name: str, stream: bool) -> None:
    params, expected = BAD[name]
    response = demo_server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 200, **params},
                                              "stream": stream}, timeout=10)
    assert response.status_code == 400, response.text
    message = response.json()["error"]
    assert all(part in message for part in expected), message


@pytest.mark.parametrize("body", [{"think_budget": 5}, {"thinking_budget": 5}, {"reasoning": {"max_tokens": 5}}])
def test_beside_sampling_params_it_is_refused_and_told_where_it_belongs(demo_server: servers.Server,
                                                                        body: dict[str, Any]) -> None:
    response = demo_server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}, **body})
    assert response.status_code == 400
    assert "sampling_params" in response.json()["error"]


def test_sglangs_own_field_is_enforced(demo_server: servers.Server, demo_tokenizer: Any) -> None:
    text = demo_tokenizer.apply_chat_template([{"role": "user", "content": "Tell me a story about a fox."}],
                                              tokenize=False, add_generation_prompt=True)
    result = demo_server.generate(text=text, max_thinking_tokens=4, sampling_params={"max_new_tokens": 16,
                                                                                    "temperature": 0})
    assert result["meta_info"]["think"]["tokens"] == 4


def test_null_is_no_value(demo_server: servers.Server) -> None:
    result = demo_server.generate(text="x", sampling_params={"max_new_tokens": 1, "think_budget": None})
    assert "think" not in result["meta_info"]


def test_one_bad_request_of_a_batch_refuses_the_batch(demo_server: servers.Server) -> None:
    params = [{"max_new_tokens": 1, "think_budget": 3}, {"max_new_tokens": 1, "think_budget": -3}]
    response = demo_server.post("/generate", {"text": ["a", "b"], "sampling_params": params})
    assert response.status_code == 400
    assert "-3" in response.json()["error"]


def test_other_unknown_parameters_are_still_sglangs_errors(demo_server: servers.Server) -> None:
    response = demo_server.post("/generate", {"text": "x", "sampling_params": {"think_budge": 5}})
    assert response.status_code == 400
    assert "think_budge" in response.json()["error"]


def test_the_server_still_serves(demo_server: servers.Server) -> None:
    assert demo_server.generate(text="Hello", sampling_params={"max_new_tokens": 2})["meta_info"]["completion_tokens"]


@pytest.fixture(scope="module")
def markerless_server(demo_model: Path) -> Iterator[servers.Server]:
    """A model whose markers nobody named, and a ceiling of which only `no limit` is left."""
    server = servers.launch("--model-path", str(demo_model), *FLOAT32)
    yield server
    assert not server.stop()


@pytest.mark.served
def test_model_without_known_markers(markerless_server: servers.Server) -> None:
    """A budget that cannot work on this model must not be ignored without a trace."""
    response = markerless_server.post("/generate", {"text": "x", "sampling_params": {"think_budget": 5}})
    assert response.status_code == 400
    for part in ("think_budget", "5", "--think-start", "-1"):
        assert part in response.json()["error"]
    for params in ({}, {"think_budget": -1}):
        assert markerless_server.generate(text="x", sampling_params={"max_new_tokens": 1, **params})
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "think_budget": 5}
    assert markerless_server.post("/v1/chat/completions", chat).status_code == 400
