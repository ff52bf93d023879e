"""The OpenAI endpoints, through the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import servers

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def client(demo_server: servers.Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=demo_server.url + "/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, budget: Any, **extra: Any) -> Any:
    body = {"return_meta_info": True, **extra.pop("extra_body", {})}
    if budget is not None:
        body["think_budget"] = budget
    return client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                          max_tokens=14, extra_body=body, **extra)


def test_chat_splits_reasoning_from_content(client: openai.OpenAI, demo_tokenizer: Any) -> None:
    message = chat(client, 5).choices[0].message
    assert len(demo_tokenizer.encode(message.reasoning_content)) == 5
    assert message.content.strip()
    assert "think>" not in message.content + message.reasoning_content


def test_chat_reports_the_thinking(client: openai.OpenAI) -> None:
    choice = chat(client, 5).choices[0]
    assert choice.model_extra["meta_info"]["think"] == {"budget": 5, "tokens": 5, "forced_tokens": 4,
                                                        "outcome": "forced"}


def test_chat_stream_gives_the_same_split(client: openai.OpenAI) -> None:
    whole = chat(client, 5).choices[0].message
    stream = client.chat.completions.create(model="m", messages=QUESTION, temperature=0, max_tokens=14, stream=True,
                                            extra_body={"think_budget": 5})
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == whole.reasoning_content
    assert "".join(d.content or "" for d in deltas) == whole.content


def test_thinking_switched_off_has_nothing_to_limit(client: openai.OpenAI) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(openai.BadRequestError, match=r"chat_template_kwargs.enable_thinking .*think_budget is 3"):
        chat(client, 3, extra_body=off)
    limited, plain = chat(client, 0, extra_body=off), chat(client, None, extra_body=off)
    assert limited.choices[0].message.content == plain.choices[0].message.content
    assert not limited.choices[0].message.reasoning_content
    assert limited.choices[0].model_extra["meta_info"]["think"]["outcome"] == "none"


@pytest.mark.parametrize("spelling", [
    {"think_budget": {"max_tokens": 3}},
    {"thinking_budget": 3},
    {"thinking_token_budget": 3},
    {"max_thinking_tokens": 3},
    {"reasoning": {"max_tokens": 3}},
    {"thinking": {"type": "enabled", "budget_tokens": 3}},
    {"chat_template_kwargs": {"thinking_budget": 3}},
    {"custom_params": {"think_budget": 3}},
], ids=str)
def test_other_servers_spellings(client: openai.OpenAI, spelling: dict[str, Any]) -> None:
    think = chat(client, None, extra_body=spelling).choices[0].model_extra["meta_info"]["think"]
    assert (think["tokens"], think["outcome"]) == (3, "forced")


def test_completions(client: openai.OpenAI, demo_tokenizer: Any) -> None:
    prompt = demo_tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    limited, free = (client.completions.create(model="m", prompt=prompt, temperature=0, max_tokens=12,
                                               extra_body=extra).choices[0].text for extra in ({"think_budget": 4}, {}))
    thought = limited.split("</think>\n\n")[0]
    assert free.startswith(thought)
    assert len(demo_tokenizer.encode(thought)) == 4
    assert limited.count("</think>") == 1


def test_completions_stream_and_batch(client: openai.OpenAI, demo_tokenizer: Any) -> None:
    prompt = demo_tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    both = client.completions.create(model="m", prompt=[prompt, prompt + "Once"], temperature=0, max_tokens=12, n=1,
                                     extra_body={"think_budget": 2})
    assert [c.text.count("</think>") for c in both.choices] == [1, 1]
    stream = client.completions.create(model="m", prompt=prompt, temperature=0, max_tokens=12, stream=True,
                                       extra_body={"think_budget": 2})
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == both.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_budget_is_a_400_with_its_name(client: openai.OpenAI, stream: bool) -> None:
    for budget in (-2, 1.5, "64", True, {"max_tokens": None}, 2**40, {"tokens": 3}, [1]):
        with pytest.raises(openai.BadRequestError, match="think_budget"):
            client.chat.completions.create(model="m", messages=QUESTION, max_tokens=4, stream=stream,
                                           extra_body={"think_budget": budget})
        with pytest.raises(openai.BadRequestError, match="think_budget"):
            client.completions.create(model="m", prompt="x", max_tokens=4, stream=stream,
                                      extra_body={"think_budget": budget})


def thought(client: openai.OpenAI, demo_tokenizer: Any, body: dict[str, Any]) -> int:
    """Tokens of thinking in an answer of `/v1/responses`, as it reports them: the marker's pieces are among them."""
    response = client.responses.create(model=MODEL, input="Tell me a story about a fox.", temperature=0,
                                       max_output_tokens=12, extra_body=body)
    return int(response.usage.output_tokens_details.reasoning_tokens)


@pytest.mark.parametrize("body", [{"think_budget": 3}, {"thinking_budget": 3}, {"reasoning": {"max_tokens": 3}}],
                         ids=str)
def test_responses(client: openai.OpenAI, demo_tokenizer: Any, body: dict[str, Any]) -> None:
    assert thought(client, demo_tokenizer, body) == 3 + len(demo_tokenizer.encode("</think>"))


def test_bad_budgets_on_responses(client: openai.OpenAI) -> None:
    for body in ({"think_budget": -3}, {"reasoning": {"max_tokens": "6"}}):
        with pytest.raises(openai.BadRequestError, match=r"think_budget: -3|reasoning.max_tokens"):
            client.responses.create(model=MODEL, input="x", max_output_tokens=4, extra_body=body)


def messages(server: servers.Server, **body: Any) -> Any:
    return server.post("/v1/messages", {"model": "m", "messages": QUESTION, "max_tokens": 14, "temperature": 0, **body})


def test_messages(demo_server: servers.Server, demo_tokenizer: Any) -> None:
    blocks = messages(demo_server, think_budget=3).json()["content"]
    thinking = next(b["thinking"] for b in blocks if b["type"] == "thinking")
    assert len(demo_tokenizer.encode(thinking)) == 3
    assert any(b["type"] == "text" and b["text"].strip() for b in blocks)


def test_anthropics_own_field_is_enforced(demo_server: servers.Server) -> None:
    """Its values are larger than what this model thinks; a second spelling that differs shows that it is read."""
    own = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert messages(demo_server, **own).status_code == 200
    response = messages(demo_server, **own, think_budget=3)
    assert response.status_code == 400
    assert "thinking.budget_tokens" in response.text


def test_bad_budgets_on_messages(demo_server: servers.Server) -> None:
    response = messages(demo_server, think_budget=True)
    assert response.status_code == 400
    assert "think_budget: true" in response.json()["error"]["message"]
