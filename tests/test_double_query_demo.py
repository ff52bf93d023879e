"""Double queries on the demo model, float32, against the budget inside the server on the same prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import servers

from sglang_ext.double_query import Endpoint, Query, Response, double_query_async

QUESTIONS = ["How many days are in three weeks?", "Name the capital of France.", "What is 17 + 25?",
             "Tell me a story about a fox."]
BUDGETS = [0, 1, 5, 12]
MOST = 24
PARAMS = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def outside(stock_demo_server: servers.Server, demo_tokenizer: Any) -> list[Response]:
    """Answers of sglang as published, asked with chat messages, all at once."""
    endpoint = Endpoint(stock_demo_server.url, tokenizer=demo_tokenizer)

    async def run() -> list[Response]:
        async with httpx.AsyncClient() as client:
            queries = [Query([{"role": "user", "content": q}], b, MOST, "", PARAMS)
                       for q, b in zip(QUESTIONS, BUDGETS, strict=True)]
            return await asyncio.gather(*(double_query_async(endpoint, q, client) for q in queries))

    return asyncio.run(run())


def test_thinking_is_cut_and_the_prefix_cached(outside: list[Response], demo_tokenizer: Any) -> None:
    close = [*demo_tokenizer.encode("</think>"), *demo_tokenizer.encode("\n\n")]
    for budget, response in zip(BUDGETS, outside, strict=True):
        ids = list(response.token_ids or ())
        assert ids[budget : budget + len(close)] == close
        assert (response.think_tokens, response.outcome) == (budget, "forced")
        assert (response.completion_tokens, response.forced_tokens) == (MOST, len(close))
        if budget:
            assert response.calls == 2
            assert response.prompt_tokens is not None
            assert response.cached_tokens is not None
            assert response.cached_tokens >= response.prompt_tokens + budget - 1


def test_the_same_thinking_as_with_the_servers_budget(outside: list[Response], demo_server: servers.Server,
                                                      demo_tokenizer: Any) -> None:
    texts = [demo_tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False,
                                                add_generation_prompt=True) for q in QUESTIONS]
    inside = demo_server.generate_all([
        {"text": text, "sampling_params": {**PARAMS, "max_new_tokens": MOST, "think_budget": budget}}
        for text, budget in zip(texts, BUDGETS, strict=True)])
    for budget, response, result in zip(BUDGETS, outside, inside, strict=True):
        cut = budget + (response.forced_tokens or 0)
        assert list(response.token_ids or ())[:cut] == result["output_ids"][:cut]
        assert result["meta_info"]["think"]["tokens"] == response.think_tokens
