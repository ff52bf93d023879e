"""Double queries on sglang as published, without the plugin: a model whose tokens are known, and the demo model."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import servers
from scripted_model import EOS
from transformers import AutoTokenizer

from sglang_ext.double_query import (
    MESSAGE,
    AsyncStream,
    Endpoint,
    Query,
    Response,
    ServerError,
    Stream,
    double_query,
    double_query_async,
)

OPEN = "<think>\n"
GREEDY = {"temperature": 0}
APIS = ["generate", "completions"]


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(scripted_model)


@pytest.fixture
def server(stock_scripted_server: servers.Server) -> servers.Server:
    return stock_scripted_server


@pytest.fixture(params=APIS)
def endpoint(request: pytest.FixtureRequest, server: servers.Server, tokenizer: Any) -> Endpoint:
    return Endpoint(server.url, request.param, tokenizer=tokenizer)


def query(tokenizer: Any, prompt: str, start: str, budget: int, most: int = 24, message: str = "",
          **params: Any) -> Query:
    ids = [*tokenizer.encode(prompt), int(tokenizer.convert_tokens_to_ids(start))]
    return Query(ids, budget, most, message, {**GREEDY, **params})


def pieces(tokenizer: Any, response: Response) -> list[str]:
    return [str(tokenizer.convert_ids_to_tokens(i)).replace("\u010a", "\n") for i in response.token_ids or ()]


@pytest.mark.parametrize("budget", range(6))
def test_wall_before_and_inside_the_marker(endpoint: Endpoint, tokenizer: Any, budget: int) -> None:
    response = double_query(endpoint, query(tokenizer, OPEN, "P1", budget))
    own = ["one", "two", "three", "</", "think"][:budget]
    rest = ["</", "think", ">"][max(0, budget - 3) :]
    assert pieces(tokenizer, response) == [*own, *rest, "\n\n", "answer", EOS]
    assert (response.think_tokens, response.forced_tokens) == (budget, len(rest) + 1)
    assert response.text == "onetwothree"[: [0, 3, 6, 11, 11, 11][budget]] + "</think>\n\nanswer"
    assert (response.outcome, response.finish_reason, response.answer) == ("forced", "stop", "answer")
    assert response.calls == (2 if budget else 1)


@pytest.mark.parametrize("budget", [6, 7, 20, -1])
def test_thinking_that_ends_by_itself(endpoint: Endpoint, tokenizer: Any, budget: int) -> None:
    """Closed just at the wall, the response only goes on: nothing is written twice."""
    response = double_query(endpoint, query(tokenizer, OPEN, "P1", budget))
    assert pieces(tokenizer, response) == ["one", "two", "three", "</", "think", ">", "\n\n", "answer", EOS]
    assert (response.think_tokens, response.forced_tokens, response.outcome) == (6, 0, "natural")
    assert (response.reasoning, response.answer) == ("onetwothree", "answer")
    assert response.calls == (2 if budget in (6, 7) else 1)


@pytest.mark.parametrize("budget", [4, 5, 6])
def test_marker_whose_last_piece_is_merged(endpoint: Endpoint, tokenizer: Any, budget: int) -> None:
    response = double_query(endpoint, query(tokenizer, OPEN, "P2", budget))
    assert response.text == ("unoduetre</think>\nrisposta" if budget == 6 else "unoduetre</think>\n\nanswer")
    assert response.think_tokens == budget


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_block_that_the_model_opens(endpoint: Endpoint, tokenizer: Any, budget: int) -> None:
    response = double_query(endpoint, query(tokenizer, "", "P3", budget))
    thought = "".join(["idea", "loop", "lo"][:budget])
    assert response.text == f"intro\n<think>{thought}</think>\n\nanswer"
    assert (response.think_tokens, response.outcome, response.answer) == (budget, "forced", "intro\n\n\nanswer")


def test_model_that_opens_no_block(endpoint: Endpoint, tokenizer: Any) -> None:
    """The start marker in the middle of a line is text; the response goes on to its end."""
    for budget in (0, 2, 20):
        response = double_query(endpoint, query(tokenizer, "", "P4", budget))
        assert response.text == "the tag <think>xis text"
        assert (response.outcome, response.think_tokens, response.forced_text) == ("none", 0, "")


def test_response_that_ends_while_thinking(endpoint: Endpoint, tokenizer: Any) -> None:
    response = double_query(endpoint, query(tokenizer, OPEN, "P5", 9))
    assert (response.text, response.outcome, response.think_tokens, response.calls) == ("halfthought", "open", 2, 1)
    response = double_query(endpoint, query(tokenizer, OPEN, "loop", 50, most=7))
    assert (response.outcome, response.finish_reason, response.completion_tokens) == ("open", "length", 7)


def test_the_second_call_finds_the_first_in_the_prefix_cache(endpoint: Endpoint, tokenizer: Any) -> None:
    """All of it but its last token, whose keys and values no step has needed."""
    for budget in (40, 90):
        asked = query(tokenizer, OPEN, "loop", budget, most=120, message=MESSAGE)
        response = double_query(endpoint, asked)
        assert response.cached_tokens is not None
        assert response.cached_tokens >= len(asked.prompt) + budget - 1


def test_streams_say_the_same_in_order(endpoint: Endpoint, tokenizer: Any) -> None:
    for budget in (0, 2, 5, 6, 20):
        asked = query(tokenizer, OPEN, "P1", budget, message="M")
        with Stream(endpoint, asked) as stream:
            said = list(stream)
        plain = double_query(endpoint, asked)
        assert "".join(said) == stream.response.text == plain.text
        assert stream.response.token_ids == plain.token_ids
        assert len(said) > 1


def test_stop_strings(endpoint: Endpoint, tokenizer: Any) -> None:
    """In the thinking, in the answer, and across the two calls; nothing of one is handed out."""
    for budget, stop, text in ((9, "wothr", "onet"), (2, "swer", "onetwo</think>\n\nan"),
                               (6, ">\n\nan", "onetwothree</think"), (7, "\n\nans", "onetwothree</think>")):
        asked = query(tokenizer, OPEN, "P1", budget, stop=[stop, "never"])
        with Stream(endpoint, asked) as stream:
            assert "".join(stream) == text
        assert (stream.response.finish_reason, stream.response.matched_stop) == ("stop", stop)


def test_minimum_and_ignored_eos(endpoint: Endpoint, tokenizer: Any) -> None:
    response = double_query(endpoint, query(tokenizer, OPEN, "P1", 2, most=12, ignore_eos=True))
    assert (response.completion_tokens, response.finish_reason) == (12, "length")
    response = double_query(endpoint, query(tokenizer, OPEN, "P1", 2, most=12, min_tokens=9))
    assert response.completion_tokens >= 9


@pytest.mark.parametrize("api", APIS)
def test_text_alone(server: servers.Server, api: str) -> None:
    """Without a tokenizer. The server encodes what was written anew: this vocabulary merges the end marker's last piece
    with a line feed, which the model's script tells from a marker in three pieces and a line feed."""
    for budget, thought in ((0, ""), (1, "lo"), (4, "loloolooplo")):
        asked = Query(OPEN + "loop", budget, 24, "M", GREEDY)
        endpoint = Endpoint(server.url, api, line_break="\n")
        response = double_query(endpoint, asked)
        assert response.text == thought + "M</think>\nrisposta"
        assert (response.outcome, response.think_tokens, response.token_ids) == ("forced", budget, None)
        with Stream(endpoint, asked) as stream:
            assert "".join(stream) == response.text


