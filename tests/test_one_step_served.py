"""A forced end that is read in one forward, against the same requests with it written token by token.

The scripted model's next token is known, so a batch of any shape answers the same. What a client is told must be equal:
ids, text, `think`, every count of `usage`, logprobs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from release_copy import has_data_parallel
from scripted_model import TURN
from scripted_requests import OPEN, STARTS, answers
from servers import FLOAT32
from streams import stream
from transformers import AutoTokenizer, PreTrainedTokenizerFast

pytestmark = pytest.mark.served

MESSAGE = "enough of this, here it comes. "
TOLD = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "finish_reason", "think", "output_token_logprobs",
        "output_top_logprobs", "num_retractions")
STAYS: list[dict[str, Any]] = [
    {"return_logprob": True, "top_logprobs_num": 2},
    {"sampling_params": {"frequency_penalty": 0.5}},
    {"sampling_params": {"min_new_tokens": 1}},
    {"sampling_params": {"regex": "(lo|loo|loop)*"}},
]
"""What is more than ids: such a request is written token by token."""
STOPS = [{"stop": ["answer", "comes. </th"]}, {"stop": [" comes", "loop"]}, {"stop": [". </think>\n"]}]
"""Text that an end holds, or that begins in it, stops nothing."""
SETTINGS = {
    "without overlap": ("--disable-overlap-schedule",),
    "without a prefix cache": ("--disable-radix-cache",),
    "small chunks": ("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
    "whatever it costs": ("--think-one-step", "always", "--enable-mixed-chunk"),
    "two schedulers": ("--dp", "2"),
    "two ranks": ("--tp", "2"),
    "a cache of prompts alone": ("--strip-thinking-cache",),
}


def flags(model: Path) -> list[str]:
    return ["--model-path", str(model), "--reasoning-parser", "qwen3", "--enable-cache-report", *FLOAT32]


@pytest.fixture(scope="module")
def stepwise_server(scripted_model: Path) -> Iterator[servers.Server]:
    server = servers.launch(*flags(scripted_model), "--think-one-step", "off")
    yield server
    assert not server.stop()


@pytest.fixture(scope="module", params=SETTINGS)
def other_server(request: pytest.FixtureRequest, scripted_model: Path) -> Iterator[servers.Server]:
    if "--dp" in SETTINGS[request.param] and not has_data_parallel():
        pytest.skip("this release has no data parallel servers")
    server = servers.launch(*flags(scripted_model), *SETTINGS[request.param])
    yield server
    assert not server.stop()


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(scripted_model)


def ask(tokenizer: PreTrainedTokenizerFast, prompt: str, start: str, budget: Any, new: int = 60,
        **extra: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": new, **extra.pop("sampling_params", {})}
    if budget is not None:
        params["think_budget"] = budget
    ids = [*tokenizer.encode(prompt), tokenizer.convert_tokens_to_ids(start)]
    return {"input_ids": ids, "sampling_params": params, **extra}


@pytest.fixture(scope="module")
def mix(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """Walls anywhere, ends that the length cuts, and every kind of request that stays token by token."""
    rng, made = random.Random(17), []
    for i in range(128):
        prompt, start = rng.choice([*STARTS, *[(OPEN, "loop")] * len(STARTS)])
        budget: Any = {"max_tokens": rng.choice([-1, 0, 0, *range(12), 20]),
                       "message": rng.choice([MESSAGE, MESSAGE, ""])}
        if rng.random() < 0.2:
            budget["answer_tokens"] = rng.randint(1, 6)
        if i % 8 == 0:
            budget = None
        new = rng.choice([60, 60, rng.randint(37, 50)]) if budget and "answer_tokens" in budget else rng.randint(1, 70)
        more = {1: STAYS[i // 4 % len(STAYS)], 2: {"sampling_params": STOPS[i // 4 % len(STOPS)]}}.get(i % 4, {})
        made.append(ask(tokenizer, "context " * rng.randint(0, 4) + TURN + prompt, start, budget, new, **more))
    return made


@pytest.fixture(scope="module")
def stepwise(stepwise_server: servers.Server, mix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = answers(stepwise_server, mix)
    assert sum(r["meta_info"].get("think", {}).get("forced_tokens", 0) > len(MESSAGE) / 2 for r in found) > len(mix) / 5
    return found


def told(result: dict[str, Any]) -> dict[str, Any]:
    meta = {key: result["meta_info"].get(key) for key in TOLD}
    return {"ids": result["output_ids"], "text": result["text"], **meta}


def check(found: list[dict[str, Any]], wanted: list[dict[str, Any]], asked: list[dict[str, Any]]) -> None:
    for request, one, other in zip(asked, found, wanted, strict=True):
        assert told(one) == told(other), request


def test_what_a_client_is_told(scripted_server: servers.Server, mix: list[dict[str, Any]],
                               stepwise: list[dict[str, Any]]) -> None:
    check(answers(scripted_server, mix), stepwise, mix)


def test_on_other_servers(other_server: servers.Server, mix: list[dict[str, Any]],
                          stepwise: list[dict[str, Any]]) -> None:
    check(answers(other_server, mix), stepwise, mix)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_an_end_is_one_piece_of_the_stream(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast,
                                           budget: int) -> None:
    """One piece has all of its ids, or all but the one that was on its way when the wall was seen."""
    body = ask(tokenizer, OPEN, "loop", {"max_tokens": budget, "message": MESSAGE}, 50)
    events = stream(scripted_server, body)
    lengths = [0, *(len(e["output_ids"]) for e in events)]
    steps = [b - a for a, b in pairwise(lengths)]
    forced = events[-1]["meta_info"]["think"]["forced_tokens"]
    assert forced > len(MESSAGE) / 2
    assert max(steps) >= forced - 1
    assert events[-1]["output_ids"] == scripted_server.generate(**body)["output_ids"]
    counts = [e["meta_info"]["think"]["forced_tokens"] for e in events]
    assert counts == sorted(counts)
    assert budget or lengths[1] > forced, "known before the prompt is read"
    assert all(e["meta_info"]["completion_tokens"] == len(e["output_ids"]) for e in events)


@pytest.mark.parametrize("more", STAYS)
def test_what_is_more_than_ids_is_written_token_by_token(scripted_server: servers.Server,
                                                         tokenizer: PreTrainedTokenizerFast,
                                                         more: dict[str, Any]) -> None:
    events = stream(scripted_server, ask(tokenizer, OPEN, "loop", {"max_tokens": 2, "message": MESSAGE}, 40, **more))
    lengths = [0, *(len(e["output_ids"]) for e in events)]
    assert max(b - a for a, b in pairwise(lengths)) < len(MESSAGE) / 2


def test_cached_tokens_are_those_of_the_prompt(scripted_server: servers.Server, stepwise_server: servers.Server,
                                               tokenizer: PreTrainedTokenizerFast) -> None:
    """The second request finds the first one's end in the cache too; it is no part of its prompt."""
    prompt = "a prompt of its own. " + TURN + OPEN
    for budget in (0, 4):
        body = ask(tokenizer, prompt, "loop", {"max_tokens": budget, "message": MESSAGE}, 50)
        counts = []
        for server in (scripted_server, stepwise_server):
            requests.post(server.url + "/flush_cache", timeout=60)
            said = [server.generate(**body)["meta_info"] for _ in range(2)]
            assert all(meta["think"]["forced_tokens"] > len(MESSAGE) / 2 for meta in said)
            counts.append([meta["cached_tokens"] for meta in said])
        assert counts[0] == counts[1] == [0, len(body["input_ids"]) - 1]


