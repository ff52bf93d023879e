"""/v1/messages, through Anthropic's official client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
import servers
from told_model import CLOSE, LOOP, THREE, think

LEAST = 1024
ENABLED = {"type": "enabled", "budget_tokens": LEAST}


@pytest.fixture(scope="module")
def client(scripted_server: servers.Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=scripted_server.url, api_key="none", max_retries=0)


def message(client: anthropic.Anthropic, prompt: str, most: int = 12, **options: Any) -> Any:
    return client.messages.create(model="told", max_tokens=most, messages=[{"role": "user", "content": prompt}],
                                  extra_body={"temperature": 0, **options.pop("extra_body", {})}, **options)


def test_anthropics_own_budget_is_enforced(client: anthropic.Anthropic) -> None:
    """Where sglang by itself only warns that it is not."""
    answer = message(client, LOOP, LEAST + 200, thinking=ENABLED)
    assert answer.usage.think == think(LEAST, LEAST, CLOSE, "forced")
    assert answer.usage.output_tokens_details.thinking_tokens == LEAST + CLOSE
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[1].text.strip() == "answer"
    assert answer.stop_reason == "end_turn"


def test_it_is_enforced_in_a_stream(client: anthropic.Anthropic) -> None:
    """The same, streamed."""
    events = list(message(client, LOOP, LEAST + 200, thinking=ENABLED, stream=True))
    usage = next(event.usage for event in events if event.type == "message_delta")
    assert usage.think == think(LEAST, LEAST, CLOSE, "forced")
    assert usage.output_tokens_details.thinking_tokens == LEAST + CLOSE
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert "".join(d.text for d in deltas if d.type == "text_delta").strip() == "answer"
    assert "".join(d.thinking for d in deltas if d.type == "thinking_delta").startswith("loop")


@pytest.mark.parametrize("most", [1024, 800])
def test_a_budget_above_max_tokens_leaves_an_answer(client: anthropic.Anthropic, most: int) -> None:
    """Nothing but thinking came back, though a budget was set. The limit in force is what is told."""
    answer = message(client, LOOP, most, thinking={"type": "enabled", "budget_tokens": 2048})
    limit = most - most // 8 - CLOSE
    assert answer.usage.think == think(limit, limit, CLOSE, "forced")
    assert answer.content[-1].text.strip() == "answer"
    assert answer.stop_reason == "end_turn"


def test_thinking_that_is_disabled(client: anthropic.Anthropic) -> None:
    assert "think" not in message(client, LOOP, thinking={"type": "disabled"}).usage.model_extra
    with pytest.raises(anthropic.BadRequestError, match=r"thinking.type .*think_budget is 3"):
        message(client, LOOP, thinking={"type": "disabled"}, extra_body={"think_budget": 3})
    answer = message(client, LOOP, thinking={"type": "disabled"}, extra_body={"think_budget": 0})
    assert answer.usage.think == think(0, 0, 0, "none")
    assert answer.usage.output_tokens_details.thinking_tokens == 0


@pytest.mark.parametrize("body", [
    {"think_budget": 4}, {"thinking_budget": 4}, {"thinking_token_budget": 4}, {"max_thinking_tokens": 4},
    {"think_budget": {"max_tokens": 4}}, {"reasoning": {"max_tokens": 4}}, {"custom_params": {"think_budget": 4}},
    {"custom_params": {"thinking_budget": 4}}, {"chat_template_kwargs": {"thinking_budget": 4}},
], ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_every_spelling_is_honoured(client: anthropic.Anthropic, stream: bool, body: dict[str, Any]) -> None:
    """None is dropped in silence on this endpoint."""
    result = message(client, LOOP, extra_body=body, stream=stream)
    usage = next(e.usage for e in result if e.type == "message_delta") if stream else result.usage
    assert usage.think == think(4, 4, CLOSE, "forced")


def test_an_end_of_its_own(client: anthropic.Anthropic) -> None:
    assert message(client, THREE, LEAST + 200, thinking=ENABLED).usage.think == think(LEAST, 6, 0, "natural")


@pytest.mark.parametrize(("body", "parts"), [
    ({"thinking": {"type": "enabled", "budget_tokens": "2048"}}, ["thinking.budget_tokens", '"2048"', "1024"]),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, ["thinking.budget_tokens", "true", "1024"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 1500.0}}, ["thinking.budget_tokens", "1500.0", "1024"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 500}}, ["thinking.budget_tokens", "500", "1024"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 2**40}}, ["thinking.budget_tokens", str(2**40), "2147483646"]),
    ({"thinking": {"type": "enabled"}}, ["thinking.budget_tokens", "required"]),
    ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, ["thinking.budget_tokens", "disabled"]),
    ({"thinking": ENABLED, "think_budget": 6}, ["think_budget", "thinking.budget_tokens", "6", "1024"]),
    ({"think_budget": -3}, ["think_budget", "-3", "-1"]),
    ({"think_budget": 1.5}, ["think_budget", "1.5", "integer"]),
    ({"custom_params": {"think_budget": "4"}}, ["custom_params.think_budget", '"4"', "integer"]),
    ({"chat_template_kwargs": {"thinking_budget": True}}, ["chat_template_kwargs.thinking_budget", "true"]),
], ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_refusals_name_field_value_and_range(client: anthropic.Anthropic, stream: bool, body: dict[str, Any],
                                             parts: list[str]) -> None:
    with pytest.raises(anthropic.BadRequestError) as error:
        message(client, LOOP, extra_body=body, stream=stream)
    told = error.value.body
    assert isinstance(told, dict)
    assert told["error"]["type"] == "invalid_request_error"
    assert all(part in told["error"]["message"] for part in parts), told
