"""What the benchmark makes of its rows: figures, plots that can be read, a file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench import BenchError, accuracy, budget, cut, overhead, plots
from sglang_ext.bench.__main__ import main
from sglang_ext.bench.record import RESULTS, Record, Run, read
from sglang_ext.bench.report import Page, wilson, write

GREYS_APART = 0.15
"""Least difference in grey, from 0 to 1, of two fills that stand beside each other."""


def response(point: str, number: int, **more: Any) -> dict[str, Any]:
    limit = -1 if point in ("no limit", "tenants") else int(point)
    thought = 50 if limit < 0 else min(50, limit)
    return {"type": "response", "point": point, "budget": limit, "tenant": "", "kind": "sum", "start_time": 0.0,
            "ttft": 0.1, "answer_ttft": 0.01 * number + thought / 100, "latency": 0.01 * number + thought / 50,
            "prompt_len": 9, "output_len": thought + 4, "answer_len": 4, "thought": thought, "forced": 2,
            "outcome": "natural" if thought == 50 else "forced", "source": "server", "finish": "stop", "empty": False,
            "marker": False, "answer": "3", "right": number % 2 == 0, **more}


def budget_rows() -> list[dict[str, Any]]:
    points = ("0", "16", "32", "no limit")
    rows = [response(point, n) for point in points for n in range(10)]
    rows += [response("tenants", n, tenant=t, budget=b) for t, b in (("free", 16), ("pro", -1)) for n in range(4)]
    return rows + [{"type": "load", "point": point, "seconds": 2.0, "requests": 10} for point in (*points, "tenants")]


def accuracy_rows() -> list[dict[str, Any]]:
    rows = [{"type": "answer", "budget": b, "kind": kind, "thought": b, "right": n * 10 < b}
            for b in (0, 16, 64) for kind in ("sum", "chain", "largest") for n in range(10)]
    return [{"type": "chance", "share": 0.02}, *rows]


def overhead_rows() -> list[dict[str, Any]]:
    speeds = {"nothing": (100, 110), "plugin": (99, 111), "ours": (98, 107.8), "processor": (90, 88)}
    return [{"type": "speed", "kind": kind, "round": n, "repeat": 1, "seconds": 1.0, "tokens": by_round[n],
             "thought": [8, 8]} for kind, by_round in speeds.items() for n in (0, 1)]


def cut_rows() -> list[dict[str, Any]]:
    told = {"seconds": 2.0, "gap_p50": 0.01, "gap_p99": 0.02, "step": 0.01, "cuts": 8, "at_once": 8, "end_steps": 1.0,
            "errors": {}}
    speeds = {"one forward": (105.0, 99.0), "token by token": (100.0, 100.0)}
    models = ("reasoner", "smollm2-135m-instruct")
    rows = [{"model": m, "batch": n, "kind": "mix", "of": mix, "way": way, "round": r + 1, "answers": [0.3],
             "tokens_per_second": speed, **told} for m in models for n in (1, 16, 64) for mix in cut.MIXES
            for way, by_round in speeds.items() for r, speed in enumerate(by_round)]
    times = {"one forward": 0.12, "token by token": 0.36, "no message": 0.1}
    rows += [{"model": m, "batch": n, "kind": "answer", "of": b, "way": way, "round": 1, "answers": [time * n] * 8,
              "tokens_per_second": None, **told} for m in models for n in (1, 16, 64) for b in (0, 16, 32)
             for way, time in times.items()]
    return [{"type": "load", **row} for row in rows]


ROWS: dict[str, tuple[Any, Callable[[], list[dict[str, Any]]], dict[str, Any]]] = {
    "budget": (budget, budget_rows, {"tenants": {"free": 16, "pro": -1}}),
    "accuracy": (accuracy, accuracy_rows, {}),
    "cut": (cut, cut_rows, {}),
    "overhead": (overhead, overhead_rows, {"batch": 16, "new": 64, "budget": 8}),
}


def folder_of(path: Path, command: str, rows: list[dict[str, Any]], state: str | None = "complete") -> Path:
    """A run's folder with rows as a command would have written them."""
    run = Run.create(path / command, command, [command, "--quick"], ROWS[command][2])
    for row in rows:
        run.add(**row)
    if state:
        run.add("end", state=state)
    return path / command


