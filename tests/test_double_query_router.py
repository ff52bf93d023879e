"""Double queries through sglang-router: both calls reach the same of two servers, whose prefix cache has the first."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet as fleets
import httpx
import pytest
import servers
from scripted_model import EOS, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer

from sglang_ext.double_query import Endpoint, Query, Response, Stream, double_query, double_query_async

pytestmark = pytest.mark.served

OPEN = "<think>\n"
SCRIPTS = Scripts(
    [["think", "one", "</think>", "\n\n", "answer", EOS], ["loop", "lo", "loo", "loop"]],
    special=["<think>", "</think>"],
)
BUDGET = 48

needs_router = pytest.mark.skipif(importlib.util.find_spec("sglang_router") is None,
                                  reason="sglang-router is not installed; the test extra has it")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_scripted_model(tmp_path_factory.mktemp("special"), SCRIPTS)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def workers(model: Path) -> Iterator[list[servers.Server]]:
    """Two servers of one model."""
    started: list[servers.Server] = []
    try:
        for _ in range(2):
            started.append(servers.stock("--model-path", str(model), "--enable-cache-report", *FLOAT32))
        yield started
    finally:
        for worker in started:
            worker.stop()


@pytest.fixture(scope="module")
def router(workers: list[servers.Server]) -> Iterator[servers.Server]:
    router = fleets.start_router(workers)
    yield router
    router.stop()


def prompts(tokenizer: Any, n: int) -> list[list[int]]:
    """Prompts with nothing in common at their beginning, so that the router spreads them."""
    return [tokenizer.encode(f"{chr(97 + i) * 40} {i} {OPEN}loop") for i in range(n)]


def check(prompt: list[int], response: Response) -> None:
    cycle = ["lo", "loo", "loop"]
    assert response.text == "".join(cycle[i % 3] for i in range(BUDGET)) + "M</think>\n\nanswer"
    assert (response.outcome, response.think_tokens, response.calls) == ("forced", BUDGET, 2)
    assert response.cached_tokens is not None
    assert response.cached_tokens >= len(prompt) + BUDGET - 1


@needs_router
def test_the_second_call_finds_the_first_behind_a_router(router: servers.Server, workers: list[servers.Server],
                                                         tokenizer: Any) -> None:
    endpoint = Endpoint(router.url, tokenizer=tokenizer)
    asked = prompts(tokenizer, 8)

    async def run() -> list[Response]:
        async with httpx.AsyncClient() as client:
            queries = [Query(p, BUDGET, 80, "M", {"temperature": 0}) for p in asked]
            return await asyncio.gather(*(double_query_async(endpoint, q, client) for q in queries))

    for prompt, response in zip(asked, asyncio.run(run()), strict=True):
        check(prompt, response)
    homes = [[w.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})["meta_info"]["cached_tokens"]
              >= len(prompt) - 1 for w in workers] for prompt in asked]
    assert all(sum(home) == 1 for home in homes)
    assert {home.index(True) for home in homes} == {0, 1}


@needs_router
def test_streams_and_text_behind_a_router(router: servers.Server, tokenizer: Any) -> None:
    prompt = prompts(tokenizer, 1)[0]
    with Stream(Endpoint(router.url, tokenizer=tokenizer), Query(prompt, BUDGET, 80, "M", {"temperature": 0})) as run:
        said = list(run)
    check(prompt, run.response)
    assert "".join(said) == run.response.text
    query = Query(OPEN + "loop", 4, 24, "M", {"temperature": 0})
    for endpoint in (Endpoint(router.url), Endpoint(router.url, "completions", "default")):
        assert double_query(endpoint, query).text == "loloolooploM</think>\n\nanswer"


def test_marker_that_is_a_special_token_is_seen_in_text(workers: list[servers.Server], tokenizer: Any) -> None:
    """A server leaves special tokens out of its text unless it is asked for them."""
    for endpoint in (Endpoint(workers[0].url), Endpoint(workers[0].url, "completions"),
                     Endpoint(workers[0].url, tokenizer=tokenizer)):
        response = double_query(endpoint, Query(OPEN + "think", 9, 24, "M", {"temperature": 0}))
        assert response.text == "one</think>\n\nanswer"
        assert (response.outcome, response.reasoning, response.answer) == ("natural", "one", "answer")
