"""A benchmark that claims a budget in the server fails where the responses do not say that it was in force.

Published figures once said that a budget was enforced through a router that had dropped it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_peer import delta, peer, stop

from sglang_ext.bench import BenchError
from sglang_ext.bench.__main__ import main
from sglang_ext.bench.in_force import demand, why_not
from sglang_ext.bench.load import Ask, Target, run
from sglang_ext.bench.workload import Task

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
KEPT = {"budget": 8, "tokens": 8, "forced_tokens": 4, "outcome": "forced"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 12}


def files() -> list[Path]:
    return sorted(RESULTS.rglob("*.jsonl"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_published_row_with_a_budget_had_it_in_force(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lost = [problem for row in rows if (problem := why_not(row)) is not None]
    assert not lost, f"{len(lost)} rows: {lost[0]}"


def test_the_published_rows_that_claim_a_budget_are_looked_at() -> None:
    """The check above looks at hundreds of rows: each of them is found out once it loses its report."""
    found = 0
    for path in files():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            row.pop("think", None)
            found += why_not({**row, "source": "usage"}) is not None
    assert found > 500


@pytest.mark.parametrize("think", [None, {}, {**KEPT, "budget": -1}, {**KEPT, "budget": 9}, {**KEPT, "tokens": 9},
                                   {"tokens": 16, "choices": [KEPT, KEPT]}], ids=str)
def test_a_response_that_does_not_say_so(think: dict[str, Any] | None) -> None:
    with pytest.raises(BenchError, match="budget of 8 was in force"):
        demand(8, think)
    assert why_not({"type": "query", "way": "in the server, router", "budget": 8, "think": think})
    assert why_not({"type": "query", "way": "two calls, router", "budget": 8}) is None


def test_a_response_that_says_so() -> None:
    """A reserve for the answer may have made the limit smaller."""
    for think in (KEPT, {**KEPT, "budget": 5, "tokens": 5}, {**KEPT, "tokens": 0, "outcome": "none"}):
        demand(8, think)
        assert why_not({"type": "query", "way": "in the server, direct", "budget": 8, "think": think}) is None
    demand(-1, None)


def answer(usage: dict[str, Any]) -> Any:
    return lambda body: (200, [delta(content="3"), stop(), {"choices": [], "usage": usage}])


def test_a_load_ends_at_once() -> None:
    task = Task([{"role": "user", "content": "Add 1, 2."}], "sum", "3")
    with peer(answer(USAGE)) as server, pytest.raises(BenchError, match="budget of 8 was in force"):
        run(Target(server.url, "m"), [Ask(task, 8)] * 3, concurrency=2)
    with peer(answer({**USAGE, "think": KEPT})) as server:
        rows: list[dict[str, Any]] = []
        run(Target(server.url, "m"), [Ask(task, 8)], concurrency=2, keep=rows.append)
    assert [row["source"] for row in rows] == ["server"]


def test_a_run_that_lost_its_budget_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with peer(answer(USAGE)) as server:
        argv = ["accuracy", "--url", server.url, "--quick", "--budgets", "8", "--out", str(tmp_path / "out")]
        assert main(argv) == 1
    assert "was in force" in capsys.readouterr().err
