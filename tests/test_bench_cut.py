"""`bench cut`: what it sends, and what it makes of the pieces of a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_peer import delta, peer, stop

from sglang_ext.bench import cut, cut_page
from sglang_ext.bench.__main__ import main
from sglang_ext.bench.cut_page import BARE, ONE, STEPS, Load, end_steps, gaps, speed
from sglang_ext.bench.options import UNLIMITED
from sglang_ext.bench.record import Record
from sglang_ext.bench.workload import thoughtful


def row(start: float, pieces: list[tuple[float, int]], budget: int = UNLIMITED, **more: Any) -> dict[str, Any]:
    return {"budget": budget, "start_time": start, "pieces": pieces, "forced": 0, "thought": 0, "answer_ttft": None,
            "output_len": pieces[-1][1], **more}


FREE = row(0.0, [(1.0, 1), (2.0, 2), (4.0, 3), (4.5, 5)])
AT_ONCE = row(0.0, [(1.5, 1), (2.5, 2), (3.5, 12), (4.5, 13)], 2, forced=10, thought=2, answer_ttft=3.5)
STEPWISE = row(3.0, [(3.5 + n, 1 + n) for n in range(14)], 2, forced=10, thought=2, answer_ttft=12.5)


def test_figures_of_a_load() -> None:
    """Only pieces of one token tell a step, and only requests without a budget are neighbours."""
    assert list(gaps(FREE)) == [1.0, 2.0]
    assert [end_steps(AT_ONCE), end_steps(STEPWISE)] == [1, 10]
    found = Load.of([FREE, AT_ONCE, STEPWISE, {"error": "500: no", "budget": 2}], 2, 20.0)
    assert (found.cuts, found.at_once, found.answers) == (2, 1, [3.5, 12.5])
    assert (found.step, found.gap_p50, found.gap_p99) == (1.0, 1.5, pytest.approx(1.99))
    assert found.errors == {"500: no": 1}
    assert found.end_steps == 5.5


def test_speed_is_that_of_the_time_in_which_all_places_are_taken() -> None:
    """From 1.5, when two have begun, to 3.0, when the third is sent: one token of each."""
    assert speed([FREE, AT_ONCE, STEPWISE], 2) == pytest.approx(2 / 1.5)
    assert speed([FREE, AT_ONCE], 2) is None


def test_ratios_are_taken_within_a_round() -> None:
    told = {"gap_p50": None, "gap_p99": None, "cuts": 1, "at_once": 1, "answers": [0.5]}
    loads = [{"way": way, "round": n, "tokens_per_second": rate, **told} for way, n, rate in (
        (ONE, 1, 110.0), (STEPS, 1, 100.0), (STEPS, 2, 50.0), (ONE, 2, 60.0), (ONE, 3, 7.0))]
    assert cut_page.mix_figures(loads)["ratio"] == {"median": pytest.approx(1.15), "least": pytest.approx(1.1),
                                                    "most": pytest.approx(1.2), "rounds": 2}


def test_an_answer_is_late_by_steps() -> None:
    loads = [{"way": way, "answers": [seconds], "step": 0.02, "end_steps": None}
             for way, seconds in ((ONE, 0.5), (BARE, 0.46), (STEPS, 1.0))]
    assert cut_page.answer_figures(loads)["steps_more"] == pytest.approx(2.0)


@pytest.mark.parametrize("share", cut.MIXES.values())
def test_a_mix_has_lengths_and_budgets_of_all_kinds(share: int) -> None:
    asks = list(cut.mixed(thoughtful(64, "x"), share, 0))
    assert sum(ask.budget != UNLIMITED for ask in asks) == 64 // share
    assert len({ask.max_tokens for ask in asks}) > 20
    assert asks == list(cut.mixed(thoughtful(64, "x"), share, 0))


def test_the_ways_differ_by_what_they_should_alone(tmp_path: Path) -> None:
    """Every kind of load is sent once to warm up. Token by token asks for experts, no message says so."""
    def answer(body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        if "messages" not in body:
            return 200, [{}]
        budget = json.loads(body["metadata"]["think_budget"])
        limit = budget["max_tokens"] if isinstance(budget, dict) else budget
        think = {"budget": limit, "tokens": min(limit, 2), "forced_tokens": 9, "outcome": "forced"}
        usage = {"prompt_tokens": 1, "completion_tokens": 12, "total_tokens": 13, "think": think}
        return 200, [{**delta(reasoning_content="a"), "usage": {"completion_tokens": 1}}, delta(content="3"), stop(),
                     {"choices": [], "usage": usage}]

    with peer(answer) as server:
        out = tmp_path / "out"
        assert main(["cut", "--url", server.url, "--batches", "2", "--budgets", "4", "--rounds", "1", "--waves", "2",
                     "--out", str(out)]) == 0
    loads = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [(x["kind"], x["of"], x["way"]) for x in loads if x["type"] == "load"] == [
        ("answer", 4, ONE), ("answer", 4, STEPS), ("answer", 4, BARE),
        *(("mix", mix, way) for mix in cut.MIXES for way in (ONE, STEPS))]
    sent = [body for body in server.bodies if "messages" in body]
    assert all(body["stream_options"]["continuous_usage_stats"] for body in sent)
    ways = {(body["metadata"]["think_budget"], body.get("return_routed_experts"), body.get("ignore_eos"))
            for body in sent}
    assert {(limit, experts) for limit, experts, long in ways if not long} == {
        ("4", None), ("4", True), ('{"max_tokens": 4, "message": ""}', None)}
    assert {experts for _, experts, long in ways if long} == {None, True}


def test_nothing_measured_is_a_report_too() -> None:
    assert cut.page(Record({"flags": {}}, [], "failed")).tables == []
