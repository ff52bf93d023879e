"""Hundreds of requests that come, end, are aborted and are taken off their slots, each checked from its ids.

What a response should be is simulated with the rescanning oracle, which shares no code with the automaton; the model's
own next token is known.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from budget_oracle import Rules, View, replay
from scripted_model import EOS, SCRIPTS, byte_level
from servers import FLOAT32
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sglang_ext.vocab import token_bytes

pytestmark = pytest.mark.served

REQUESTS, AT_ONCE = 400, 24
OPEN = "<think>\n"
STARTS = [(OPEN, "loop"), (OPEN, "loop"), (OPEN, "P1"), ("", "P3"), ("", "P4"), (OPEN, "P5")]
MESSAGES = ["", "", "So: ", "enough of this, here it comes. "]
KINDS = ["plain", "plain", "stream", "two", "abort"]


@pytest.fixture(scope="module")
def tight_server(scripted_model: Path) -> Iterator[servers.Server]:
    """A pool that does not hold the requests to their end, and some taken off in any case; small chunks, decoding rows
    mixed into them."""
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32,
                            "--max-total-tokens", "280", "--schedule-conservativeness", "0.01",
                            "--chunked-prefill-size", "16", "--enable-mixed-chunk", "--max-running-requests", "16",
                            "--enable-priority-scheduling", SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="7")
    yield server
    assert not server.stop()


@dataclass(frozen=True)
class Case:
    """One request, and how it is made."""

    opened: bool
    ids: list[int]
    budget: dict[str, int | str] | None
    new: int
    kind: str
    priority: int
    rid: str

    @property
    def body(self) -> dict[str, Any]:
        params: dict[str, Any] = {"temperature": 0, "max_new_tokens": self.new, "n": 2 if self.kind == "two" else 1}
        if self.budget is not None:
            params["think_budget"] = self.budget
        return {"input_ids": self.ids, "sampling_params": params, "priority": self.priority, "rid": self.rid,
                "stream": self.kind == "stream"}


class Model:
    """What the scripted model writes, and how a budget changes it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.pieces = token_bytes(tokenizer)

    def id_of(self, piece: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(piece if piece == EOS else byte_level(piece)))

    @cached_property
    def successors(self) -> dict[int, int]:
        pairs = [(self.id_of(a), self.id_of(b)) for sequence in SCRIPTS.sequences for a, b in pairwise(sequence)]
        return dict(reversed(pairs))  # the first one stays

    def rules(self, case: Case) -> Rules:
        budget, end = case.budget or {}, [self.id_of(p) for p in ("</", "think", ">")]
        most, message = int(budget.get("max_tokens", -1)), self.tokenizer.encode(str(budget.get("message", "")))
        reserve = int(budget.get("answer_tokens", 0))
        last = case.new - reserve - len(end) - len(message) if reserve else float("inf")
        limited = most >= 0 or reserve > 0
        return Rules(b"<think>", b"</think>", (), self.pieces, None, end, (), [self.id_of(EOS)], case.opened,
                     min(float("inf") if most < 0 else most, last), 0, float("inf"), last, message, limited)

    def respond(self, case: Case) -> tuple[View, bool]:
        """The response as far as it is known, and whether that is all of it."""
        rules, sampled = self.rules(case), list[int]()
        view = replay(rules, sampled)
        while len(sampled) < case.new and self.id_of(EOS) not in view.output:
            token = self.successors.get((view.output or case.ids)[-1], self.id_of(EOS))
            if not view.pending and token in view.lost():
                return view, False
            sampled.append(token)
            view = replay(rules, sampled)
        return view, True


def random_case(number: int, model: Model, rng: random.Random) -> Case:
    prompt, start = rng.choice(STARTS)
    new = rng.randint(4, 80)
    budget: dict[str, int | str] | None = {"max_tokens": rng.choice([-1, *range(14), 25])}
    if rng.random() < 0.4:
        budget["message"] = rng.choice(MESSAGES)  # type: ignore[index]
    if rng.random() < 0.2 and new > 50:
        budget["answer_tokens"] = rng.randint(1, 8)  # type: ignore[index]
    ids = [*model.tokenizer.encode("context " * rng.randint(0, 4) + prompt), model.id_of(start)]
    return Case(bool(prompt), ids, None if rng.random() < 0.15 else budget, new, rng.choice(KINDS),
                rng.randint(0, 3), f"churn-{number}")


def serve(server: servers.Server, case: Case, delay: float) -> Sequence[dict[str, Any]]:
    """The request's results; of one that was aborted, what had come until then."""
    if case.kind == "stream":
        with requests.post(server.url + "/generate", json=case.body, stream=True, timeout=300) as response:
            lines = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
        return [json.loads(lines[-2])]
    if case.kind == "abort":
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(server.post, "/generate", case.body)
            time.sleep(delay)
            server.post("/abort_request", {"rid": case.rid})
            result = pending.result().json()
        return [result] if "output_ids" in result else []
    result = server.post("/generate", case.body).json()
    return result if isinstance(result, list) else [result]


def check(case: Case, result: dict[str, Any], model: Model) -> None:
    view, whole = model.respond(case)
    got, think = result["output_ids"], result["meta_info"].get("think")
    if case.kind == "abort" or not whole:
        known = min(len(got), len(view.output))
        assert got[:known] == view.output[:known], case
        return
    assert got == view.output, case
    if case.budget is not None:
        reported = (think["tokens"], think["forced_tokens"], think["outcome"])
        assert reported == (view.used, view.forced, view.outcome), case


def test_four_hundred_requests(tight_server: servers.Server, scripted_model: Path) -> None:
    model, rng = Model(AutoTokenizer.from_pretrained(scripted_model)), random.Random(20)
    cases = [random_case(i, model, rng) for i in range(REQUESTS)]
    delays = [rng.random() for _ in cases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda pair: serve(tight_server, *pair), zip(cases, delays, strict=True)))
    for case, results in zip(cases, answers, strict=True):
        for result in results:
            check(case, result, model)
    done = [r for results in answers for r in results]
    assert sum(r["meta_info"].get("num_retractions", 0) for r in done) > 20
    assert len(done) > REQUESTS
    assert {r["meta_info"]["think"]["outcome"] for r in done if "think" in r["meta_info"]} >= {
        "forced", "natural", "eos", "open", "none"}
    info = requests.get(tight_server.url + "/server_info", timeout=20).json()["internal_states"][0]
    assert info["memory_usage"]["token_capacity"] >= 280
