"""The double query without a server: what is called next, against a reference that rescans everything."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from block_scanner import Delimiters, Scanner
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import EOS, Scripts, build_scripted_model
from transformers import AutoTokenizer

from sglang_ext.budget.families import FAMILIES
from sglang_ext.double_query import Endpoint, Query, Response
from sglang_ext.double_query.request import is_a_pair_of_tags
from sglang_ext.double_query.session import Session
from sglang_ext.double_query.thinking import Ask, Close, Standing, Thinking, next_step, open_in_prompt
from sglang_ext.double_query.wire import Call, Event

START, END = b"<think>", b"</think>"
PIECES = ["a", "b\n", "\n", "<", "think", ">", "</", "<th", "ink>", "</th", "ink", ">\n", "k>x", "thin", "</think>",
          "<think>", "<think", "\n<", " "]
RUNS = [["<", "think", ">"], ["\n<", "think", ">\n"], ["<think", "k>x"], ["</", "think", ">"], ["</th", "ink", ">\n"],
        ["</", "thin", "k>x"], *([p] for p in PIECES)]
SCRIPT = st.lists(st.sampled_from(RUNS), max_size=12).map(lambda runs: [piece for run in runs for piece in run])
ANSWER = ["yes", "the end"]
OPEN = "<think>\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = build_scripted_model(tmp_path_factory.mktemp("pieces"), Scripts([PIECES, [*ANSWER, EOS]]))
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def special_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    scripts = Scripts([PIECES, [*ANSWER, EOS]], special=["<think>", "</think>"])
    return AutoTokenizer.from_pretrained(build_scripted_model(tmp_path_factory.mktemp("special"), scripts))


def ids_of(tokenizer: Any, pieces: Sequence[str]) -> list[int]:
    names = [p if p in tokenizer.get_vocab() else p.replace("\n", "\u010a").replace(" ", "\u0120") for p in pieces]
    return [int(i) for i in tokenizer.convert_tokens_to_ids(names)]


@dataclass
class FakeServer:
    """Writes `free`, or `answer` once something else stands in the prompt, and keeps to what a call says.

    Attributes:
        calls: in order.
    """

    tokenizer: Any
    endpoint: Endpoint
    prompt: list[int]
    free: list[int]
    answer: list[int]
    size: int = 1  # ids per event
    calls: list[Call] = field(default_factory=list)

    def reply(self, call: Call) -> list[Event]:
        self.calls.append(call)
        assert isinstance(call.prompt, list)
        assert call.prompt[: len(self.prompt)] == self.prompt
        assert call.max_tokens > 0
        done = call.prompt[len(self.prompt) :]
        source, at = self.free, len(done)
        if done != self.free[:at]:
            source = self.answer
            at = next(k for k in range(len(source), -1, -1) if done[len(done) - k :] == source[:k])
        written: list[int] = []
        finish, matched = "length", None
        for i in source[at : at + call.max_tokens]:
            written.append(i)
            if i == self.tokenizer.eos_token_id:
                finish, matched = "stop", i
                break
            met = [s for s in call.stops if s in self.tokenizer.decode(written)]
            if met:
                finish, matched = "stop", met[0]
                break
        *groups, last = [written[n : n + self.size] for n in range(0, len(written), self.size)] or [[]]
        return [*(Event(group, "", None, None, None, True, None, None) for group in groups),
                Event(last, "", None, finish, matched, True, len(call.prompt), None)]


def drive(session: Session, server: FakeServer) -> tuple[list[str], Response]:
    said: list[str] = []
    while (call := session.next_call()) is not None:
        said.append(session.take())
        for event in server.reply(call):
            session.feed(event)
            said.append(session.take())
            if session.enough:
                break
        session.end_call()
    said.append(session.take())
    return said, session.response()


def open_after(pieces: Sequence[bytes], opened: bool) -> bool:
    """Whether a block is open after these pieces, looked up from the beginning."""
    data, inside, at = b"".join(pieces), opened, 0
    while True:
        if inside:
            found = data.find(END, at)
            if found < 0:
                return True
            at, inside = found + len(END), False
        else:
            ends = [m.end() for m in re.finditer(b"</think>", data[at:])]
            bases = [at, *(at + end for end in ends)] if at or not opened else [at + end for end in ends]
            places = [m.start() for m in re.finditer(b"<think>", data) if m.start() >= at]
            places = [p for p in places if data[:p].endswith(b"\n") or any(
                b <= p and not data[b:p].strip() for b in bases)]
            if not places:
                return False
            at, inside = places[0] + len(START), True


def own_tokens(pieces: Sequence[bytes], opened: bool, budget: int, most: int) -> tuple[int, int, bool]:
    """How many tokens a model writes before the wall, how many of them are thinking, and whether the wall is met."""
    used = 0
    for n in range(min(most, len(pieces))):
        inside = open_after(pieces[:n], opened)
        if inside and used == budget:
            return n, used, True
        used += inside
    return min(most, len(pieces)), used, False


@settings(deadline=None, max_examples=400)
@given(script=SCRIPT, opened=st.booleans(), special=st.booleans(),
       budget=st.integers(0, 12), most=st.integers(1, 30), size=st.integers(1, 5))
def test_every_script_is_cut_where_a_rescan_cuts_it(tokenizer: Any, special_tokenizer: Any, script: list[str],
                                                    opened: bool, special: bool, budget: int, most: int,
                                                    size: int) -> None:
    tok = special_tokenizer if special else tokenizer
    endpoint = Endpoint("http://x", tokenizer=tok)
    prompt = tok.encode(OPEN if opened else "q\n")
    free, answer = [ids_of(tok, [*s, EOS]) for s in (script, ANSWER)]
    server = FakeServer(tok, endpoint, prompt, free, answer, size)
    said, response = drive(Session(endpoint, Query(prompt, budget, most, "M")), server)

    pieces = [*(s.encode() for s in script), b""]
    n, used, wall = own_tokens(pieces, opened, budget, most)
    used -= n == len(free) and open_after(pieces, opened)  # EOS is no thought
    own, forced = free[:n], list(response.token_ids or ())[n:]
    assert response.token_ids is not None
    assert list(response.token_ids[:n]) == own
    assert response.think_tokens == used <= budget
    assert (response.outcome == "forced") == wall
    assert "".join(said) == response.text
    if wall:
        written = b"".join(p.encode() for p in script[:n])
        rest, answered = answer[: most - n], "".join(ANSWER[: most - n])
        assert forced[len(forced) - len(rest) :] == rest
        assert response.text.endswith(answered)
        closing = response.text.removesuffix(answered).encode()[len(written) :]
        half = 0 if special else next((k for k in range(7, 0, -1) if written.endswith(END[:k])
                                       and open_after([written[:-k]], opened)), 0)
        assert closing == (END[half:] if half else b"M" + END) + b"\n\n"
    else:
        assert not forced
        assert response.outcome in ("open", "natural", "none")
        assert (response.outcome == "open") == open_after(pieces[:n], opened)


@given(budget=st.integers(-1, 50), left=st.integers(-3, 50), used=st.integers(0, 50), opened=st.booleans(),
       opening=st.booleans())
def test_no_call_can_think_beyond_the_budget(budget: int, left: int, used: int, opened: bool, opening: bool) -> None:
    step = next_step(budget, Standing(left, used, opened, opening))
    if left <= 0:
        assert step is None
    elif budget == -1:
        assert step == Ask(left)
    elif isinstance(step, Close):
        assert opened
        assert used >= budget
    else:
        assert isinstance(step, Ask)
        assert 0 < step.max_tokens <= left
        thinks = step.max_tokens if opened else step.max_tokens - 1
        assert step.guarded or used + thinks <= max(budget, used)


@pytest.mark.parametrize(("data", "inside"), [
    (b"<think>\nabc", b"\nabc"), (b"<think>a</think>b", None), (b"", None), (b"<think>a</think>b<think>", b""),
    (b"</think>", None), (b"<think>x</th", b"x</th"), (b"<think><think>x", b"x"),
])
def test_what_a_prompt_leaves_open(data: bytes, inside: bytes | None) -> None:
    assert open_in_prompt(data, START, END) == inside


TAGS = sorted(name for name, row in FAMILIES.items() if is_a_pair_of_tags(row))


@pytest.mark.parametrize("name", sorted({FAMILIES[name].start: name for name in TAGS}.values()))
def test_blocks_of_a_family_begin_and_end_where_its_row_says(name: str) -> None:
    """On texts that are dense in its markers, by a scanner that shares no code."""
    row, rng = FAMILIES[name], random.Random(5)
    markers = [row.start, row.end, row.label, row.start + row.label, row.start[:3], row.end[:-1]]
    pieces = [*markers, "x", " ", "\n", "\u00a0"]
    rules = Delimiters(row.start.encode(), row.end.encode(), [bytes([b]) for b in range(256)], (),
                       label=row.label.encode(), everywhere=row.anywhere)
    for _ in range(100):
        thinking, scanner = Thinking(Endpoint("http://x", family=name, line_break="").markers), Scanner(rules)
        for byte in "".join(rng.choices(pieces, k=12)).encode():
            thinking.feed(bytes([byte]))
            scanner.feed(byte)
            assert thinking.open == scanner.thinking
    assert thinking.blocks


def test_a_block_begins_right_behind_a_turn() -> None:
    for role in (b"", b"assistant"):
        thinking = Thinking(Endpoint("http://x").markers)
        thinking.feed(b"yes")
        thinking.feed(b"", control=True)
        thinking.feed(role + START)
        assert thinking.open


def test_a_family_that_is_no_pair_of_tags_is_refused() -> None:
    with pytest.raises(ValueError, match=r"family: 'gpt-oss' is not accepted: .*accepted: .*gemma4"):
        Endpoint("http://x", family="gpt-oss")
    with pytest.raises(ValueError, match="start, end: 'a' and 'b' are not those of the family qwen3"):
        Endpoint("http://x", start="a", end="b", family="qwen3")


def session_of(tokenizer: Any, script: Sequence[str], budget: int, most: int = 30, opened: bool = True,
               message: str = "M", size: int = 1, **params: Any) -> tuple[list[str], Response, FakeServer]:
    endpoint = Endpoint("http://x", tokenizer=tokenizer)
    prompt = tokenizer.encode(OPEN if opened else "q\n")
    server = FakeServer(tokenizer, endpoint, prompt, ids_of(tokenizer, script), ids_of(tokenizer, [*ANSWER, EOS]), size)
    said, response = drive(Session(endpoint, Query(prompt, budget, most, message, params)), server)
    return said, response, server


def test_what_is_not_needed_is_not_called(tokenizer: Any) -> None:
    for script, budget, calls in ((["a", EOS], 5, 1), (["a", "</think>", "a", EOS], 5, 1), (["a"] * 9, 0, 1),
                                  (["a"] * 9, 3, 2), (["a", "</think>", "a", "a", EOS], 2, 2)):
        assert session_of(tokenizer, script, budget)[1].calls == calls, script


def test_a_late_block_is_met_where_it_opens(tokenizer: Any) -> None:
    """The second call stops at the start marker, also where it is text; then the budget counts."""
    script = ["a", "a", "a", "<think>", "b\n", "<think>", *["a"] * 9]
    _, response, server = session_of(tokenizer, script, 2, opened=False)
    assert response.text == "aaa<think>b\n<think>aaM</think>\n\nyesthe end"
    assert response.think_tokens == 2
    assert [(c.max_tokens, c.stops) for c in server.calls] == [
        (3, []), (27, ["<think>"]), (26, ["<think>"]), (2, []), (22, ["<think>"])]


def test_the_message_is_said_once(tokenizer: Any) -> None:
    """A block that the model opens after its forced end is closed at once and bare."""
    endpoint = Endpoint("http://x", tokenizer=tokenizer)
    prompt = tokenizer.encode(OPEN)
    answer = [*ids_of(tokenizer, ["<think>"]), *ids_of(tokenizer, [*ANSWER, EOS])]
    session = Session(endpoint, Query(prompt, 1, 30, "M"))
    server = FakeServer(tokenizer, endpoint, prompt, ids_of(tokenizer, ["a"] * 9), answer)
    for _ in range(2):
        call = session.next_call()
        assert call is not None
        for event in server.reply(call):
            session.feed(event)
        session.end_call()
    session.next_call()
    response = session.response()
    assert response.text == "aM</think>\n\n<think></think>\n\n"
    assert (response.think_tokens, response.reasoning) == (1, "aM")


def test_a_start_marker_cut_in_two(tokenizer: Any) -> None:
    """No call's stop string meets it; the next call is short enough."""
    script = ["a", "\n<", "think", ">", *["a"] * 9]
    _, response, server = session_of(tokenizer, script, 1, opened=False)
    assert response.text == "a\n<think>aM</think>\n\nyesthe end"
    assert [c.max_tokens for c in server.calls] == [2, 2, 1, 25]


