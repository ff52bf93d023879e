"""Every distinct family of models on a running server, with sglang's own parser: a limit asked for is a limit kept, and
what follows a forced end is the family's answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import servers
from conftest import FLOAT32
from family_models import ANSWER, SHAPES, THOUGHT, Shape, build
from scripted_model import EOS
from transformers import AutoTokenizer

NEW = 60


@dataclass
class Family:
    """A family's server."""

    server: servers.Server
    tokenizer: Any
    shape: Shape

    def pieces(self, ids: list[int]) -> list[str]:
        return [self.tokenizer.convert_ids_to_tokens(i).replace("Ċ", "\n").replace("Ġ", " ") if i > 255 else
                self.tokenizer.decode([i]) for i in ids]

    def generate(self, script: str, budget: Any, **params: Any) -> tuple[list[str], dict[str, Any]]:
        prompt = self.tokenizer.encode(f"<|turn|>{self.shape.prompt}{script}", add_special_tokens=False)
        got = self.server.generate(input_ids=prompt, sampling_params={
            "temperature": 0, "max_new_tokens": NEW, "think_budget": budget, **params})
        return self.pieces(got["output_ids"]), got["meta_info"]["think"]

    def chat(self, script: str, budget: Any, **body: Any) -> Any:
        return self.server.post("/v1/chat/completions", {
            "model": "m", "messages": [{"role": "user", "content": script}], "temperature": 0, "max_tokens": NEW,
            "skip_special_tokens": False, **({} if budget is None else {"think_budget": budget}), **body})


@pytest.fixture(scope="module", params=SHAPES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    shape = SHAPES[request.param]
    folder = build(tmp_path_factory.mktemp("family"), shape)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", shape.parser, *FLOAT32)
    yield Family(server, AutoTokenizer.from_pretrained(folder), shape)
    assert not server.stop()


@pytest.mark.parametrize("budget", [0, 1, 3, 6, 20])
def test_the_answer_begins_where_the_thinking_was_ended(family: Family, budget: int) -> None:
    """Forced ends, a budget of 0, and a model that wants to stop while it thinks."""
    got, think = family.generate("1", budget)
    assert got == family.shape.expected(budget)
    assert think == {"budget": budget, "tokens": min(budget, len(THOUGHT)),
                     "forced_tokens": len(family.shape.end) + len(family.shape.header),
                     "outcome": "forced" if budget <= len(THOUGHT) else "eos"}


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 7])
def test_one_budget_for_all_blocks(family: Family, budget: int) -> None:
    got, think = family.generate("2", budget)
    assert inside(family.shape, got) - think["forced_tokens"] <= budget
    assert think["tokens"] <= budget


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


def inside(shape: Shape, got: list[str]) -> int:
    """How many pieces of a response stand in blocks, the ends included."""
    text, count, since = "", 0, 0 if not shape.opening else None
    for piece in got:
        count += since is not None
        text += piece
        if since is None and text.endswith("".join(shape.opening)):
            since = len(text)
        elif since is not None and text[since:].endswith("".join(shape.end)):
            since = None
    return count


def test_the_scripts_say_something_else_in_the_answer() -> None:
    assert set(THOUGHT).isdisjoint(ANSWER)
    assert EOS not in THOUGHT
