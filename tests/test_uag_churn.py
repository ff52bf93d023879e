"""Three hundred requests that come, end, are aborted and are taken off their slots while drafts are made for them.

Each response is checked from its ids; then the server has to be idle and both its pools empty.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from scripted_model import byte_level
from test_churn import AT_ONCE, Case, Model, check, random_case, serve
from transformers import AutoTokenizer
from uag_models import build_spoken_draft, build_spoken_model

pytestmark = pytest.mark.served

REQUESTS = 300


class SpokenModel(Model):
    """The scripted model whose words are tokens of their own."""

    def id_of(self, piece: str) -> int:
        known = self.tokenizer.get_vocab()
        return int(known[piece] if piece in known else known[byte_level(piece)])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_spoken_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module", params=["1", "0"], ids=["overlapped", "in_turn"])
def tight_server(request: pytest.FixtureRequest, target: Path,
                 tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """Pools that do not hold the requests to their end, and some taken off in any case; small chunks; with decoding
    that runs ahead of the host, and without."""
    draft = build_spoken_draft(tmp_path_factory.mktemp("draft"))
    server = servers.launch("--model-path", str(target), "--reasoning-parser", "qwen3", "--dtype", "float32",
                            "--speculative-algorithm", "UAG", "--speculative-draft-model-path", str(draft),
                            "--speculative-num-draft-tokens", "6", "--uag-lengths", "fixed", "--max-total-tokens",
                            "400", "--schedule-conservativeness", "0.01", "--chunked-prefill-size", "16",
                            "--max-running-requests", "16", "--enable-priority-scheduling", SGLANG_TEST_RETRACT="1",
                            SGLANG_TEST_RETRACT_INTERVAL="7", SGLANG_EXT_UAG_OVERLAP=request.param)
    try:
        yield server
    finally:
        left = server.stop()
    assert not left


def cases(model: Model, rng: random.Random) -> list[Case]:
    """As in the churn without drafts; every eighth client goes away while it reads."""
    made = [random_case(i, model, rng) for i in range(REQUESTS)]
    return [replace(case, kind="disconnect") if i % 8 == 7 else case for i, case in enumerate(made)]


def answer(server: servers.Server, case: Case, delay: float) -> Sequence[dict[str, Any]]:
    if case.kind != "disconnect":
        return serve(server, case, delay)
    with requests.post(server.url + "/generate", json={**case.body, "stream": True}, stream=True,
                       timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                return [json.loads(line[6:])]
    return []


def flushed(server: servers.Server, seconds: float = 30) -> bool:
    """Whether the caches can be emptied, which takes a server that has nothing to do."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if requests.post(server.url + "/flush_cache", timeout=60).status_code == 200:
            return True
        time.sleep(0.5)
    return False


def test_three_hundred_requests(tight_server: servers.Server, target: Path) -> None:
    model, rng = SpokenModel(AutoTokenizer.from_pretrained(target)), random.Random(21)
    made = cases(model, rng)
    delays = [0.5 * rng.random() for _ in made]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda pair: answer(tight_server, *pair), zip(made, delays, strict=True)))
    for case, results in zip(made, answers, strict=True):
        for result in results:
            check(replace(case, kind="abort") if case.kind == "disconnect" else case, result, model)
    done = [r["meta_info"] for results in answers for r in results]
    assert len(done) > 0.9 * REQUESTS
    assert sum(meta.get("num_retractions", 0) for meta in done) > 20
    assert sum(meta["finish_reason"] is not None and meta["finish_reason"]["type"] == "abort" for meta in done) > 5
    drafts: Counter[str] = Counter()
    for meta in done:
        uag = meta.get("uag") or {}
        drafts.update({key: uag.get(key, 0) for key in ("proposed", "accepted", "forced")})
        assert min(uag.get("rejections", {}).values(), default=0) >= 0, "counts start anew while a request goes on"
    assert drafts["proposed"] > 300
    assert drafts["accepted"] > 100
    assert drafts["forced"] > 100


def test_requests_that_end_with_their_first_token_leave_their_places(tight_server: servers.Server) -> None:
    """sglang tells a worker of those that end while they decode, not of these."""
    ask = {"text": "<think>\n", "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    first = tight_server.generate(**ask)["output_ids"]
    stopped = {"temperature": 0, "max_new_tokens": 40, "stop_token_ids": first}
    places = 16
    for params in (ask["sampling_params"], stopped):
        for result in tight_server.generate_all([{**ask, "sampling_params": params}] * (places + 4)):
            assert result["output_ids"] == first
    long = {**ask, "sampling_params": {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}}
    assert tight_server.generate(**long)["meta_info"]["uag"]["proposed"] > 0


def test_nothing_is_left_behind(tight_server: servers.Server) -> None:
    """Of both pools: sglang checks the target's when it is idle, the worker its own when the caches are emptied."""
    assert flushed(tight_server)
    deadline = time.monotonic() + 20
    while "UAG: draft pool" not in tight_server.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    log = tight_server.log.read_text()
    assert "UAG: draft pool empty" in log
    assert [line for line in log.splitlines() if "leak" in line.lower() and "server_args=" not in line] == []
    assert tight_server.process.poll() is None


def test_the_pool_is_whole_afterwards(tight_server: servers.Server, target: Path) -> None:
    """As many requests as the pools hold are drafted for again."""
    model, rng = SpokenModel(AutoTokenizer.from_pretrained(target)), random.Random(22)
    again = [replace(random_case(REQUESTS + i, model, rng), kind="plain", new=24) for i in range(6)]
    with ThreadPoolExecutor(len(again)) as pool:
        answers = list(pool.map(lambda case: serve(tight_server, case, 0), again))
    for case, (result,) in zip(again, answers, strict=True):
        check(case, result, model)