def test_many_at_once(endpoint: Endpoint, tokenizer: Any) -> None:
    budgets = [n % 8 for n in range(32)]

    async def run() -> list[Response]:
        async with httpx.AsyncClient() as client:
            asked = [query(tokenizer, OPEN, "loop", b, most=b + 5) for b in budgets]
            return await asyncio.gather(*(double_query_async(endpoint, q, client) for q in asked))

    for budget, response in zip(budgets, asyncio.run(run()), strict=True):
        assert response.think_tokens == budget
        own = [["lo", "loo", "loop"][i % 3] for i in range(budget)]
        assert response.text == "".join(own) + "</think>\n\nanswer"


def running(server: servers.Server) -> int:
    loads = requests.get(server.url + "/v1/loads", timeout=10).json()["loads"]
    return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in loads)


def aborted(server: servers.Server) -> float:
    """How many requests the server was told to give up."""
    text = requests.get(server.url + "/metrics", timeout=10).text
    return sum(map(float, re.findall(r"^sglang:num_aborted_requests_total\S* (\S+)$", text, re.MULTILINE)))


@pytest.mark.parametrize("streamed", [True, False])
def test_a_cancelled_task_frees_the_server(server: servers.Server, tokenizer: Any, streamed: bool) -> None:
    asked = query(tokenizer, OPEN, "loop", 1900, most=1900)

    async def run() -> None:
        async def read() -> None:
            async with AsyncStream(Endpoint(server.url, tokenizer=tokenizer), asked, streamed=streamed) as stream:
                async for _ in stream:
                    pass

        task = asyncio.create_task(read())
        while not await asyncio.to_thread(running, server):
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = aborted(server)
    asyncio.run(run())
    while running(server):
        time.sleep(0.1)
    assert aborted(server) == before + 1


