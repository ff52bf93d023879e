"""Every distinct family of models on a running server, with sglang's own parser: a limit asked for is a limit kept, and
what follows a forced end is the family's answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import servers
from family_models import EOS, SHAPES, THOUGHT, Shape, build
from safetensors.torch import load_file
from servers import FLOAT32
from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES
from transformers import AutoTokenizer

pytestmark = pytest.mark.served
NEW = 60


@dataclass
class Family:
    """A family's server."""

    server: servers.Server
    tokenizer: Any
    shape: Shape
    successor: list[int]

    def generate(self, script: str, budget: Any, **params: Any) -> tuple[list[str], dict[str, Any]]:
        """What the model writes, token by token, and its think object."""
        prompt = self.tokenizer.encode(f"<|turn|>{self.shape.prompt}{script}", add_special_tokens=False)
        got = self.server.generate(input_ids=prompt, sampling_params={
            "temperature": 0, "max_new_tokens": NEW, "think_budget": budget, **params})
        return [self.tokenizer.decode([i]) for i in got["output_ids"]], got["meta_info"]["think"]

    def chat(self, script: str, budget: Any, **body: Any) -> Any:
        return self.server.post("/v1/chat/completions", {
            "model": "m", "messages": [{"role": "user", "content": script}], "temperature": 0, "max_tokens": NEW,
            "skip_special_tokens": False, **({} if budget is None else {"think_budget": budget}), **body})


@pytest.fixture(scope="module", params=SHAPES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    shape = SHAPES[request.param]
    if shape.parser not in REASONING_PARSER_NAMES:
        pytest.skip(f"this release of sglang has no parser {shape.parser}")
    folder = build(tmp_path_factory.mktemp("family"), shape)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", shape.parser, *FLOAT32)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    yield Family(server, AutoTokenizer.from_pretrained(folder), shape, head.argmax(0).tolist())
    assert not server.stop()


@pytest.mark.parametrize("budget", [0, 1, 3, 6, 20])
def test_the_answer_begins_where_the_thinking_was_ended(family: Family, budget: int) -> None:
    """Forced ends, a budget of 0, and a model that wants to stop while it thinks."""
    got, think = family.generate("1", budget)
    assert "".join(got) == family.shape.expected(budget)
    assert (think["tokens"], think["outcome"]) == (min(budget, len(THOUGHT)),
                                                   "forced" if budget <= len(THOUGHT) else "eos")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 2, 20])
def test_chat_finds_the_answer_in_content(family: Family, budget: int, stream: bool) -> None:
    response = family.chat("1", budget, n=2, stream=stream, stream_options={"include_usage": True} if stream else None)
    assert response.status_code == 200, response.text
    said, usage = read(response, stream)
    for reasoning, content in said.values():
        assert reasoning.strip() == "".join(THOUGHT[:budget]).strip()
        assert content.strip() == "".join(family.shape.answer).strip()
    assert usage["think"]["tokens"] == 2 * min(budget, len(THOUGHT))


def test_without_a_budget_the_model_writes_what_it_wants(family: Family) -> None:
    for script in ("1", "".join(family.shape.opening) + "2"):
        prompt = family.tokenizer.encode(f"<|turn|>{family.shape.prompt}{script}", add_special_tokens=False)
        got = family.server.generate(input_ids=prompt, sampling_params={"temperature": 0, "max_new_tokens": NEW})
        ids = got["output_ids"]
        assert ids == [family.successor[i] for i in (prompt[-1], *ids[:-1])]
        assert "think" not in got["meta_info"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_natural_end_and_a_cut_in_the_second_block(family: Family, stream: bool) -> None:
    """Where the model's end leads it into another block, the budget ends that one; else the answer is its own."""
    shape = family.shape
    script, first = "".join(shape.opening) + "2", "n1 " + "".join(shape.end)
    budget = 1 + len(shape.end) + 2
    free, _ = family.generate(script, -1)
    got, think = family.generate(script, budget)
    text = "".join(free)
    assert text.startswith(first)
    if shape.opening and "".join(shape.opening) in text[len(first) :]:
        text = text[: text.index(THOUGHT[2])] + "".join([*shape.end, *shape.header, *shape.answer, EOS])
        assert (think["tokens"], think["outcome"]) == (budget, "forced")
    else:
        assert (think["tokens"], think["outcome"]) == (budget - 2, "natural")
    assert "".join(got) == text
    response = family.chat(script, budget, n=2, stream=stream,
                           stream_options={"include_usage": True} if stream else None)
    said, usage = read(response, stream)
    thought = "n1" + ("w1w2" if think["outcome"] == "forced" else "")
    for reasoning, content in said.values():
        assert "".join(reasoning.split()) == thought
        assert content.strip() == "".join(shape.answer).strip()
    assert usage["think"]["tokens"] == 2 * think["tokens"]


def read(response: Any, stream: bool) -> tuple[dict[int, list[str]], dict[str, Any]]:
    """Thinking and answer of each choice, and the usage."""
    if not stream:
        body = response.json()
        return {c["index"]: [c["message"].get("reasoning_content") or "", c["message"]["content"] or ""]
                for c in body["choices"]}, body["usage"]
    said: dict[int, list[str]] = {}
    usage: dict[str, Any] = {}
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            texts = said.setdefault(choice["index"], ["", ""])
            texts[0] += choice["delta"].get("reasoning_content") or ""
            texts[1] += choice["delta"].get("content") or ""
    return said, usage