def test_beside_a_request_that_waits(scripted_server: servers.Server, stepwise_server: servers.Server,
                                     tokenizer: PreTrainedTokenizerFast) -> None:
    """A request with logprobs, as the one that waits while the others' ends are read."""
    neighbour = ask(tokenizer, OPEN, "loop", None, 150, return_logprob=True, sampling_params={"ignore_eos": True})
    cut = [ask(tokenizer, OPEN, "loop", {"max_tokens": 10 * i, "message": MESSAGE}, 120, stream=True)
           for i in range(1, 4)]
    found = []
    for server in (scripted_server, stepwise_server):
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(stream, server, body) for body in cut]
            found.append([told(server.generate(**neighbour)), *(told(s.result()[-1]) for s in streams)])
            if server is scripted_server:
                assert all(len(s.result()) < 120 - len(MESSAGE) / 2 for s in streams)
    assert found[0] == found[1]


def test_two_samples(scripted_server: servers.Server, stepwise_server: servers.Server,
                     tokenizer: PreTrainedTokenizerFast) -> None:
    body = ask(tokenizer, OPEN, "loop", {"max_tokens": 3, "message": MESSAGE}, 50, sampling_params={"n": 2})
    one, other = (s.post("/generate", body).json() for s in (scripted_server, stepwise_server))
    assert [told(r) for r in one] == [told(r) for r in other]
    assert len(one) == 2


def test_turns_of_a_session(scripted_server: servers.Server, stepwise_server: servers.Server,
                            tokenizer: PreTrainedTokenizerFast) -> None:
    """A session goes on from what a response left in its slot; its ends are written token by token."""
    said = []
    for server in (scripted_server, stepwise_server):
        opened = server.post("/open_session", {"capacity_of_str_len": 1000})
        params, turns = {"id": opened.json(), "rid": None}, []
        for budget in (2, 0, 5):
            body = ask(tokenizer, OPEN, "loop", {"max_tokens": budget, "message": MESSAGE}, 44, session_params=params)
            events = stream(server, body)
            turns.append(told(events[-1]))
            params = {**params, "rid": events[-1]["meta_info"]["id"]}
            lengths = [0, *(len(e["output_ids"]) for e in events)]
            assert max(b - a for a, b in pairwise(lengths)) < len(MESSAGE) / 2
        server.post("/close_session", {"session_id": opened.json()})
        said.append(turns)
    assert said[0] == said[1]
    assert all(turn["think"]["outcome"] == "forced" for turn in said[0])


def test_aborts_in_the_middle(scripted_server: servers.Server, mix: list[dict[str, Any]],
                              tokenizer: PreTrainedTokenizerFast, stepwise: list[dict[str, Any]]) -> None:
    """Requests are aborted around their walls; the ones beside them, and the next on their slots, are as ever."""
    doomed = [ask(tokenizer, OPEN, "loop", {"max_tokens": i % 12, "message": MESSAGE}, 400, rid=f"doomed-{i}")
              for i in range(24)]
    rng = random.Random(5)
    with ThreadPoolExecutor(len(doomed) + 1) as pool:
        beside = pool.submit(answers, scripted_server, mix[:32])
        pending = [pool.submit(scripted_server.post, "/generate", body) for body in doomed]
        for body in rng.sample(doomed, len(doomed)):
            time.sleep(rng.random() / 50)
            scripted_server.post("/abort_request", {"rid": body["rid"]})
        for request in pending:
            request.result()
    check(beside.result(), stepwise[:32], mix[:32])
    check(answers(scripted_server, mix[32:64]), stepwise[32:64], mix[32:64])
