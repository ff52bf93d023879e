"""Every distinct family of models on a running server, with sglang's own parsers: a limit asked for is a limit kept,
and what follows a forced end is the family's answer, or its tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import servers
from family_models import AGAIN, ANSWER, CALLS, CALLS_INSIDE, ENDS, EOS, SHAPES, STOPS, THOUGHT, Shape, build
from scripted_model import TURN
from servers import FLOAT32
from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES
from transformers import AutoTokenizer

from sglang_ext.budget.families import FAMILIES

pytestmark = pytest.mark.served
NEW = 60
PLENTY = 40
LOOK = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}


@dataclass(frozen=True)
class Flow:
    """A request.

    Attributes:
        script: what the model wants.
        budget: None for a request without one.
        how: one of `HOW`.
    """

    script: str
    budget: int | None
    chat: bool = False
    stream: bool = False
    how: str = ""


GENERATED = [Flow(STOPS, budget) for budget in (None, 0, 1, 3, len(THOUGHT), PLENTY)]
GENERATED += [Flow(script, budget) for script in (ENDS, AGAIN, CALLS) for budget in (None, PLENTY)]
CUT_AGAIN = -2
"""Stands for a budget that leaves two tokens of the second block."""
FLOWS = [*GENERATED, Flow(AGAIN, CUT_AGAIN)]
FLOWS += [Flow(script, budget, True, stream) for stream in (False, True) for script, budget in (
    (STOPS, 0), (STOPS, 2), (STOPS, PLENTY), (ENDS, PLENTY), (AGAIN, CUT_AGAIN), (CALLS, PLENTY), (CALLS, 1),
    (CALLS_INSIDE, PLENTY))]


HOW: dict[str, dict[str, Any]] = {
    "": {}, "together": {"separate_reasoning": False}, "held": {"stream_reasoning": False},
    "goes on": {"continue_final_message": True}}
"""Thinking in the answer's text; in one piece; behind a message of the assistant's that has begun to think."""
FLOWS += [Flow(STOPS, 2, True, stream, how) for stream in (False, True) for how in HOW if how]


@dataclass
class Served:
    """A family, and its server's responses."""

    shape: Shape
    pieces: dict[int, str]
    bodies: dict[Flow, Any]

    def budget(self, flow: Flow) -> int | None:
        return 1 + len(self.shape.end) + 2 if flow.budget == CUT_AGAIN else flow.budget

    def written(self, flow: Flow) -> list[str]:
        return [self.pieces[i] for i in self.bodies[flow]["output_ids"]]

    def expected(self, flow: Flow) -> list[str]:
        """Token by token."""
        wanted, shape, budget = self.shape.responses[flow.script], self.shape, self.budget(flow)
        if budget is None:
            return wanted
        opened, behind = len(shape.begins), [*shape.end, *shape.header, *ANSWER, EOS]
        if flow.script == STOPS:
            return [*wanted[: opened + min(budget, len(THOUGHT))], *behind]
        if flow.script == AGAIN:
            second = opened + 1 + len(shape.end) + len(shape.between) + len(shape.opening)
            return [*wanted[: second + min(budget - 1 - len(shape.end), 3)], *behind]
        return wanted


def _body(shape: Shape, tokenizer: Any, flow: Flow, budget: int | None) -> tuple[str, dict[str, Any]]:
    if not flow.chat:
        prompt = tokenizer.encode(TURN + flow.script + shape.prompt, add_special_tokens=False)
        limit = {} if budget is None else {"think_budget": budget}
        return "/generate", {"input_ids": prompt, "sampling_params": {
            "temperature": 0, "max_new_tokens": NEW, **limit}}
    declared = flow.script == CALLS_INSIDE and not flow.stream  # by a message
    tools = {"tools": [LOOK]} if flow.script in (CALLS, CALLS_INSIDE) and not declared else {}
    messages = [*([{"role": "system", "content": "", "tools": [LOOK]}] if declared else []),
                {"role": "user", "content": flow.script}]
    if flow.how == "goes on":
        messages.append({"role": "assistant", "content": "".join([*shape.begins, "hm"])})
    return "/v1/chat/completions", {
        "model": "m", "messages": messages, "temperature": 0, "max_tokens": NEW, "think_budget": budget, "n": 2,
        "stream": flow.stream, **shape.body, **tools, **HOW[flow.how],
        **({"stream_options": {"include_usage": True}} if flow.stream else {})}