def test_a_refusal_of_the_server(endpoint: Endpoint, tokenizer: Any) -> None:
    for streamed in (False, True):
        with pytest.raises(ServerError, match="2048") as error:
            list(Stream(endpoint, query(tokenizer, OPEN, "loop", 5000, most=9000), streamed=streamed))
        assert error.value.status == 400


def command(*args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command; as a user starts it where it reads from its input."""
    if text is None:
        return servers.run("-m", "sglang_ext.double_query", *args)
    return subprocess.run([sys.executable, "-m", "sglang_ext.double_query", *args], capture_output=True, text=True,
                          input=text, cwd=servers.ROOT, env=servers.environment(), timeout=300, check=False)


def test_command(server: servers.Server, scripted_model: Path) -> None:
    common = ["--url", server.url, "--tokenizer", str(scripted_model), "--message", "M", "--params", json.dumps(GREEDY)]
    for extra in ([], ["--stream"], ["--api", "completions"]):
        done = command(*common, "--think-budget", "4", *extra, OPEN + "loop")
        assert done.stdout == "loloolooploM</think>\n\nanswer\n", done.stderr
        assert "forced, 4 thinking tokens" in done.stderr


def test_command_with_many_prompts(server: servers.Server, scripted_model: Path, tmp_path: Path) -> None:
    common = ["--url", server.url, "--tokenizer", str(scripted_model), "--message", "M", "--params", json.dumps(GREEDY),
              "--think-budget", "3", "--max-tokens", "9"]
    lines = [json.dumps({"prompt": OPEN + "loop"}), "answer", json.dumps({"prompt": []}), ""]
    done = command(*common, text="\n".join(lines))
    first, second, third = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["text"], second["outcome"]) == ("loloo" + "loopM</think>\n\nanswer", "none")
    assert "prompt" in third["error"]
    assert done.returncode == 1
    file = tmp_path / "prompts"
    file.write_text((OPEN + "loop").replace("\n", " ") + "\n")
    assert command(*common, "--file", str(file)).returncode == 0


@pytest.mark.parametrize(("args", "parts"), [
    (["--think-budget", "-2", "x"], ["think_budget", "-2"]),
    (["--think-budget", "2", "--params", "[1]", "x"], ["--params"]),
    (["--think-budget", "2", "--stream"], ["--stream"]),
    (["--think-budget", "2", "--concurrency", "0"], ["--concurrency", "0"]),
    (["--think-budget", "2", "--chat", "x"], ["prompt", "tokenizer"]),
])
def test_command_refuses(args: list[str], parts: list[str]) -> None:
    done = command("--url", "http://127.0.0.1:9", *args)
    assert done.returncode == 2
    assert all(part in done.stderr for part in parts), done.stderr


def test_command_without_a_server() -> None:
    done = command("--url", f"http://127.0.0.1:{servers.free_port()}", "--think-budget", "2", "x")
    assert done.returncode == 1
    assert "ConnectError" in done.stderr


def test_imports_neither_torch_nor_sglang() -> None:
    code = "import sys, sglang_ext.double_query.__main__; print({'torch', 'sglang'} & set(sys.modules))"
    assert servers.run("-c", code, cold=True).stdout.strip() == "set()"
