"""What the benchmark makes of drafts, and of two calls against one."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench_peer import peer
from tqdm import tqdm

from sglang_ext.bench import BenchError, double_query, overhead, plots, uag, uag_page
from sglang_ext.bench.__main__ import _parser, main
from sglang_ext.bench.models import Markers, Served
from sglang_ext.bench.record import Record, Run, read
from sglang_ext.bench.workload import Task

KINDS = ("chat", "numbers")


def reply(kind: str, number: int, text: str = "same", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "prompt": f"{kind} {number}", "text": text, "tokens": 12, **more}


def batch(way: str, size: int, seconds: float, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "batch", "way": way, "size": size, "repeat": 1, "seconds": seconds,
             "responses": [reply(kind, n, **more) for n in range(size)]} for kind in KINDS]


def pair_rows() -> list[dict[str, Any]]:
    told = {"draft_forwards": 20, "translation_us": 300.5, "rejections": {"pending": 2, "special": 0}, "paused": True,
            "proposed_by": {"draft": 6, "text": 4}, "accepted_by": {"draft": 1, "text": 3}}
    spec = {"spec_verify_ct": 4, "spec_num_proposed_drafts": 10, "spec_num_correct_drafts": 4,
            "spec_correct_drafts_histogram": [1, 1, 0, 2]}
    return [*batch("plain", 1, 2.0), *batch("plain", 4, 4.0), *batch("ngram", 1, 1.0, **spec),
            *batch("ngram", 4, 5.0, **spec), *batch("uag small", 1, 0.5, text="other", uag=told, **spec),
            *batch("transformers plain", 1, 4.0), *batch("transformers assisted small", 1, 8.0, spec_verify_ct=6)]


@pytest.fixture
def args() -> argparse.Namespace:
    found = _parser().parse_args(["uag", "--draft", "a/small", "--draft", "b/large"])
    for name, value in uag.QUICK.items():
        setattr(found, name, value)
    return found


def test_acceptance_by_position() -> None:
    assert uag_page.by_position([1, 1, 0, 2]) == [0.75, 0.5, 0.5]
    assert uag_page.by_position([]) == []
    assert uag_page.by_position([0, 0]) == []
    assert uag_page.added([[1, 2], [1, 0, 3], ()]) == [2, 2, 3]


def test_reports_are_summed() -> None:
    told = uag_page.told([{"a": 1, "why": {"x": 2, "y": 1}, "on": True, "name": "n"}, {"a": 2.5, "why": {"x": 1}}])
    assert told == {"a": 3.5, "why.x": 3, "why.y": 1}


def test_figures_of_pairs() -> None:
    found = uag_page.numbers(pair_rows())
    assert found["plain"]["tokens_per_second"] == {1: 6.0, 4: 12.0}
    assert found["plain"]["accept_length"] is None
    assert found["plain"]["as_plain"] == 1
    assert found["ngram"]["accept_length"] == 3
    assert found["ngram"]["by_position"] == [0.75, 0.5, 0.5]
    assert found["uag small"]["as_plain"] == 0
    assert found["uag small"]["tokens_per_second_by_kind"] == {"chat": 24.0, "numbers": 24.0}
    assert found["uag small"]["acceptance_by_kind"] == {"chat": 0.4, "numbers": 0.4}
    assert found["plain"]["acceptance_by_kind"] == {"chat": None, "numbers": None}
    assert found["plain"]["round"] == {}
    assert found["ngram"]["round"] == {"milliseconds": 250.0}
    assert found["uag small"]["round"] == {"milliseconds": 125.0, "draft_forwards": 5, "translation_us": 75.125,
                                           "rejections.pending": 0.5, "rejections.special": 0,
                                           "proposed_by.draft": 1.5, "proposed_by.text": 1.0,
                                           "accepted_by.draft": 0.25, "accepted_by.text": 0.75}
    assert found["transformers assisted small"]["accept_length_by_kind"] == {"chat": 2, "numbers": 2}


def test_time_outside_the_forwards() -> None:
    told = {"draft_us": 20, "target_us": 100, "round_us": 130}
    rows = batch("uag small", 1, 0.5, uag=told, spec_verify_ct=4)
    assert uag_page.numbers(rows)["uag small"]["round"]["outside_share"] == pytest.approx(0.1)


def test_speed_is_compared_within_an_engine() -> None:
    made = uag_page.page(Record({"flags": {"new": 12, "draft_tokens": 4}}, pair_rows(), "complete"))
    sped = {way: values["speed_up"] for way, values in made.summary["ways"].items()}
    assert sped["plain"] == {}
    assert sped["ngram"] == pytest.approx({1: 2.0, 4: 0.8})
    assert sped["uag small"] == {1: 4.0}
    assert made.summary["ways"]["uag small"]["speed_up_by_kind"] == {"chat": 4.0, "numbers": 4.0}
    assert sped["transformers assisted small"] == {1: 0.5}
    over = {way: values["over_assisted"] for way, values in made.summary["ways"].items()}
    assert {way for way, of in over.items() if of} == {"uag small"}
    uag_speed, hf_speed = (made.summary["ways"][way]["tokens_per_second"][1]
                           for way in ("uag small", "transformers assisted small"))
    assert over["uag small"] == {1: uag_speed / hf_speed}
    assert [plot.name for plot in made.plots] == ["speed", "speed-up", "positions", "kinds", "speed-up-by-kind",
                                                     "causes"]
    sources = next(table for table in made.tables if "by source" in table.title)
    assert sources.rows == [["uag small, draft", "1 of 6", "1 of 6"], ["uag small, text", "3 of 4", "3 of 4"]]
    rounds = next(table for table in made.tables if "round" in table.title)
    assert ["translation_us", None, 75.125, None] in rounds.rows
    for plot in made.plots:
        plots.plt.close(plot.figure)


def test_each_pair_has_a_server(args: argparse.Namespace) -> None:
    flags = uag.plan(args)
    assert list(flags) == ["plain", "ngram", "uag-text", "uag small", "uag large", "uag-draft small", "uag-draft large",
                           "uag-fixed small", "uag-fixed large"]
    assert flags["uag-draft large"] == ["--speculative-algorithm", "UAG", "--speculative-draft-model-path", "b/large",
                                        "--speculative-num-draft-tokens", "8", "--uag-sources", "draft"]
    assert flags["uag-text"] == ["--speculative-algorithm", "UAG", "--uag-sources", "text",
                                 "--speculative-num-draft-tokens", "8"]


def test_no_prompt_comes_twice(args: argparse.Namespace) -> None:
    """NGRAM would know its response by heart."""
    prompts = uag._prompts(args, None)
    assert set(prompts) == {(size, repeat) for size in args.batches for repeat in (0, 1)}
    texts = Counter(text for load in prompts.values() for _, text in load)
    assert set(texts.values()) == {1}
    kinds = ("chat", "copying", "code", "numbers", "counting")
    for (size, repeat), load in prompts.items():
        (count,) = set(Counter(kind for kind, _ in load).values())
        assert set(kind for kind, _ in load) == set(kinds)
        assert count >= 4 or not repeat
        assert count % size == 0
    assert prompts == uag._prompts(args, None)


def test_who_ends_the_thinking() -> None:
    args = argparse.Namespace(extra_body={"top_p": 0.9}, max_tokens=64, budget_field="think_budget")
    task = Task([{"role": "user", "content": "a"}])
    inside = double_query.query_of(args, double_query.INSIDE, 16, task)
    outside = double_query.query_of(args, double_query.OUTSIDE, 16, task)
    assert (inside.think_budget, outside.think_budget) == (-1, 16)
    assert inside.params == {"temperature": 0, "top_p": 0.9}
    assert inside.body == {"custom_labels": {"think_budget": "16"}}, "what a router passes on"
    assert (outside.params, outside.body) == (inside.params, {})
    args.budget_field = "thinking_token_budget"
    assert double_query.query_of(args, double_query.INSIDE, 16, task).params["thinking_token_budget"] == 16


def test_figures_of_two_calls() -> None:
    row = {"ttft": 0.1, "answer_ttft": 0.5, "latency": 1.0, "calls": 2, "cached_tokens": 50, "empty": False,
           "right": True}
    got = double_query.numbers([row, {**row, "calls": 1, "cached_tokens": None, "latency": 3.0, "right": False},
                                {"error": "500"}], 2.0)
    assert (got["requests"], got["failed"], got["requests_per_second"]) == (3, 1, 1.0)
    assert (got["calls"], got["cached_tokens"], got["right"], got["latency_p50"]) == (1.5, 50, 0.5, 2.0)


def test_a_peer_is_compared_with_itself(tmp_path: Path) -> None:
    usage = {"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 9}}
    with peer(lambda body: (200, [{"usage": usage}])) as server:
        argv = ["overhead", "--url", server.url, "--budget-field", "thinking_token_budget", "--batch", "2",
                "--new", "30", "--budget", "9", "--rounds", "2", "--repeats", "1", "--out", str(tmp_path / "out")]
        assert main(argv) == 0
    budgets = [body.get("thinking_token_budget") for body in server.bodies]
    assert budgets == [None, None, 9, 9] * 4  # two rounds, each with a load that warms up
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["kinds"]
    assert found["peer"]["ratio"] is None
    assert found["peer, budget"]["ratio"]["rounds"] == 2
    assert found["peer, budget"]["thought_most"] == 9


def test_a_budget_that_is_not_exact_ends_the_run(tmp_path: Path) -> None:
    args = _parser().parse_args(["overhead", "--budget", "9", "--new", "30", "--rounds", "1", "--repeats", "1"])
    run = Run.create(tmp_path, "overhead", [], {})
    usage = {"completion_tokens": 30, "think": {"tokens": 8}}
    with (peer(lambda body: (200, [{"usage": usage}])) as server,
          pytest.raises(BenchError, match=r"ours: every response should think for 9 tokens; they did for \[8\]")):
        overhead._turns(args, run, 0, server.url, {"ours": {}}, [{}, {}], tqdm(disable=True))
    assert not read(tmp_path).of("speed")


@pytest.mark.parametrize(("on_cpu", "markers", "asked", "expected"), [
    (False, Markers(3, 4, 5), None, ["plugin", "ours", "processor", "strict"]),
    (True, Markers(3, 4, 5), None, ["plugin", "ours", "processor"]),
    (False, None, None, ["plugin", "ours"]),
    (True, Markers(3, 4, 5), ["ours"], ["ours"]),
])
def test_kinds_that_can_be_had(on_cpu: bool, markers: Markers | None, asked: list[str] | None, expected: list[str],
                               demo_model: Any) -> None:
    assert overhead._kinds(asked, Served(demo_model, "m", [], on_cpu), markers) == expected


def test_kinds_that_cannot_be_had_are_said(demo_model: Any) -> None:
    with pytest.raises(BenchError, match=r"--kinds: strict .* CPU path; accepted here: plugin,ours,processor"):
        overhead._kinds(["strict"], Served(demo_model, "m", [], True), Markers(3, 4, 5))
    with pytest.raises(BenchError, match=r"--kinds: processor .* not one token each"):
        overhead._kinds(["processor"], Served(demo_model, "m", [], False), None)
