"""Clients that people use, directly and through sglang-router: their own way of sending a budget or an off, and the
usage as their own types read it. Whole, streamed, and in an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import fleet as fleets
import httpx
import openai
import pytest
from late import Late
from told_model import CLOSE, LOOP, THREE, think

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # without it the import asks the network
os.environ.setdefault("LANGSMITH_TRACING", "false")
litellm, ollama, langchain_openai = Late("litellm"), Late("ollama"), Late("langchain_openai")

FORCED = think(4, 4, CLOSE, "forced")
SAYS: list[Any] = [{"role": "user", "content": LOOP}]
ARRIVES: list[dict[str, Any]] = [{"metadata": {"think_budget": "4"}}, {"chat_template_kwargs": {"think_budget": 4}}]
"""What a chat can send through the router."""
OFF: list[dict[str, Any]] = [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]


@pytest.fixture(params=["direct", "router"])
def url(request: pytest.FixtureRequest, fleet: fleets.Fleet) -> str:
    return str(getattr(fleet, request.param).url)


def ways(create: Callable[..., Any], create_async: Callable[..., Any], last: Callable[[list[Any]], Any],
         at_once: int = 1) -> Iterator[Any]:
    """The same call whole, streamed, in an event loop, and streamed there; a stream is what `last` makes of it.

    Args:
        at_once: calls that run beside each other.
    """
    async def streamed() -> list[Any]:
        return [part async for part in await create_async(stream=True)]

    async def whole() -> Any:
        return await create_async()

    calls: list[Callable[[], Any]] = [create, lambda: last(list(create(stream=True))), lambda: asyncio.run(whole()),
                                      lambda: last(asyncio.run(streamed()))]
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda call: call(), calls)


def with_usage(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "stream_options": {"include_usage": True}} if options.get("stream") else options


@pytest.mark.parametrize("extra", ARRIVES, ids=str)
def test_openai_chat(url: str, extra: dict[str, Any]) -> None:
    sync = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    own = {"metadata": extra["metadata"]} if "metadata" in extra else {"extra_body": extra}
    body: dict[str, Any] = {"model": "told", "messages": SAYS, "temperature": 0, "max_tokens": 12, **own}

    async def create_async(**options: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        return await client.chat.completions.create(**body, **with_usage(options))

    for got in ways(lambda **o: sync.chat.completions.create(**body, **with_usage(o)), create_async, lambda c: c[-1]):
        assert got.usage.think == FORCED
        assert got.usage.completion_tokens_details.reasoning_tokens == 4 + CLOSE


def test_openai_off_and_errors(url: str) -> None:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    for extra in OFF:
        own = extra if "reasoning_effort" in extra else {"extra_body": extra}
        got = client.chat.completions.create(model="told", messages=SAYS, max_tokens=12, temperature=0, **own)
        assert not getattr(got.choices[0].message, "reasoning_content", None)
        assert not got.usage.reasoning_tokens
    with pytest.raises(openai.BadRequestError, match=r"metadata.think_budget: -5 is out of range"):
        client.chat.completions.create(model="told", messages=SAYS, metadata={"think_budget": "-5"})
    with pytest.raises(openai.BadRequestError, match=r"reads like a budget"):
        client.chat.completions.create(model="told", messages=SAYS, metadata={"thinking_limit": "5"})


def test_openai_completions(url: str) -> None:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    got = client.completions.create(model="told", prompt="<think>" + LOOP, max_tokens=12, temperature=0,
                                    extra_body={"thinking_budget_tokens": 4})
    assert got.usage.think == FORCED


def test_openai_responses(url: str) -> None:
    sync = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    body: dict[str, Any] = {"model": "told", "input": LOOP, "temperature": 0, "max_output_tokens": 14}

    def call(**options: Any) -> Any:
        return sync.responses.create(**body, metadata={"think_budget": "4"}, **options)

    async def call_async(**options: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        return await client.responses.create(**body, metadata={"think_budget": "4"}, **options)

    for got in ways(call, call_async, lambda events: events[-1].response):
        assert got.usage.think == FORCED
        assert got.usage.output_tokens_details.reasoning_tokens == 4 + CLOSE
    off = sync.responses.create(**body, metadata={"enable_thinking": "false"})
    assert off.usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("extra", ARRIVES, ids=str)
def test_litellm(url: str, provider: str, extra: dict[str, Any]) -> None:
    body: dict[str, Any] = {"model": f"{provider}/told", "api_base": url + "/v1", "api_key": "none", "messages": SAYS,
                            "temperature": 0, "max_tokens": 12, "extra_body": extra}

    async def create_async(**options: Any) -> Any:
        return await litellm.acompletion(**body, **with_usage(options))

    def last(chunks: list[Any]) -> Any:
        return next(c for c in reversed(chunks) if getattr(c, "usage", None))

    for got in ways(lambda **o: litellm.completion(**body, **with_usage(o)), create_async, last):
        assert got.usage.completion_tokens_details.reasoning_tokens == 4 + CLOSE
    assert litellm.completion(**body).usage.think == FORCED


def test_litellm_off_and_errors(url: str) -> None:
    body: dict[str, Any] = {"api_base": url + "/v1", "api_key": "none", "messages": SAYS, "max_tokens": 12}
    for model, own in (("hosted_vllm/told", OFF[0]), ("openai/told", {"extra_body": OFF[1]})):
        got = litellm.completion(model=model, **body, **own)
        assert not getattr(got.choices[0].message, "reasoning_content", None)
    with pytest.raises(litellm.BadRequestError, match=r"chat_template_kwargs.think_budget"):
        litellm.completion(model="openai/told", **body, extra_body={"chat_template_kwargs": {"think_budget": -5}})


def test_litellm_as_anthropics_client_and_as_ollamas(fleet: fleets.Fleet) -> None:
    own: dict[str, Any] = {"allowed_openai_params": ["thinking"], "messages": SAYS, "api_base": fleet.direct.url}
    got = litellm.completion(model="anthropic/told", api_key="none", max_tokens=1500, **own,
                             thinking={"type": "enabled", "budget_tokens": 1024})
    assert got.usage.completion_tokens_details.reasoning_tokens in (1024, 1024 + CLOSE)  # it may count by itself
    off = litellm.completion(model="anthropic/told", api_key="none", max_tokens=12, **own,
                             thinking={"type": "disabled"})
    assert not getattr(off.choices[0].message, "reasoning_content", None)
    for extra, text in (({"think_budget": 4}, "looplolooloop</think>\n\nanswer"), ({"think": False}, "looplo")):
        told = litellm.completion(model="ollama_chat/told", messages=SAYS, api_base=fleet.direct.url, max_tokens=12,
                                  temperature=0, **extra)
        assert told.choices[0].message.content.startswith(text)


@pytest.mark.parametrize("extra", [{"extra_body": each} for each in ARRIVES], ids=str)
def test_langchain(url: str, extra: dict[str, Any]) -> None:
    own = httpx.AsyncClient()  # langchain's is shared, and has connections of event loops that are closed
    model = langchain_openai.ChatOpenAI(model="told", base_url=url + "/v1", api_key="none", temperature=0,
                                        max_tokens=12, max_retries=0, stream_usage=True, http_async_client=own, **extra)

    async def later() -> Any:
        whole, parts = await model.ainvoke(LOOP), [part async for part in model.astream(LOOP)]
        return whole, sum(parts[1:], parts[0])

    parts = list(model.stream(LOOP))
    whole = model.invoke(LOOP)
    assert whole.response_metadata["token_usage"]["think"] == FORCED
    for message in (whole, sum(parts[1:], parts[0]), *asyncio.run(later())):
        assert message.usage_metadata["output_token_details"]["reasoning"] == 4 + CLOSE


@pytest.mark.parametrize("extra", [OFF[0], {"extra_body": OFF[1]}], ids=str)
def test_langchain_off(url: str, extra: dict[str, Any]) -> None:
    model = langchain_openai.ChatOpenAI(model="told", base_url=url + "/v1", api_key="none", temperature=0,
                                        max_tokens=12, max_retries=0, **extra)
    assert not model.invoke(LOOP).usage_metadata["output_token_details"].get("reasoning")


def test_ollama(fleet: fleets.Fleet) -> None:
    client, options = ollama.Client(host=fleet.direct.url), {"num_predict": 12, "temperature": 0}
    limited = {**options, "think_budget": 4}

    async def chat(**more: Any) -> Any:
        return await ollama.AsyncClient(host=fleet.direct.url).chat("told", SAYS, options=limited, **more)

    def joined(chunks: list[Any]) -> Any:
        chunks[-1].message.content = "".join(c.message.content for c in chunks)
        return chunks[-1]

    for got in ways(lambda **more: client.chat("told", SAYS, think=True, options=limited, **more), chat, joined):
        assert got.message.content == "looplolooloop</think>\n\nanswer"
        assert got.done
    assert client.generate("told", "<think>" + LOOP, think=False, options=options).response == "</think>\n\nanswer"
    low = client.generate("told", "<think>" + LOOP, think="low", options=options).response
    assert low == "looplo</think>\n\nanswer"
    with pytest.raises(ollama.ResponseError, match="think switches thinking off"):
        client.chat("told", SAYS, think=False, options=limited)


def test_anthropic(fleet: fleets.Fleet) -> None:
    sync = anthropic.Anthropic(base_url=fleet.direct.url, api_key="none", max_retries=0)
    enabled = {"type": "enabled", "budget_tokens": 1024}
    body: dict[str, Any] = {"model": "told", "max_tokens": 1300, "messages": SAYS, "extra_body": {"temperature": 0}}

    async def create_async(**options: Any) -> Any:
        client = anthropic.AsyncAnthropic(base_url=fleet.direct.url, api_key="none", max_retries=0)
        return await client.messages.create(**body, thinking=enabled, **options)

    def last(events: list[Any]) -> Any:
        return next(e for e in events if e.type == "message_delta")

    for got in ways(lambda **o: sync.messages.create(**body, thinking=enabled, **o), create_async, last, at_once=4):
        assert got.usage.think == think(1024, 1024, CLOSE, "forced")
        assert got.usage.output_tokens_details.thinking_tokens == 1024 + CLOSE
    off = sync.messages.create(**{**body, "max_tokens": 12}, thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]
    own = sync.messages.create(**{**body, "messages": [{"role": "user", "content": THREE}]}, thinking=enabled)
    assert own.usage.think["outcome"] == "natural"
