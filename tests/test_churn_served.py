"""A few hundred random requests at each kind of server, every answer checked: by `bench churn` against the contract,
and where the model is scripted id by id too."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
import told_model as told
from churn_exact import OPEN, Exact, watch
from release_copy import has_data_parallel
from scripted_model import TOLD_TOO, Scripts
from servers import FLOAT32
from uag_models import SPOKEN, build_spoken_draft, build_spoken_model

from sglang_ext.bench.__main__ import main
from sglang_ext.demo.reasoner import reasoner

pytestmark = pytest.mark.served

STARTS = [(OPEN, "loop"), (OPEN, "loop"), (OPEN, "P1"), ("", "P3"), ("", "P4"), (OPEN, "P5")]
SAID = [told.THREE, told.LOOP, told.LOOP, told.STOPS, told.PLAIN, told.OPENS]
PARSER = ("--reasoning-parser", "qwen3")
TAKEN_OFF = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "7"}
TIGHT = ("--schedule-conservativeness", "0.01", "--chunked-prefill-size", "16", "--max-running-requests", "16",
         "--enable-priority-scheduling")
"""A pool that does not hold the requests to their end, small chunks, some requests before others."""
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-ngram-capacity", "100000",
         "--speculative-num-draft-tokens", "5")
UAG = ("--speculative-algorithm", "UAG", "--uag-lengths", "fixed", "--speculative-num-draft-tokens", "6")


@dataclass(frozen=True)
class Kind:
    """A kind of server.

    Attributes:
        flags: of launch.py, beside the model's.
        variables: of its environment.
        model: makes a checkpoint in a folder; None for the scripted model that tests share.
        draft: makes the draft's checkpoint.
        scripts: what the model says, where that is known.
        talks: whether it has a chat template for the scripts.
        requests: how many are sent.
        outcomes: that the answers must have among them.
        retracted: fewest requests that are taken off their slots, as far as the answers tell.
        default: its budget.
    """

    flags: Sequence[str]
    variables: dict[str, str]
    model: Callable[[Path], Path] | None = None
    draft: Callable[[Path], Path] | None = None
    scripts: Scripts | None = TOLD_TOO
    talks: bool = True
    requests: int = 300
    outcomes: frozenset[str] = frozenset(("forced", "natural", "eos", "open", "none"))
    retracted: int = 0
    default: int = -1


PLAIN = Kind((), {})
DRAFTED = Kind((*PARSER, "--dtype", "float32", *UAG, *TIGHT, "--max-total-tokens", "400"),
               {**TAKEN_OFF, "SGLANG_EXT_UAG_OVERLAP": "1"}, build_spoken_model, build_spoken_draft, SPOKEN,
               talks=False, retracted=5)
"""Decoding that runs ahead of the host; the scripted draft writes what the target is going to write."""
KINDS = {
    "tight": Kind((*PARSER, *FLOAT32, *TIGHT, "--max-total-tokens", "280", "--enable-mixed-chunk"), TAKEN_OFF,
                  retracted=5),
    "ngram": Kind((*PARSER, "--dtype", "float32", *NGRAM), {}),
    "dp": Kind((*PARSER, *FLOAT32, "--dp", "2", "--tokenizer-worker-num", "2", "--think-budget", "6",
                "--max-total-tokens", "4096"), {}, default=6),
    "uag overlapped": DRAFTED,
    "uag in turn": replace(DRAFTED, variables={**TAKEN_OFF, "SGLANG_EXT_UAG_OVERLAP": "0"}),
    "tp": Kind((*PARSER, "--dtype", "float32", *UAG, "--tp", "2", "--max-running-requests", "8"), {},
               lambda _: reasoner(), lambda _: reasoner(), None, requests=150,
               outcomes=frozenset(("forced", "natural", "open"))),
}


@dataclass(frozen=True)
class Running:
    """A server of a kind, and the folder of its model."""

    kind: Kind
    server: servers.Server
    model: Path


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, scripted_model: Path,
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kind = KINDS[request.param]
    if "--dp" in kind.flags and not has_data_parallel():
        pytest.skip("this release has no data parallel servers")
    model = kind.model(tmp_path_factory.mktemp("model")) if kind.model else scripted_model
    draft = kind.draft(tmp_path_factory.mktemp("draft")) if kind.draft else None
    drafting = () if draft is None else ("--speculative-draft-model-path", str(draft))
    server = servers.launch("--model-path", str(model), *kind.flags, *drafting, **kind.variables)
    try:
        yield Running(kind, server, model)
    finally:
        left = server.stop()
    assert not left


def churn(running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> dict[str, Any]:
    """A run's summary, once it has found nothing."""
    kind, more = running.kind, []
    exact = Exact(running.model, kind.scripts, kind.default) if kind.scripts else None
    if exact is not None:
        watch(monkeypatch, exact)
        dataset = exact.dataset(folder / "prompts.jsonl", STARTS, SAID if kind.talks else ())
        more = ["--dataset", str(dataset)]
    out = folder / "out"
    status = main(["churn", "--url", running.server.url, "--requests", str(kind.requests), "--concurrency", "24",
                   "--max-tokens", "80", "--seed", str(seed), "--out", str(out), *more])
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert status == 0, [row for row in rows if row["type"] in ("violation", "run end")][:3]
    assert exact is None or exact.compared > kind.requests / 5
    return dict(json.loads((out / "summary.json").read_text()))