def test_a_character_cut_in_two(tokenizer: Any) -> None:
    """Ids keep both halves; the text leaves out the half that a forced end follows, and joins the others."""
    halves = [int(i) for i in tokenizer.convert_tokens_to_ids(["\u00c3", "\u00a9"])]  # bytes C3 and A9
    endpoint = Endpoint("http://x", tokenizer=tokenizer)
    prompt = tokenizer.encode(OPEN)
    for budget, end in ((1, False), (3, True)):
        free = [*halves, *ids_of(tokenizer, ["</think>"] if end else []), *halves, tokenizer.eos_token_id]
        server = FakeServer(tokenizer, endpoint, prompt, free, ids_of(tokenizer, [*ANSWER, EOS]))
        said, response = drive(Session(endpoint, Query(prompt, budget, 30, "M")), server)
        assert list(response.token_ids or ())[:1] == halves[:1]
        assert response.text == ("\u00e9</think>\u00e9" if end else "M</think>\n\nyesthe end")
        assert "".join(said) == response.text


def test_a_marker_of_other_characters_cut_anywhere(tokenizer: Any) -> None:
    """As Kimi's: a cut within one of its characters writes the whole marker anew."""
    endpoint = Endpoint("http://x", tokenizer=tokenizer, start="\u25c1think\u25b7", end="\u25c1/think\u25b7")
    prompt, free = tokenizer.encode(endpoint.start), tokenizer.encode("a" + endpoint.end + "b")
    for budget in range(len(free) - 1):
        server = FakeServer(tokenizer, endpoint, prompt, free, ids_of(tokenizer, [*ANSWER, EOS]))
        _, response = drive(Session(endpoint, Query(prompt, budget, 30, "M")), server)
        assert response.outcome == "forced"
        assert response.text.count(endpoint.end) == 1
        assert response.answer == "yesthe end"
        assert "\ufffd" not in response.text