@pytest.fixture(scope="module", params=SHAPES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All requests at once."""
    shape = SHAPES[request.param]
    if shape.parser not in REASONING_PARSER_NAMES:
        pytest.skip(f"this release of sglang has no parser {shape.parser}")
    folder = build(tmp_path_factory.mktemp("family"), shape)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", shape.parser, *FLOAT32,
                            *(("--tool-call-parser", shape.tools) if shape.tools and not shape.calls_apart else ()))
    served = Served(shape, {i: tokenizer.decode([i]) for i in range(len(tokenizer))}, {})
    asked = [flow for flow in FLOWS if flow.script in shape.responses and not (
        shape.calls_apart and flow.chat and flow.script == CALLS)]
    with ThreadPoolExecutor(len(asked)) as pool:
        responses = pool.map(lambda flow: server.post(*_body(shape, tokenizer, flow, served.budget(flow))), asked)
        served.bodies = dict(zip(asked, map(_read, asked, responses), strict=True))
    yield served
    assert not server.stop()


def _read(flow: Flow, response: Any) -> Any:
    """The result of `/generate`; of a chat thinking, answer, calls and end of each choice, and the usage."""
    if response.status_code != 200:
        return response.text
    if not flow.chat:
        return response.json()
    if not flow.stream:
        body = response.json()
        choices = {c["index"]: Said.of(c["message"], c["finish_reason"]) for c in body["choices"]}
        return choices, body["usage"]
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    choices = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            said = choices.setdefault(choice["index"], Said())
            said.add(Said.of(choice["delta"], choice.get("finish_reason")))
    return choices, next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), chunks)


@dataclass
class Said:
    """What a client is told of a choice."""

    thought: str = ""
    answer: str = ""
    call: str = ""
    arguments: str = ""
    finish: str | None = None
    pieces: int = 0  # of the thought

    @classmethod
    def of(cls, message: dict[str, Any], finish: str | None) -> Said:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        thought = message.get("reasoning_content") or ""
        return cls(thought, message.get("content") or "", "".join(f.get("name") or "" for f in functions),
                   "".join(f.get("arguments") or "" for f in functions), finish, bool(thought))

    def take_apart(self, start: str, end: str) -> None:
        """Where sglang hands all on as the answer, with the start marker that the prompt has."""
        assert not self.thought
        assert self.answer.startswith(start)
        thought, _, self.answer = self.answer.removeprefix(start).rpartition(end)
        self.thought = thought.strip()

    def add(self, other: Said) -> None:
        self.thought, self.answer = self.thought + other.thought, self.answer + other.answer
        self.call, self.arguments = self.call + other.call, self.arguments + other.arguments
        self.finish, self.pieces = other.finish or self.finish, self.pieces + other.pieces


def _asked(family: Served, flow: Flow) -> Any:
    if flow not in family.bodies:
        pytest.skip("the family has no such flow")
    if flow.how == "goes on" and family.shape.parser == "beam":
        pytest.skip("sglang puts the header of the answer in front of a message that goes on")
    return family.bodies[flow]


@pytest.mark.parametrize("flow", [flow for flow in FLOWS if not flow.chat], ids=str)
def test_tokens(family: Served, flow: Flow) -> None:
    """What the model chose in blocks is within the budget, the family's answer follows, and the response ends."""
    body = _asked(family, flow)
    assert isinstance(body, dict), body
    assert family.written(flow) == family.expected(flow)
    if flow.budget is not None:
        think, budget = body["meta_info"]["think"], family.budget(flow)
        assert think["tokens"] <= budget
        assert think["outcome"] == _outcome(family, flow)
    else:
        assert "think" not in body["meta_info"]


def _outcome(family: Served, flow: Flow) -> str:
    if flow.script == STOPS:
        return "forced" if flow.budget <= len(THOUGHT) else "eos"  # type: ignore[operator]
    if flow.script == AGAIN:
        return "forced" if flow.budget == CUT_AGAIN else "eos"
    return "natural"


@pytest.mark.parametrize("flow", [flow for flow in FLOWS if flow.how], ids=str)
def test_chat_in_other_ways(family: Served, flow: Flow) -> None:
    """DeepSeek V4's encoder closes the block in front of a message that goes on."""
    body = _asked(family, flow)
    assert isinstance(body, tuple), body
    choices, usage = body
    closed = flow.how == "goes on" and family.shape.parser.startswith("deepseek-v4")
    for said in choices.values():
        thought, answer = (re.findall(r"[a-z]\d", text) for text in (said.thought, said.answer))
        written = ["w1", "w2"] if flow.how != "goes on" else []
        together = flow.how == "together" or family.shape.parser == "minimax-append-think"
        behind = [] if closed else ["y1", "y2"]
        assert (thought, answer) == (([], [*written, *behind]) if together else (written, behind))
        assert said.finish == "stop"
        assert flow.how != "held" or said.pieces <= 1 or FAMILIES[family.shape.parser].protocol
    assert {think["outcome"] for think in usage["think"]["choices"]} == {
        "none" if closed else "eos" if flow.how == "goes on" else "forced"}


@pytest.mark.parametrize("flow", [flow for flow in FLOWS if flow.chat and not flow.how], ids=str)
def test_chat(family: Served, flow: Flow) -> None:
    """Two choices, in a stream or not: thinking and answer, or a tool call, each in its place."""
    body = _asked(family, flow)
    assert isinstance(body, tuple), body
    choices, usage = body
    budget = family.budget(flow)
    assert sorted(choices) == [0, 1]
    assert usage["think"]["tokens"] <= 2 * budget  # type: ignore[operator]
    cut = flow.script == CALLS and budget == 1 and bool(family.shape.header)  # what follows is the answer's header
    for said in choices.values():
        if family.shape.parser == "minimax-append-think":
            said.take_apart(*family.shape.opening, *family.shape.end)
        if flow.script in (CALLS, CALLS_INSIDE) and (said.call or not cut):
            assert (said.call, json.loads(said.arguments), said.finish) == ("look", {"n": 1}, "tool_calls")
            assert not said.answer.strip()
        else:
            assert re.findall(r"[a-z]\d", said.answer)[-2:] == ["y1", "y2"]
            assert said.finish == "stop"
        if flow.script != AGAIN:
            thought = {STOPS: THOUGHT[:budget], ENDS: ["n1 ", "n2 "], CALLS: ["t1 "], CALLS_INSIDE: ["u1 "]}
            assert said.thought.split() == [piece.strip() for piece in thought[flow.script]]
            assert said.call or len(said.answer.split()) == 2
    assert {think["outcome"] for think in usage["think"]["choices"]} == {
        "implicit" if flow.script == CALLS_INSIDE else "forced" if flow.script == CALLS and budget == 1 else
        _outcome(family, flow)}
    assert usage["completion_tokens_details"]["reasoning_tokens"] or not flow.budget


def test_every_row_has_a_shape() -> None:
    assert {FAMILIES[shape.parser] for shape in SHAPES.values()} == set(FAMILIES.values())
