"""The checker of `bench churn`, on answers made by hand: right ones pass, and each kind of wrong one is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_peer import peer

from sglang_ext.bench.__main__ import main
from sglang_ext.bench.churn.answers import Answer, Ask, Choice, Wish
from sglang_ext.bench.churn.asks import GENERATE, Maker
from sglang_ext.bench.churn.blocks import opens, readings
from sglang_ext.bench.churn.contract import check
from sglang_ext.bench.churn.placing import Seen
from sglang_ext.bench.churn.served import Served
from sglang_ext.bench.churn.state import State, faults

PIECES = [b"<eos>", b"<think>", b"</think>", b"\n\n", b"a", b"b", b"\n", b"So: ", b"</", b"think>", b"<turn>", b"<",
          b"think>x", b" ", b"<tool_call>", "é".encode()[:1], "é".encode()[1:]]
EOS, START, END, BREAK, A, B, LINE, SO, OPEN_END, REST, TURN, LESS, MORE, BLANK, TOOL, LEAD, TAIL = range(len(PIECES))
ONE = Served(PIECES, frozenset({EOS, TURN}), b"<think>", b"</think>")
"""Both markers are ids of their own."""
SPELLED = Served([b"" if p in (b"<think>", b"</think>") else p for p in PIECES], frozenset({EOS, TURN}), b"<think>",
                 b"</think>")
"""Both are written in pieces."""
THINKS = [TURN, START]
BUDGET = Wish(True, 3, message="")


def report(budget: int, tokens: int, forced: int, outcome: str) -> dict[str, Any]:
    return {"budget": budget, "tokens": tokens, "forced_tokens": forced, "outcome": outcome}


def asked(wish: Wish = BUDGET, **more: Any) -> Ask:
    return Ask(0, GENERATE, {}, **{"wish": wish, "max_new": 12, **more})


def answered(ids: list[int], think: dict[str, Any] | None, reasoning: int, prompt: list[int] = THINKS,
             served: Served = ONE, **more: Any) -> Answer:
    text = served.text(ids[:-1] if ids and ids[-1] == EOS else ids).decode(errors="replace")
    stop = {"finish": "stop", "matched": EOS} if ids and ids[-1] == EOS else {"finish": "length"}
    choice = Choice(ids, text, None, think=think, reasoning_tokens=reasoning, completion_tokens=len(ids))
    return Answer(200, choices=[replace(choice, **{**stop, **more})], prompt=prompt)


def violations(ask: Ask, answer: Answer, served: Served = ONE, seen: Seen | None = None) -> list[str]:
    if answer.choices and answer.choices[0].finish == "length":
        ask = replace(ask, max_new=len(answer.choices[0].ids))
    return check(served, ask, answer, seen or Seen())


FORCED = [A, A, A, END, BREAK, B, EOS]
RIGHT = {
    "natural": (BUDGET, [A, END, B, EOS], report(3, 2, 0, "natural"), 2),
    "forced": (BUDGET, FORCED, report(3, 3, 2, "forced"), 4),
    "at once": (Wish(True, 0, message=""), [END, BREAK, B], report(0, 0, 2, "forced"), 1),
    "a message": (Wish(True, 1, message="So: "), [A, SO, END, BREAK, B], report(1, 1, 3, "forced"), 3),
    "the server's message": (Wish(True, 1), [A, SO, END, BREAK, B], report(1, 1, 3, "forced"), 3),
    "cut in its end": (Wish(True, 1, message="So: "), [A, SO], report(1, 1, 1, "open"), 2),
    "cut behind its end": (BUDGET, [A, A, A, END], report(3, 3, 1, "forced"), 4),
    "grace": (Wish(True, 4, grace_tokens=3, message=""), [A, LINE, END, BREAK, B], report(4, 2, 2, "grace"), 3),
    "eos": (Wish(True, 9, message="So: "), [A, END, BREAK, B, EOS], report(9, 1, 2, "eos"), 2),
    "open": (BUDGET, [A, A], report(3, 2, 0, "open"), 2),
    "no limit": (Wish(True, -1), [A, A, A, A, A], report(-1, 5, 0, "open"), 5),
    "no limit ends with eos": (Wish(True, -1), [A, A, EOS], report(-1, 3, 0, "open"), 3),
    "no budget": (Wish(), [A, A, END, B, EOS], None, 3),
    "late enough": (Wish(True, 5, min_tokens=2), [A, A, END, B], report(5, 3, 0, "natural"), 3),
    "room for the answer": (Wish(True, 9, message="", answer_tokens=2), [A, A, END, BREAK, B, B],
                            report(2, 2, 2, "forced"), 3),
    "a character in two ids": (BUDGET, [A, END, LEAD, TAIL, B], report(3, 2, 0, "natural"), 2),
    "opened again": (BUDGET, [A, END, LINE, START, A, END, BREAK, B], report(3, 3, 2, "forced"), 4),
    "opened again after a forced end": (BUDGET, [*FORCED[:-1], LINE, START, END, BREAK, B],
                                       report(3, 3, 4, "forced"), 5),
}
LATE = [LINE, END, BREAK, B, B, B, B, B, LINE, START, END, BREAK, B, B, B]
RIGHT["a block that begins where only the answer has room"] = (
    Wish(True, 30, grace_tokens=30, message="", answer_tokens=2), LATE, report(9, 1, 4, "forced"), 3)
WRONG = {
    "a block that is ended in its room": (Wish(True, 9, grace_tokens=9, message="", answer_tokens=2), LATE,
                                          report(9, 1, 4, "forced"), 3, "outcome"),
    "limit": (BUDGET, [A, A, A, A, END, BREAK, B], report(3, 4, 2, "forced"), 5, "limit"),
    "limit, natural": (BUDGET, [A, A, A, A, END, B], report(3, 5, 0, "natural"), 5, "limit"),
    "limit, open": (BUDGET, [A, A, A, A], report(3, 4, 0, "open"), 4, "limit"),
    "limit, over two blocks": (BUDGET, [A, END, LINE, START, A, A, A], report(3, 5, 0, "open"), 5, "limit"),
    "too soon": (BUDGET, [A, A, END, BREAK, B], report(3, 2, 2, "forced"), 3, "outcome"),
    "another's limit": (BUDGET, [A, A, END, BREAK, B], report(2, 2, 2, "forced"), 3, "budget"),
    "no report": (BUDGET, FORCED, None, 4, "think"),
    "a report of nothing": (Wish(), [A, A, END, B, EOS], report(3, 3, 0, "natural"), 3, "think"),
    "miscounted": (BUDGET, FORCED, report(3, 3, 2, "forced"), 3, "reasoning_tokens"),
    "chosen miscounted": (BUDGET, FORCED, report(3, 4, 1, "forced"), 4, "counts"),
    "written miscounted": (BUDGET, FORCED, report(3, 3, 0, "forced"), 4, "counts"),
    "a message lost": (Wish(True, 1, message="So: "), [A, END, BREAK, B], report(1, 1, 2, "forced"), 2, "message"),
    "another's message": (Wish(True, 1, message="b"), [A, SO, END, BREAK, B], report(1, 1, 3, "forced"), 3, "message"),
    "a message at eos": (Wish(True, 9, message="So: "), [A, SO, END, B, EOS], report(9, 1, 2, "eos"), 3, "message"),
    "too early": (Wish(True, 5, min_tokens=3), [A, END, B], report(5, 2, 0, "natural"), 2, "min_tokens"),
    "grace in a line": (Wish(True, 4, grace_tokens=3, message=""), [A, A, END, BREAK, B], report(4, 2, 2, "grace"), 3,
                        "outcome"),
    "grace before its window": (Wish(True, 9, grace_tokens=3, message=""), [A, LINE, END, BREAK, B],
                                report(9, 2, 2, "grace"), 3, "outcome"),
    "another outcome": (BUDGET, FORCED, report(3, 3, 2, "natural"), 4, "outcome"),
    "an unknown outcome": (BUDGET, FORCED, report(3, 3, 2, "stopped"), 4, "outcome"),
    "open, it says": (BUDGET, [A, END, B, EOS], report(3, 2, 0, "open"), 2, "outcome"),
    "the end twice": (BUDGET, [A, A, A, END, BREAK, END, B], report(3, 3, 2, "forced"), 4, "repeated end"),
    "no answer": (BUDGET, [A, A, A, END, BREAK, EOS], report(3, 3, 2, "forced"), 4, "empty answer"),
    "eos in a limited thought": (BUDGET, [A, A, EOS], report(3, 3, 0, "open"), 3, "eos"),
    "no room for the answer": (Wish(True, 3, message="", answer_tokens=4), [*FORCED[:-1], B],
                               report(3, 3, 2, "forced"), 4, "answer_tokens"),
    "unlimited, but forced": (Wish(True, -1, message=""), [A, A, END, BREAK, B], report(-1, 2, 2, "forced"), 3,
                              "outcome"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name: str) -> None:
    wish, ids, think, reasoning = RIGHT[name]
    assert violations(asked(wish), answered(ids, think, reasoning)) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_seen(name: str) -> None:
    wish, ids, think, reasoning, rule = WRONG[name]
    found = violations(asked(wish), answered(ids, think, reasoning))
    assert rule in [line.split(":")[0] for line in found], found


@pytest.mark.parametrize(("ids", "think", "reasoning", "rule"), [
    ([A, OPEN_END, REST, BREAK, B], report(2, 2, 2, "forced"), 3, None),
    ([A, LESS, OPEN_END, REST, BREAK], report(2, 2, 3, "forced"), 4, "message"),  # "<" was half of the marker
    ([A, A, OPEN_END, REST, BREAK, B], report(2, 2, 3, "forced"), 4, None),
    ([A, A, OPEN_END, MORE, BREAK, B], report(2, 2, 3, "forced"), 4, "counts"),  # the marker has text behind it
])
def test_an_end_in_pieces_is_completed(ids: list[int], think: dict[str, Any], reasoning: int, rule: str | None) -> None:
    wish, prompt = Wish(True, 2, message=""), [TURN, LESS, REST]
    found = violations(asked(wish), answered(ids, think, reasoning, prompt, SPELLED), SPELLED)
    assert [line.split(":")[0] for line in found] == ([rule] if rule else [])


@pytest.mark.parametrize(("change", "rule"), [
    ({"completion_tokens": 6}, "completion_tokens"),
    ({"finish": None}, "finish"),
    ({"finish": "abort"}, "finish"),
    ({"finish": "length", "matched": None, "ids": FORCED[:-1]}, "finish"),
    ({"text": "aaa</think>\n\n"}, "text"),
    ({"text": "aaa</think>\n\nbb"}, "text"),
    ({"reasoning": "aaa", "reasoning_tokens": 0}, "reasoning_content"),
    ({"matched": "x"}, "text"),
])
def test_the_form_of_a_response(change: dict[str, Any], rule: str) -> None:
    answer = answered(FORCED, report(3, 3, 2, "forced"), 4)
    answer.choices = [replace(answer.choices[0], **change)]
    found = check(ONE, asked(max_new=20), answer, Seen())
    assert rule in [line.split(":")[0] for line in found], found


def test_statuses() -> None:
    assert violations(asked(), Answer(500, "broken"))[0].startswith("status: 500")
    assert violations(asked(), Answer(0, "ClientError"))[0].startswith("status: 0")
    assert violations(asked(), Answer(400, "think_budget: 3"))[0].startswith("status: 400")
    bad = asked(kind="bad", field="min_tokens")
    assert violations(bad, Answer(400, "think_budget.min_tokens: 9 is above max_tokens")) == []
    assert violations(bad, Answer(400, "no"))[0].startswith("refusal: 'min_tokens'")
    assert violations(bad, answered(FORCED, report(3, 3, 2, "forced"), 4))[0].startswith("refusal: 200")
    assert violations(bad, Answer(500, "min_tokens"))[0].startswith("refusal: 500")


def test_every_choice_is_checked_and_the_sums_are() -> None:
    good, worse = (answered(ids, think, n).choices[0] for ids, think, n in (
        (FORCED, report(3, 3, 2, "forced"), 4), ([A, A, A, A, END, B, EOS], report(3, 5, 0, "natural"), 5)))
    usage = {"completion_tokens": 14, "completion_tokens_details": {"reasoning_tokens": 8},
             "think": {"tokens": 6, "forced_tokens": 4}}
    two = asked(choices=2)
    assert violations(two, Answer(200, choices=[good, good], prompt=THINKS, usage=usage)) == []
    assert violations(two, Answer(200, choices=[good], prompt=THINKS))[0].startswith("n: 1")
    assert violations(two, Answer(200, choices=[good, worse], prompt=THINKS))[0].startswith("choice 1: limit")
    for wrong in ({"completion_tokens": 13}, {"completion_tokens_details": {"reasoning_tokens": 9}},
                  {"think": {"tokens": 6, "forced_tokens": 2}}):
        found = violations(two, Answer(200, choices=[good, good], prompt=THINKS, usage={**usage, **wrong}))
        assert len(found) == 1, found
        assert found[0].startswith("usage.")


def test_what_the_server_writes_is_the_same_in_each_answer() -> None:
    seen = Seen()
    first = answered([A, SO, END, BREAK, B], report(1, 1, 3, "forced"), 3)
    other = answered([A, B, END, BREAK, B], report(1, 1, 3, "forced"), 3)
    for answer in (other, *[first] * 5):
        assert violations(asked(Wish(True, 1)), answer, seen=seen) == []
    assert (seen.message, seen.closing) == (b"So: ", b"\n\n")
    assert violations(asked(Wish(True, 1)), other, seen=seen)[0].startswith("message")
    bare = answered([A, END, BREAK, B], report(1, 1, 2, "forced"), 2)
    assert violations(asked(Wish(True, 1)), bare, seen=seen) == [], "it is left out where there is no room"
    line = answered([A, SO, END, LINE, B], report(1, 1, 3, "forced"), 3)
    assert violations(asked(Wish(True, 1)), line, seen=seen)[0].startswith("closing")


def test_the_line_break_that_a_server_tells_of_is_looked_for() -> None:
    ids = [A, A, A, END, B, EOS]
    answer = answered(ids, report(3, 3, 1, "forced"), 4)
    assert not violations(asked(), answer)
    assert [fault.split(":")[0] for fault in violations(asked(), answer, seen=Seen(closing=b"\n\n"))] == ["closing"]


def test_a_default_budget_holds_for_requests_without_one() -> None:
    served = replace(ONE, default=3)
    assert violations(asked(Wish()), answered(FORCED, report(3, 3, 2, "forced"), 4), served) == []
    assert violations(asked(Wish()), answered(FORCED, None, 4), served)[0].startswith("think")
    kept = replace(ONE, reserve=-1)
    assert violations(asked(Wish(True, 9)), answered(FORCED, report(3, 3, 2, "forced"), 4), kept) == []


@pytest.mark.parametrize(("prompt", "expected"), [
    ([A, B], (False,)),
    ([TURN, START], (True,)),
    ([TURN, A, START, LINE], (True,)),
    ([START, A, TURN, B], (False,)),
    ([TURN, START, A, END, B], (False,)),
    ([TURN, START, A], (True,)),
    ([TURN, A, LINE, START, A], (True,)),
    ([TURN, A, START, A], (True, False)),
    ([START, A], (True, False)),
    ([TURN, START, TOOL], (True, False)),
])
def test_what_a_prompt_opens(prompt: list[int], expected: tuple[bool, ...]) -> None:
    assert opens(ONE, prompt) == expected


@pytest.mark.parametrize(("ids", "thinking"), [
    ([START, A], {1}),
    ([A, LINE, START, A], {1}),
    ([A, START, A], {0}),
    ([BLANK, START, A], {0, 1}),
    ([START, A, END, START, B], {2, 3}),
    ([A, TURN, START, A], {0, 1}),
    ([A, TURN, B, START, A], {0, 1}),
    ([START, A, TOOL, B], {2, 3}),
    ([START, OPEN_END, REST, B], {2, 3}),
    ([LESS, REST, B], {0, 1}),
    ([END, B], {0, 1}),
    ([OPEN_END, REST, B], {0, 2}),
    ([A, END, END, B], {0}),
])
def test_where_blocks_are(ids: list[int], thinking: set[int]) -> None:
    assert {reading.thinking for reading in readings(ONE, [A], ids)} == thinking


def test_a_server_without_budgets_has_no_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with peer(lambda body: (200, [{}])) as server:
        assert main(["churn", "--url", server.url, "--out", str(tmp_path / "out")]) == 1
    assert "think_budget in /server_info" in capsys.readouterr().err
    assert server.bodies == []


def test_what_is_left_in_a_server() -> None:
    before = State(0, 0, (280,), None)
    assert list(faults(before, replace(before, memory_mib=9))) == []
    for after, rule in ((State(1, 0, (280,), None), "idle"), (State(0, 5, (280,), None), "pool"),
                        (State(0, 0, (279,), None), "pool")):
        assert [line.split(":")[0] for line in faults(before, after)] == [rule]


def test_requests_are_the_same_for_a_seed_and_of_every_kind() -> None:
    served = replace(ONE, eos=EOS, spellings=("think_budget", "thinking_budget", "reasoning.max_tokens"))
    prompts = [([{"role": "user", "content": "a"}], [A, B]), (None, [TURN, START])]
    made, again, others = ([Maker(served, "m", prompts, 64, seed, {}).ask(i) for i in range(600)] for seed in (3, 3, 4))
    assert made == again
    assert made != others
    assert {(a.path, a.kind) for a in made} >= {(path, kind) for path in (GENERATE, "/v1/chat/completions")
                                                for kind in ("whole", "stream", "abort", "end", "leave", "bad")}
    text = str([a.body for a in made])
    for part in ("grace_tokens", "min_tokens", "message", "answer_tokens", "thinking_budget", "'reasoning'", "'n'",
                 "'stop'", "ignore_eos", "temperature", "-1", f"'logit_bias': {{'{END}'", f"'logit_bias': {{'{EOS}'"):
        assert part in text, part
    for ask in made:
        wish = ask.wish
        assert ask.kind == "bad" or wish.max_tokens in (None, -1) or max(
            wish.min_tokens, wish.grace_tokens) <= wish.max_tokens, ask
    capped = [Maker(replace(served, ceiling=5), "m", prompts, 64, 3, {}).ask(i).wish for i in range(600)]
    assert all(0 <= w.max_tokens <= 5 for w in capped if w.max_tokens is not None)


def test_a_block_that_is_implied_and_closes_at_once_is_written_whole() -> None:
    ids, think = [START, END, BREAK, B, EOS], report(0, 0, 3, "forced")
    for seen in (Seen(), Seen(closing=b"\n\n")):
        assert not violations(asked(Wish(True, 0, message="")), answered(ids, think, 1, prompt=[TURN]), seen=seen)
    cut = answered([START], report(0, 0, 1, "open"), 0, prompt=[TURN])
    assert not violations(asked(Wish(True, 0, message="")), cut)
