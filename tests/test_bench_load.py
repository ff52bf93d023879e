"""The benchmark's client: what it sends, when tokens came, and what it makes of servers that tell little."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bench_peer import delta, peer, stop

from sglang_ext.bench import BenchError
from sglang_ext.bench.load import Ask, Row, Target, run
from sglang_ext.bench.options import UNLIMITED
from sglang_ext.bench.stream import Stream
from sglang_ext.bench.workload import CHECKS, Task, from_file, thoughtful

TASK = Task([{"role": "user", "content": "Add 1, 2."}], "sum", "3")
USAGE = {"prompt_tokens": 9, "completion_tokens": 12}


def load(target: Target, asks: list[Ask], **more: Any) -> list[Row]:
    rows: list[Row] = []
    run(target, asks, concurrency=more.pop("concurrency", 4), keep=rows.append, **more)
    return rows


def fed(*chunks: Any, budget: int = 8) -> Row:
    """The row of chunks that come a second apart."""
    stream = Stream()
    for second, chunk in enumerate(chunks, 1):
        stream.feed(b"data: " + json.dumps(chunk).encode() + b"\n", second)
    return stream.row(budget, len(chunks))


def test_times_of_thinking_and_answer() -> None:
    row = fed({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, delta(reasoning_content="1"),
              delta(reasoning_content="+2"), delta(content="\n\n"), delta(content="3"), stop(),
              {"choices": [], "usage": USAGE | {"completion_tokens_details": {"reasoning_tokens": 9},
                                                "think": {"budget": 8, "tokens": 6, "forced_tokens": 3,
                                                          "outcome": "forced"}}})
    assert (row["ttft"], row["answer_ttft"], row["latency"]) == (2, 5, 7)
    assert (row["thought"], row["forced"], row["outcome"], row["source"]) == (6, 3, "forced", "server")
    assert (row["output_len"], row["answer_len"], row["finish"]) == (12, 3, "stop")
    assert not row["empty"]
    assert not row["marker"]


@pytest.mark.parametrize(("reasoning", "budget", "outcome"), [(8, 8, "forced"), (7, 8, "natural"),
                                                              (9, UNLIMITED, "natural"), (0, 8, "none")])
def test_an_outcome_that_is_not_told_is_concluded(reasoning: int, budget: int, outcome: str) -> None:
    """A server that counts its thinking, and calls it what vLLM does."""
    thought = [delta(reasoning="hm")] if reasoning else []
    row = fed(*thought, delta(content="3"), stop(),
              {"choices": [], "usage": USAGE | {"completion_tokens_details": {"reasoning_tokens": reasoning}}},
              budget=budget)
    assert (row["outcome"], row["thought"], row["source"]) == (outcome, reasoning, "usage")
    assert row["forced"] is None


def test_a_server_that_counts_nothing_is_counted_by_pieces() -> None:
    row = fed(*[delta(reasoning_content="a")] * 5, stop("length"))
    assert (row["thought"], row["source"], row["outcome"], row["output_len"]) == (5, "chunks", "open", 5)
    assert row["empty"]
    assert row["answer_ttft"] is None


def test_zero_reasoning_tokens_are_not_believed_where_thinking_was_seen() -> None:
    row = fed(delta(reasoning_content="a"), delta(content="3"), stop(),
              {"choices": [], "usage": USAGE | {"completion_tokens_details": {"reasoning_tokens": 0}}})
    assert (row["thought"], row["source"]) == (1, "chunks")


def test_a_marker_in_the_answer_is_seen() -> None:
    assert fed(delta(content="so </th"), delta(content="ink> 3"), stop())["marker"]


def test_a_budget_is_spelled_as_the_server_does() -> None:
    with peer(lambda body: (200, [delta(content="3"), stop(), b"[DONE]"])) as server:
        field = "chat_template_kwargs.thinking_budget"
        target = Target(server.url, "m", field, extra={"chat_template_kwargs": {"a": 1}, "top_p": 0.5},
                        headers={"Authorization": "Bearer key"})
        load(target, [Ask(TASK, 7), Ask(TASK, UNLIMITED)], concurrency=1)
        load(Target(server.url, "m"), [Ask(TASK, UNLIMITED)])
    limited, free, ours = server.bodies
    assert limited["chat_template_kwargs"] == {"a": 1, "thinking_budget": 7}
    assert limited["top_p"] == 0.5
    assert free["chat_template_kwargs"] == {"a": 1}
    assert ours["metadata"] == {"think_budget": "-1"}
    assert server.headers[0]["Authorization"] == "Bearer key"


def test_rows_know_their_request_and_failures_are_rows() -> None:
    def answer(body: dict[str, Any]) -> Any:
        if body["metadata"]["think_budget"] == "5":
            return 400, [{"error": {"message": "no such budget"}}]
        if body["metadata"]["think_budget"] == "6":
            return 200, [delta(content="x"), {"error": {"message": "out of memory"}}]
        think = {"budget": 4, "tokens": 0, "forced_tokens": 0, "outcome": "none"}
        return 200, [delta(content=" 3 "), stop(), {"choices": [], "usage": USAGE | {"think": think}}]

    with peer(answer) as server:
        rows = load(Target(server.url, "m"), [Ask(TASK, b, f"tenant {b}") for b in (4, 5, 6)])
    by_budget = {row["budget"]: row for row in rows}
    assert by_budget[4]["right"] is True
    assert by_budget[4]["tenant"] == "tenant 4"
    assert "400" in by_budget[5]["error"]
    assert "no such budget" in by_budget[5]["error"]
    assert "out of memory" in by_budget[6]["error"]
    assert "right" not in by_budget[6]


def test_concurrency_is_kept() -> None:
    together = threading.Barrier(3, timeout=60)

    def answer(body: dict[str, Any]) -> Any:
        together.wait()
        return 200, [delta(content="3"), stop()]

    with peer(answer) as server:
        assert not any("error" in row for row in load(Target(server.url, "m"), [Ask(TASK)] * 12, concurrency=3))
        assert server.most == 3


def test_a_rate_spaces_requests() -> None:
    with peer(lambda body: (200, [delta(content="3"), stop()])) as server:
        rows = load(Target(server.url, "m"), [Ask(TASK)] * 6, concurrency=6, rate=20.0, seed=5)
    rng = Random(5)
    gaps = [rng.expovariate(20.0) for _ in range(6)]
    starts = sorted(row["start_time"] for row in rows)
    for i, start in enumerate(starts):
        assert start >= sum(gaps[:i])


def test_what_is_asked_is_the_same_for_a_seed() -> None:
    assert thoughtful(20, "a") == thoughtful(20, "a")
    assert thoughtful(20, "a") != thoughtful(20, "b")


def test_a_file_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}], "answer": "1"}\n\n'
                    '{"messages": [{"role": "user", "content": "b"}], "kind": "k"}\n')
    tasks = from_file(path, 3)
    assert [(t.messages[0]["content"], t.kind, t.answer) for t in tasks] == [
        ("a", "task", "1"), ("b", "k", None), ("a", "task", "1")]
    assert len(from_file(path)) == 2
    path.write_text('{"messages": []}\n{"prompt": "x"}\n')
    with pytest.raises(BenchError, match="line 2"):
        from_file(path)
    path.write_text("")
    with pytest.raises(BenchError, match="no line"):
        from_file(path)


@pytest.mark.parametrize(("how", "text", "answer", "right"), [
    ("exact", "287", "287", True), ("exact", "It is 287.", "287", False),
    ("number", "It is 287.", "287", True), ("number", "287, not 12", "287", False), ("number", "1,287", "1287", True),
    ("number", "none", "287", False), ("contains", "blue sky", "blue", True)])
def test_answers_are_checked(how: str, text: str, answer: str, right: bool) -> None:
    assert CHECKS[how](text, answer) is right