def test_a_stop_string_across_two_calls(tokenizer: Any) -> None:
    """Neither call sees it whole; nothing of it is handed out."""
    said, response, _ = session_of(tokenizer, ["a", "</think>", "b\n", "<", " ", "a", "a"], 4, stop=["\n< a"])
    assert response.text == "a</think>b" == "".join(said)
    assert (response.finish_reason, response.matched_stop) == ("stop", "\n< a")
    assert response.completion_tokens == 6


def test_a_stop_string_does_not_reach_across_what_was_forced(tokenizer: Any) -> None:
    _, response, _ = session_of(tokenizer, ["a"] * 9, 2, stop=["\n\n", "ayes"], message="M\n\n")
    assert response.text == "aaM\n\n</think>\n\nyesthe end"


def test_what_is_left_of_the_minimum(tokenizer: Any) -> None:
    _, _, server = session_of(tokenizer, ["a"] * 30, 4, min_new_tokens=6)
    assert [(c.max_tokens, c.min_tokens) for c in server.calls] == [(4, 4), (26, 2)]


def test_tokens_of_the_last_call_run_out(tokenizer: Any) -> None:
    _, response, _ = session_of(tokenizer, ["a"] * 9, 2, most=3)
    assert response.text == "aaM</think>\n\nyes"
    assert (response.finish_reason, response.completion_tokens) == ("length", 3)
    _, response, _ = session_of(tokenizer, ["a"] * 9, 3, most=3)
    assert (response.outcome, response.calls, response.finish_reason) == ("open", 1, "length")