def test_no_answer_breaks_the_contract(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, found = running.kind, churn(running, tmp_path, monkeypatch, seed=20)
    assert found["requests"] == kind.requests
    assert set(found["outcomes"]) >= kind.outcomes
    assert found["retractions"] >= kind.retracted
    assert found["undecided"] == 0
    assert found["statuses"].keys() == {"200", "400"}


def test_a_plain_server(scripted_server: servers.Server, scripted_model: Path, tmp_path: Path,
                        monkeypatch: pytest.MonkeyPatch) -> None:
    found = churn(Running(PLAIN, scripted_server, scripted_model), tmp_path, monkeypatch, seed=19)
    assert set(found["outcomes"]) >= PLAIN.outcomes
    assert found["undecided"] == 0


def test_a_violation_is_shown_with_its_request(scripted_server: servers.Server, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    from sglang_ext.bench import churn as command

    monkeypatch.setattr(command, "violations", lambda served, ask, *_: ["limit: broken"] if ask.number == 7 else [])
    out = tmp_path / "out"
    assert main(["churn", "--url", scripted_server.url, "--requests", "5", "--first", "4", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert "violation: request 7" in said
    assert f"curl -sN {scripted_server.url}/" in said
    assert "1 of 5 requests break the contract" in said
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [(row["number"], row["faults"]) for row in rows if row["type"] == "violation"] == [(7, ["limit: broken"])]
    assert rows[-1] == {"type": "end", "state": "complete"}
    assert "limit: broken" in (out / "report.html").read_text()


drafting = pytest.mark.parametrize("running", [name for name in KINDS if name.startswith("uag")], indirect=True)
"""On servers with a draft whose tokens are known."""


@drafting
def test_drafts_are_made_and_counted(running: Running) -> None:
    """After the churn, and while requests are taken off their slots: no count starts anew."""
    server, exact = running.server, Exact(running.model, SPOKEN)
    ids = [*exact.tokenizer.encode(OPEN), exact.id_of("loop")]
    params = {"temperature": 0, "max_new_tokens": 60, "think_budget": 40}
    results = server.generate_all([{"input_ids": ids, "sampling_params": params}] * 16)
    uag = [result["meta_info"]["uag"] for result in results]
    assert sum(result["meta_info"]["num_retractions"] for result in results) > 0
    assert min(count for one in uag for count in one["rejections"].values()) >= 0
    assert all(sum(one[key] for one in uag) > 0 for key in ("proposed", "accepted", "forced"))


@drafting
def test_requests_that_end_with_their_first_token_leave_their_places(running: Running) -> None:
    """sglang tells a worker of those that end while they decode, not of these."""
    server, places = running.server, 16
    ask = {"text": "<think>\n", "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    first = server.generate(**ask)["output_ids"]
    stopped = {"temperature": 0, "max_new_tokens": 40, "stop_token_ids": first}
    for params in (ask["sampling_params"], stopped):
        for result in server.generate_all([{**ask, "sampling_params": params}] * (places + 4)):
            assert result["output_ids"] == first
    long = {**ask, "sampling_params": {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}}
    assert server.generate(**long)["meta_info"]["uag"]["proposed"] > 0


def test_nothing_is_left_behind(running: Running) -> None:
    """sglang looks for leaks of the target's pool when it is idle, our worker for those of the draft's when the caches
    are emptied."""
    deadline = time.monotonic() + 30
    while requests.post(running.server.url + "/flush_cache", timeout=60).status_code != 200:
        assert time.monotonic() < deadline, "the caches cannot be emptied, so it has something to do"
        time.sleep(0.5)
    log = running.server.log.read_text()
    while running.kind.draft and "UAG: draft pool" not in log and time.monotonic() < deadline:
        time.sleep(0.2)
        log = running.server.log.read_text()
    assert running.kind.draft is None or "UAG: draft pool empty" in log
    assert [line for line in log.splitlines() if "leak" in line.lower() and "server_args=" not in line] == []
    assert running.server.process.poll() is None