@pytest.fixture(params=list(ROWS))
def command(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(command: str, tmp_path: Path) -> Iterator[Page]:
    module, rows, _ = ROWS[command]
    made = module.page(read(folder_of(tmp_path, command, rows())))
    yield made
    for plot in made.plots:
        plots.plt.close(plot.figure)


def test_a_report_needs_nothing_but_itself(command: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, command, ROWS[command][1]())
    assert main(["report", str(folder)]) == 0
    html = (folder / "report.html").read_text()
    assert html.count("data:image/svg+xml;base64,") == len(list(folder.glob("*.png"))) >= 3
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|<script|url\(""", html)
    assert "not complete" not in html
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["argv"] == f"python -m sglang_ext.bench {command} --quick"
    assert summary["hardware"]["cores"] > 0
    assert summary["versions"]["sglang"]


def test_labels_are_whole_and_apart(page: Page) -> None:
    for plot in page.plots:
        check_labels(plot.figure)


def test_many_and_long_labels_are_turned() -> None:
    figure, (axes,) = plots.panels()
    names = [f"a rather long name {n}" for n in range(8)]
    plots.bars(axes, {"some": [1.0] * 8, "others": [2.0] * 8})
    plots.label(axes, "kind", "tokens", names)
    plots.legend(figure, axes)
    figure.canvas.draw()
    assert {text.get_rotation() for text in axes.get_xticklabels()} == {30}
    assert all(text.get_window_extent().x0 >= 0 for text in axes.get_xticklabels())
    plots.plt.close(figure)


def test_a_legend_of_long_names_takes_more_rows() -> None:
    figure, (axes,) = plots.panels()
    plots.bars(axes, {f"transformers assisted by draft {n}": [1.0] for n in range(5)})
    plots.label(axes, "kind", "times no speculation", ["chat"])
    plots.legend(figure, axes, 3)
    check_labels(figure)
    plots.plt.close(figure)


def check_labels(figure: Any) -> None:
    """No text is cut by the figure's edge or lies on another."""
    figure.canvas.draw()
    whole, boxes = figure.bbox, []
    for axes in figure.axes:
        texts = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label]
        boxes += [t.get_window_extent() for t in texts if t.get_text() and _on_axis(t, axes)]
    boxes += [text.get_window_extent() for legend in figure.legends for text in legend.get_texts()]
    for box in boxes:
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= whole.x1 + 1
        assert box.y1 <= whole.y1 + 1
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.shrunk(0.9, 0.9).overlaps(b.shrunk(0.9, 0.9))]


def _on_axis(text: Any, axes: Any) -> bool:
    """Ticks beyond the ends of an axis have a label, but are not drawn."""
    x, y = text.get_position()
    if text in axes.get_xticklabels():
        low, high = sorted(axes.get_xlim())
        return bool(low <= x <= high)
    if text in axes.get_yticklabels():
        low, high = sorted(axes.get_ylim())
        return bool(low <= y <= high)
    return True


def test_series_differ_by_more_than_colour(page: Page) -> None:
    for plot in page.plots:
        for axes in plot.figure.axes:
            lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
            looks = [(line.get_marker(), str(line.get_linestyle())) for line in lines]
            assert len(set(looks)) == len(looks), plot.name
            hatches = [bars[0].get_hatch() for bars in axes.containers
                       if len(bars) and hasattr(bars[0], "get_hatch")]
            assert len(set(hatches)) == len(hatches), plot.name


def test_neighbouring_colours_differ_in_grey() -> None:
    grey = [sum(part * int(colour[i : i + 2], 16) / 255 for part, i in ((0.299, 1), (0.587, 3), (0.114, 5)))
            for colour in plots.COLOURS]
    assert all(abs(a - b) > GREYS_APART for a, b in pairwise(grey)), grey