GOOD: dict[str, Any] = {"prompt": "q", "think_budget": 5}


@pytest.mark.parametrize(("change", "parts"), [
    ({"think_budget": -2}, ["think_budget", "-2", "-1"]),
    ({"think_budget": True}, ["think_budget", "True", "bool", "integer"]),
    ({"think_budget": 1.5}, ["think_budget", "1.5", "float"]),
    ({"think_budget": "5"}, ["think_budget", "'5'", "str"]),
    ({"max_tokens": 0}, ["max_tokens", "0", "from 1"]),
    ({"prompt": ""}, ["prompt", "text, token ids or chat messages"]),
    ({"prompt": []}, ["prompt", "[]"]),
    ({"prompt": [1, "a"]}, ["prompt", "[1, 'a']"]),
    ({"prompt": [1, 2]}, ["prompt", "tokenizer"]),
    ({"prompt": [{"role": "user", "content": "x"}]}, ["prompt", "tokenizer"]),
    ({"message": "stop</think>"}, ["message", "end marker"]),
    ({"params": {"n": 2}}, ["params.n", "2", "accepted: 1"]),
    ({"params": {"best_of": 3}}, ["params.best_of", "3"]),
    ({"params": {"max_new_tokens": 3}}, ["params.max_new_tokens", "argument of its own"]),
    ({"params": {"regex": "a"}}, ["params.regex", "grammar"]),
    ({"params": {"logprobs": 1}}, ["params.logprobs", "not joined"]),
    ({"params": {"stop": [""]}}, ["params.stop", "['']"]),
    ({"params": {"stop": 5}}, ["params.stop", "5"]),
    ({"params": {"stop": "</think>"}}, ["params.stop", "marker"]),
    ({"params": {"min_tokens": 2000}}, ["params.min_tokens", "2000", "1024"]),
], ids=str)
def test_refused(change: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError, match="accepted") as error:
        Session(Endpoint("http://x"), Query(**{**GOOD, **change}))
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize(("change", "parts"), [
    ({"url": "127.0.0.1:30000"}, ["url", "127.0.0.1"]),
    ({"api": "chat"}, ["api", "chat", "completions"]),
    ({"start": ""}, ["start", "''"]),
    ({"end": "<think>"}, ["end", "differ"]),
], ids=str)
def test_endpoint_refused(change: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError, match="accepted") as error:
        Endpoint(**{"url": "http://x", **change})
    assert all(part in str(error.value) for part in parts), error.value


def test_a_question_about_the_marker_opens_nothing(demo_model: Path) -> None:
    """In ids and in text, what a user wrote is not the response's block."""
    tok = AutoTokenizer.from_pretrained(demo_model)
    for question, extra, opened in (("what is <think>?", {"enable_thinking": False}, False), ("</think>", {}, True)):
        messages = [{"role": "user", "content": question}]
        for send_ids in (True, False):
            session = Session(Endpoint("http://x", tokenizer=tok, send_ids=send_ids),
                              Query(messages, 0, 8, template=extra))
            call = session.next_call()
            assert call is not None
            assert bool(session.take()) == opened
