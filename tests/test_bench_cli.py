"""The benchmark's command line: what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
import servers
from bench_peer import delta, peer, stop

from sglang_ext.bench import models
from sglang_ext.bench.__main__ import main
from sglang_ext.bench.servers import undisturbed
from sglang_ext.budget.spelling import read
from sglang_ext.demo.reasoner import reasoner

SECONDS = 240


@pytest.mark.parametrize(("argv", "expected"), [
    (["budget", "--concurrency", "0"], ["--concurrency", "0 is out of range", "from 1 up"]),
    (["budget", "--requests", "many"], ["--requests", "'many' is not an integer"]),
    (["budget", "--budgets", "1,-2"], ["--budgets", "-2 is out of range", "from -1"]),
    (["budget", "--budgets", "8,8"], ["--budgets", "'8,8'", "each value once"]),
    (["budget", "--request-rate", "-1"], ["--request-rate", "'-1'", "above 0"]),
    (["budget", "--request-rate", "inf"], ["--request-rate", "'inf'", "above 0"]),
    (["budget", "--tenants", "a=1,a=2"], ["--tenants", "a=1,a=2", "each name once"]),
    (["budget", "--tenants", "a"], ["--tenants", "'a'", "NAME=BUDGET"]),
    (["budget", "--url", "localhost"], ["--url", "'localhost'", "http://"]),
    (["budget", "--dataset", "/no/such"], ["--dataset", "/no/such", "file"]),
    (["budget", "--extra-body", "[1]"], ["--extra-body", "[1]", "JSON object"]),
    (["accuracy", "--each", "2"], ["--each", "2 is out of range", "from 3 up"]),
    (["overhead", "--kinds", "ours,theirs"], ["--kinds", "'theirs'", "strict"]),
    (["double-query", "--places", "here"], ["--places", "'here'", "router"]),
    (["uag", "--draft-tokens", "1"], ["--draft-tokens", "1 is out of range", "from 2 up"]),
    (["sweep"], ["sweep", "budget"]),
])
def test_bad_flags_name_flag_value_and_range(argv: list[str], expected: list[str],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(part in said for part in expected), said


@pytest.mark.parametrize(("argv", "expected"), [
    (["overhead", "--budget", "64", "--new", "64"], ["--budget", "64", "1 to 63"]),
    (["uag"], ["--draft", "none", "plain,ngram,uag-text"]),
    (["uag", "--draft", "/no/such"], ["--draft", "/no/such", "config.json"]),
    (["double-query", "--url", "http://127.0.0.1:9"], ["--tokenizer", "--url"]),
])
def test_values_that_do_not_go_together_leave_no_run(argv: list[str], expected: list[str], tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(part in line for part in expected), line
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in ("--url", "http://127.0.0.1:9", "/v1/models"))
    assert "not complete (failed)" in (tmp_path / "out" / "report.html").read_text()


def test_a_report_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_key_is_sent_but_not_written(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        ((_, budget),) = read(body).budgets
        think = {"budget": budget, "tokens": 0, "forced_tokens": 0, "outcome": "none"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "think": think}
        return 200, [delta(content="3"), stop(), {"choices": [], "usage": usage}]

    with peer(answer) as server:
        argv = ["budget", "--url", server.url, "--api-key", "sesame", "--budgets", "4", "--requests", "3",
                "--concurrency", "2", "--out", str(tmp_path / "out")]
        assert main(argv) == 0
    assert all(headers["Authorization"] == "Bearer sesame" for headers in server.headers)
    assert {body["model"] for body in server.bodies} == {"told"}
    for path in (tmp_path / "out").iterdir():
        assert b"sesame" not in path.read_bytes(), path


@pytest.mark.parametrize("command", ["budget", "accuracy"])
def test_a_server_that_refuses_every_request_ends_the_run(command: str, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    with peer(lambda body: (400, [{"error": f"no field {sorted(body)[0]}"}])) as server:
        argv = [command, "--url", server.url, "--budget-field", "a_budget", "--budgets", "4,-1", "--concurrency", "2"]
        assert main([*argv, "--out", str(tmp_path / "out")]) == 1
    assert "no request was answered: 400" in capsys.readouterr().err
    assert [body.get("a_budget") for body in server.bodies] == [4, 4]


def test_ids_of_markers_are_those_of_the_model(demo_model: Path) -> None:
    found = models.markers_of(reasoner())
    assert found is not None
    assert (found.start, found.end) == (3, 4)
    assert models.markers_of(demo_model) is None


def test_signals_wait_for_the_end_of_a_start() -> None:
    seen: list[str] = []

    def start() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            seen.append("went on")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert seen == ["went on"]


def test_a_peer_is_measured_in_its_own_spelling(scripted_server: servers.Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["budget", "--url", scripted_server.url, "--budget-field", "thinking_token_budget", "--budgets", "2,-1",
            "--requests", "4", "--concurrency", "2", "--max-tokens", "24", "--out", str(out)]
    assert main(argv) == 0
    summary = json.loads((out / "summary.json").read_text())
    limited, free = summary["points"]["2"], summary["points"]["no limit"]
    assert limited["failed"] == free["failed"] == 0
    assert limited["thought_p100"] <= 2
    assert summary["servers"][0]["facts"]["version"] == version("sglang")


@pytest.mark.served
def test_an_interrupt_leaves_no_server_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """SIGTERM takes the way of Ctrl-C, even where a shell that put the run in the background has that ignored."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sglang_ext.bench", "budget", "--requests", "4000", "--concurrency", "4",
               "--budgets", "8,16", "--out", str(out)]
    process = subprocess.Popen(command, cwd=servers.ROOT, env=servers.environment(), stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    try:
        children = wait_for_rows(process, out / "results.jsonl", 5)
        process.terminate()
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert len(children) >= 3
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert "Traceback" not in said
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert lines[-1] == {"type": "end", "state": "interrupted"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["points"]["8"]["requests"] == sum(line["type"] == "response" for line in lines) >= 5
    assert "not complete (interrupted)" in (out / "report.html").read_text()


def wait_for_rows(process: subprocess.Popen[str], path: Path, rows: int) -> list[psutil.Process]:
    """All descendants of a benchmark, once it has measured that many responses."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_text().count('"response"') >= rows:
            return psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.2)
    raise AssertionError("the benchmark did not measure anything")