def test_half_a_run_is_reported(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "budget", budget_rows()[:15], state=None)
    with (folder / RESULTS).open("a") as file:
        file.write('{"type": "response", "poi')
    assert read(folder).state == "unfinished"
    assert main(["report", str(folder)]) == 0
    assert "not complete (unfinished)" in (folder / "report.html").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert {name: point["requests"] for name, point in summary["points"].items()} == {"0": 10, "16": 5}
    assert summary["points"]["16"]["requests_per_second"] is None


def test_a_run_without_rows_is_reported(command: str, tmp_path: Path) -> None:
    assert main(["report", str(folder_of(tmp_path, command, [], "interrupted"))]) == 0


def test_figures_of_a_sweep() -> None:
    rows = [response("16", n) for n in range(4)]
    rows[1] |= {"empty": True, "outcome": "open", "right": False}
    rows.append({"point": "16", "budget": 16, "tenant": "", "kind": "sum", "start_time": 0.0, "error": "500: broken"})
    got = budget.numbers(rows, 2.0, 4)
    assert (got["requests"], got["failed"], got["empty"]) == (5, 1, 1)
    assert got["requests_per_second"] == 2.0
    assert got["tokens_per_second"] == 40.0
    assert got["outcomes"] == {"forced": 3, "open": 1}
    assert got["right"] == 0.5
    assert got["latency_p50"] == pytest.approx(0.335)
    assert got["latency_p99"] == pytest.approx(0.3497)
    assert got["thought_p100"] == 16


@pytest.mark.parametrize(("more", "longest", "escaped"), [
    ({}, 4, False), ({"marker": True}, 4, True), ({"finish": "length"}, 4, True), ({"answer_len": 12}, 4, False),
    ({"answer_len": 13}, 4, True), ({"answer_len": 13}, None, False),
    ({"answer_len": 13, "outcome": "grace"}, 4, True), ({"marker": True, "outcome": "natural"}, 4, False)])
def test_escapes(more: dict[str, Any], longest: int | None, escaped: bool) -> None:
    assert budget.escaped(response("16", 0, **more), longest) is escaped


def test_the_longest_answer_is_one_that_ended() -> None:
    rows = [response("no limit", 0, answer_len=5), response("no limit", 0, answer_len=90, finish="length"),
            response("16", 0, answer_len=80)]
    assert budget.longest_answer(rows) == 5
    assert budget.longest_answer(rows[1:]) is None


def test_ratios_are_taken_within_a_round() -> None:
    found = overhead.numbers(overhead_rows())
    assert found["nothing"]["ratio"] is None
    assert found["ours"]["ratio"] == {"median": pytest.approx(0.98), "least": pytest.approx(0.98),
                                      "most": pytest.approx(0.98), "rounds": 2}
    assert found["processor"]["ratio"]["least"] == pytest.approx(0.8)
    assert found["processor"]["ratio"]["most"] == pytest.approx(0.9)


def test_wilson() -> None:
    """8 of 10, as in Wilson's interval by hand: (0.4902, 0.9433)."""
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert wilson(0, 10)[0] == 0
    assert wilson(0, 0) == (0, 1)


def test_shares_leave_failed_requests_out() -> None:
    got = accuracy.share([{"right": True}, {"right": False}, {"error": "500"}])
    assert (got["right"], got["of"], got["share"]) == (1, 2, 0.5)


def test_a_folder_with_results_is_not_written_over(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "budget", [])
    with pytest.raises(BenchError, match="--out"):
        Run.create(folder, "budget", [], {})


@pytest.mark.parametrize("text", ["", '{"type": "response"}\n', "{\n{}\n"])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULTS).write_text(text)
    with pytest.raises(BenchError, match=RESULTS):
        read(tmp_path)


def test_values_are_escaped(tmp_path: Path) -> None:
    record = Record({"argv": "<b>", "date": "", "flags": {}, "versions": {}, "hardware": {
        "processor": "", "cores": 1, "memory_gib": 1, "gpus": [], "system": ""}}, state="complete")
    html = write(tmp_path, record, Page("a <script> title", "")).read_text()
    assert "<script>" not in html
    assert "&lt;b&gt;" in html
