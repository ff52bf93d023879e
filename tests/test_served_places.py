"""Where a block opens and ends in a family of tags: what sglang's parser calls thinking was counted and limited, and
what is quoted is text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import servers
from scripted_model import EOS, TURN, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer

pytestmark = pytest.mark.served

LOOP = ["loop", "lo", "loo", "loop"]
CALL = '{"name": "look", "arguments": {"n": 1}}'
SCRIPTS = Scripts(
    [
        ["</think>", "\n\n", "says ", "</", "think", ">", " end", EOS],
        ["1", "a", "</think><think>", "b", "c", *LOOP],
        ["2", "ans", TURN, "<think>", "idea", *LOOP],
        ["3", " ", "<think>"],
        ["4", "w1 ", "w2 ", "w3 ", "w4 ", EOS],
        ["5", "hm ", "<tool_call>", " is ", "a tag ", *LOOP],
        ["6", "hmm ", "<tool_call>!", EOS],
        ["7", "so ", "<tool_call>\n", CALL, "\n</tool_call>", EOS],
        ["8", "the tag ", "<think>,", "is text", EOS],
        ["9", "x ", "</th", "ink>", "y"],
    ],
    added=["<think>", "</think>"],
)
TEMPLATE = ("<|turn|>{% if opened is not defined %}<think>{% endif %}{{ messages[-1]['content'] }}"
            "{% if enable_thinking is defined and not enable_thinking %}{% endif %}"
            "{% if false %}</think>\\n\\n{% endif %}")
SAYS = "says </think> end"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {
    "name": "n", "schema": {"enum": ["yes", "no"]}}}}
NOT_OPENED = {"chat_template_kwargs": {"opened": False}}


@dataclass
class Model:
    """The server, asked in pieces and in messages."""

    server: servers.Server
    tokenizer: Any

    def generate(self, prompt: str, budget: Any, new: int = 24, **params: Any) -> tuple[str, dict[str, Any]]:
        got = self.server.generate(text=prompt, sampling_params={
            "temperature": 0, "max_new_tokens": new, "think_budget": budget, **params})
        text = self.tokenizer.decode(got["output_ids"])
        return text, got["meta_info"].get("think", {})

    def chat(self, content: str, budget: Any, stream: bool = False, **body: Any) -> tuple[str, str, dict[str, Any]]:
        """Thinking, answer and usage of a chat."""
        messages = body.pop("messages", [{"role": "user", "content": content}])
        body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 40, "stream": stream, **body,
                **({"stream_options": {"include_usage": True}} if stream else {}),
                **({} if budget is None else {"think_budget": budget})}
        response = self.server.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        if not stream:
            message = response.json()["choices"][0]["message"]
            self.calls = message.get("tool_calls")
            return message.get("reasoning_content") or "", message["content"] or "", response.json()["usage"]
        chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        self.calls = [call for d in deltas for call in d.get("tool_calls") or []]
        return ("".join(d.get("reasoning_content") or "" for d in deltas),
                "".join(d.get("content") or "" for d in deltas), next(c["usage"] for c in chunks if c.get("usage")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder: Path = build_scripted_model(tmp_path_factory.mktemp("places"), SCRIPTS, TEMPLATE)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen25",
                            *FLOAT32)
    yield Model(server, AutoTokenizer.from_pretrained(folder))
    assert not server.stop()


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_a_block_right_behind_the_end_of_another(model: Model, budget: int) -> None:
    text, think = model.generate(TURN + "<think>1", budget)
    assert text.startswith("a</think><think>" + "".join(["b", "c", "loop", "lo"][: budget - 2]) + "</think>")
    assert think["tokens"] == budget


@pytest.mark.parametrize("budget", [0, 2])
def test_a_block_right_behind_a_turn(model: Model, budget: int) -> None:
    text, think = model.generate(TURN + "2", budget, ignore_eos=True)
    assert text.startswith("ans" + TURN + "<think>" + "".join(["idea", "loop"][:budget]) + "</think>")
    assert think["tokens"] == budget


@pytest.mark.parametrize("budget", [0, 2])
def test_a_block_behind_white_space(model: Model, budget: int) -> None:
    text, think = model.generate(TURN + "3", budget)
    assert text.startswith(" <think>" + "".join(["idea", "loop"][:budget]) + "</think>")
    assert think["tokens"] == budget


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_what_the_parser_takes_for_thinking_is_limited(model: Model, budget: int, stream: bool) -> None:
    """Thinking is on, and neither the prompt nor the model opens a block: sglang calls the whole response thinking."""
    thought, answer, usage = model.chat("4", budget, stream, **NOT_OPENED)
    assert thought == "".join(["w1 ", "w2 ", "w3 "][:budget])
    assert answer.strip() == SAYS
    assert usage["think"]["tokens"] == budget
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_block_behind_white_space_in_chat(model: Model, stream: bool) -> None:
    thought, answer, usage = model.chat("3", 2, stream, **NOT_OPENED)
    assert (thought.strip(), answer.strip()) == ("idealoop", SAYS)
    assert usage["think"]["tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [False, True])
def test_a_thought_that_quotes_a_tool_marker_goes_on(model: Model, stream: bool, tools: bool) -> None:
    extra = {"tools": [TOOL]} if tools else {}
    thought, answer, usage = model.chat("5", 6, stream, **extra)
    assert thought == "hm <tool_call> is a tag looplo"
    assert answer.strip() == SAYS
    assert usage["think"] == {"budget": 6, "tokens": 6, "forced_tokens": 2, "outcome": "forced"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_after_a_quoted_tool_marker_leaves_an_answer(model: Model, stream: bool) -> None:
    thought, answer, usage = model.chat("6", 9, stream)
    assert (thought, answer.strip(), usage["think"]["outcome"]) == ("hmm <tool_call>!", SAYS, "eos")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [2, 9])
def test_a_tool_call_ends_the_thinking(model: Model, stream: bool, budget: int) -> None:
    """Whatever the budget: what the model calls is its answer."""
    thought, _, usage = model.chat("7", budget + 1, stream, tools=[TOOL])
    assert thought == "so "
    assert model.calls[0]["function"]["name"] == "look"
    assert usage["think"]["outcome"] == "implicit"
    assert usage["think"]["forced_tokens"] == 0


def test_without_tools_a_call_is_a_thought(model: Model) -> None:
    thought, answer, usage = model.chat("7", 9)
    assert thought == f"so <tool_call>\n{CALL}\n</tool_call>"
    assert (answer.strip(), usage["think"]["outcome"]) == (SAYS, "eos")


@pytest.mark.parametrize("content", ["4", "5"])
def test_a_grammar_applies_to_the_answer(model: Model, content: str) -> None:
    """Where the thinking is implied, and where it quotes a tool marker."""
    _, answer, usage = model.chat(content, 3, **SCHEMA, **(NOT_OPENED if content == "4" else {}))
    assert json.loads(answer) in ("yes", "no")
    assert usage["think"]["tokens"] == 3


@pytest.mark.parametrize("budget", [9, -1])
def test_an_end_in_ordinary_pieces_is_the_end_for_the_grammar_too(model: Model, budget: int) -> None:
    thought, answer, usage = model.chat("9", budget, **SCHEMA)
    assert thought == "x "
    assert json.loads(answer) in ("yes", "no")
    assert usage["think"] == {"budget": budget, "tokens": 3, "forced_tokens": 0, "outcome": "natural"}


@pytest.mark.parametrize("budget", [0, 3])
def test_the_answer_may_hold_the_markers_text(model: Model, budget: int) -> None:
    text, think = model.generate(TURN + "<think>loop", budget)
    assert text.endswith(f"</think>\n\n{SAYS}{EOS}")
    assert think["outcome"] == "forced"


@pytest.mark.parametrize("prompt", [
    "What does <think> mean?\n4", "Explain:\n<think>\nis a tag.\n### Response:\n4", f"{TURN}The tag <think> is 4",
    f"{TURN}q{TURN}In short, <think> 4",
])
@pytest.mark.parametrize("budget", [0, 2])
def test_what_a_prompt_quotes_opens_nothing(model: Model, prompt: str, budget: int) -> None:
    assert model.generate(prompt, budget) == ("w1 w2 w3 w4 " + EOS, {
        "budget": budget, "tokens": 0, "forced_tokens": 0, "outcome": "none"})


@pytest.mark.parametrize("stream", [False, True])
def test_a_continued_message_that_quotes_the_marker(model: Model, stream: bool) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The tag <think> is 4"}]
    thought, answer, usage = model.chat("", 2, stream, messages=messages, continue_final_message=True, **NOT_OPENED)
    assert (thought, answer) == ("", "w1 w2 w3 w4 ")
    assert usage["think"]["outcome"] == "none"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tag_in_the_middle_of_a_sentence_is_text(model: Model, stream: bool) -> None:
    off = {"chat_template_kwargs": {"opened": False, "enable_thinking": False}}
    thought, answer, usage = model.chat("8", 0, stream, **off)
    assert (thought, answer) == ("", "the tag <think>,is text")
    assert usage["think"]["outcome"] == "none"


@pytest.mark.parametrize("budget", [-1, 5])
def test_a_grammar_behind_a_prefill_whose_block_is_closed(model: Model, budget: int) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>a</think>4"}]
    thought, answer, _ = model.chat("", budget, messages=messages, continue_final_message=True, **SCHEMA, **NOT_OPENED)
    assert not thought
    assert json.loads(answer) in ("yes", "no")
