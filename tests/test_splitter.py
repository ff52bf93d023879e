"""A response's text taken apart by the budget's automaton, in any chunks."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.byte_rules import Markers
from sglang_ext.budget.families import FAMILIES
from sglang_ext.budget.prompt import Start
from sglang_ext.budget.splitter import Splitter

CALL = '<tool_call>\n{"name": "f"}\n</tool_call>'
PIECES = ["<think>", "</think>", "<tool_call>", "{", "<th", "ink>", "</", "think>", " ", "\n", "a", "é", "<tool",
          "_call>", "<", "\u00a0", "thought\n", "<|channel>", "<channel|>"]


@cache
def automaton(family: str) -> Automaton:
    pieces = [bytes([b]) for b in range(256)]
    return Automaton(Markers.of(FAMILIES[family], "\n\n"), Vocabulary(pieces, None, (), (), ()))


def split(family: str, begin: str, chunks: list[str], tools: bool = False) -> tuple[str, str]:
    a = automaton(family)
    words = {"inside": a.block_word, "pending": a.implied_word, "outside": a.start_word}
    splitter = Splitter(a, Start(words[begin](tools=tools)), tools)
    parts = [splitter.feed(chunk) for chunk in chunks]
    thought, answer = "".join(part[0] for part in parts), "".join(part[1] for part in parts)
    rest = splitter.rest()
    return (thought + rest, answer) if splitter.thinking else (thought, answer + rest)


@pytest.mark.parametrize(("family", "begin", "tools", "text", "expected"), [
    ("qwen3", "inside", False, "hm</think>\n\nyes", ("hm", "\n\nyes")),
    ("qwen3", "inside", False, "<think>hm</think>yes", ("hm", "yes")),
    ("qwen3", "pending", False, " <think>hm</think>yes", ("hm", "yes")),
    ("qwen3", "pending", False, "hm</think>yes", ("hm", "yes")),
    ("qwen3", "pending", False, "</think>yes", ("", "yes")),
    ("qwen3", "pending", False, "hm", ("hm", "")),
    ("qwen3", "outside", False, "the tag <think> is text", ("", "the tag <think> is text")),
    ("qwen3", "outside", False, "yes\n<think>hm</think>so", ("hm", "yes\nso")),
    ("qwen3", "outside", False, "yes <thi", ("", "yes <thi")),
    ("qwen3", "inside", False, "a <tool_call> b</think>c", ("a <tool_call> b", "c")),
    ("qwen3", "inside", False, f"a {CALL}", (f"a {CALL}", "")),
    ("qwen3", "inside", True, "a <tool_call> b</think>c", ("a <tool_call> b", "c")),
    ("qwen3", "inside", True, f"a {CALL}", ("a ", CALL)),
    ("glm45", "inside", True, "a <tool_call>look\n<arg_key>", ("a ", "<tool_call>look\n<arg_key>")),
    ("gemma4", "outside", False, "<|channel>thought\nhm<channel|>yes", ("hm", "yes")),
    ("gemma4", "outside", False, "x<|channel>thought\nhm<channel|>yes", ("hm", "xyes")),
    ("gemma4", "outside", False, "<|channel>other hm<channel|>yes", ("other hm", "yes")),
    ("kimi", "outside", False, "◁think▷hm◁/think▷yes", ("hm", "yes")),
])
def test_thinking_and_answer(family: str, begin: str, tools: bool, text: str, expected: tuple[str, str]) -> None:
    assert split(family, begin, [text], tools) == expected
    assert split(family, begin, list(text), tools) == expected


@given(st.sampled_from(["qwen3", "glm45", "gemma4"]), st.sampled_from(["inside", "pending", "outside"]), st.booleans(),
       st.lists(st.sampled_from(PIECES), max_size=12), st.data())
def test_chunks_change_nothing(family: str, begin: str, tools: bool, pieces: list[str], data: st.DataObject) -> None:
    text, chunks, at = "".join(pieces), list[str](), 0
    while at < len(text):
        size = data.draw(st.integers(1, 9))
        chunks.append(text[at : at + size])
        at += size
    whole = split(family, begin, [text], tools)
    assert split(family, begin, chunks, tools) == whole
