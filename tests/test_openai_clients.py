"""A client written for another server: every spelling, on every OpenAI endpoint, through the official client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
import servers
from told_model import CLOSE, LOOP, think

FLAT = ({"think_budget": 4}, {"thinking_budget": 4}, {"thinking_token_budget": 4}, {"max_thinking_tokens": 4})
SPELLINGS = (
    *FLAT,
    {"think_budget": {"max_tokens": 4}},
    {"reasoning": {"max_tokens": 4}},
    {"thinking": {"type": "enabled", "budget_tokens": 4}},
    *({outer: spelling} for outer in ("chat_template_kwargs", "custom_params") for spelling in FLAT),
    {"custom_params": {"reasoning": {"max_tokens": 4}}},
)
FORCED = think(4, 4, CLOSE, "forced")


@pytest.fixture(scope="module")
def client(scripted_server: servers.Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=scripted_server.url + "/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, stream: bool, body: dict[str, Any]) -> Any:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    result = client.chat.completions.create(model="told", messages=[{"role": "user", "content": LOOP}], temperature=0,
                                            max_tokens=12, extra_body=body, **options)
    return list(result)[-1].usage if stream else result.usage


def completions(client: openai.OpenAI, stream: bool, body: dict[str, Any]) -> Any:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    result = client.completions.create(model="told", prompt="<think>" + LOOP, temperature=0, max_tokens=12,
                                       extra_body=body, **options)
    return list(result)[-1].usage if stream else result.usage


def responses(client: openai.OpenAI, stream: bool, body: dict[str, Any]) -> Any:
    result = client.responses.create(model="told", input=LOOP, temperature=0, max_output_tokens=14, stream=stream,
                                     extra_body=body)
    return list(result)[-1].response.usage if stream else result.usage


@pytest.mark.parametrize("body", SPELLINGS, ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", [chat, completions, responses])
def test_every_spelling_is_honoured(client: openai.OpenAI, endpoint: Callable[..., Any], stream: bool,
                                    body: dict[str, Any]) -> None:
    """A budget must not go unread: it would cost the whole response's tokens."""
    usage = endpoint(client, stream, body)
    assert usage.think == FORCED
    details = usage.output_tokens_details if endpoint is responses else usage.completion_tokens_details
    assert details.reasoning_tokens == 4 + CLOSE


@pytest.mark.parametrize("body", [{"think_budget": "4"}, {"reasoning": {"max_tokens": "4"}},
                                  {"chat_template_kwargs": {"thinking_budget": "4"}},
                                  {"custom_params": {"think_budget": "4"}}], ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", [chat, completions, responses])
def test_a_bad_budget_is_refused_wherever_it_stands(client: openai.OpenAI, endpoint: Callable[..., Any], stream: bool,
                                                    body: dict[str, Any]) -> None:
    """The same for values that mean nothing."""
    with pytest.raises(openai.BadRequestError) as error:
        endpoint(client, stream, body)
    outer = next(iter(body))
    name = outer if outer == "think_budget" else f"{outer}.{next(iter(body[outer]))}"
    for part in (name, '"4"', "accepted: an integer from -1"):
        assert part in str(error.value)


def test_two_spellings_that_differ_are_refused(client: openai.OpenAI) -> None:
    for endpoint in (chat, completions, responses):
        with pytest.raises(openai.BadRequestError, match=r"think_budget and custom_params.thinking_budget differ: 4"):
            endpoint(client, False, {"think_budget": 4, "custom_params": {"thinking_budget": 5}})


def test_a_null_is_no_budget(client: openai.OpenAI) -> None:
    for endpoint in (chat, completions, responses):
        usage = endpoint(client, False, {"think_budget": None, "custom_params": None, "chat_template_kwargs": None})
        assert "think" not in usage.model_extra
