"""A grammar begins where the budget sees the end, in any tokenization, and can be taken back."""

from __future__ import annotations

import pytest
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang_ext.patches.reasoner_grammar import follow

from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.byte_rules import Markers
from sglang_ext.budget.families import FAMILIES

PIECES = [b"<eos>", b"<think>", b"</think>", b"</", b"think", b">", b">\n", b"a", b"<tool_call>", b"{", b" b"]
EOS, START, END, SLASH, THINK, BRACKET, BREAK, A, TOOL, BRACE, B = range(len(PIECES))


class Recorder(BaseGrammarObject):
    """A grammar that takes every token."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def accept_token(self, token: int) -> None:
        self.taken.append(token)

    def rollback(self, k: int) -> None:
        del self.taken[len(self.taken) - k :]


def grammar(begin: str = "inside", tools: bool = False) -> tuple[ReasonerGrammarObject, Recorder]:
    automaton = Automaton(Markers.of(FAMILIES["qwen3"], ""), Vocabulary(PIECES, START, (END,), (), (EOS,)))
    word = automaton.block_word(tools=tools) if begin == "inside" else automaton.implied_word(tools=tools)
    inner = Recorder()
    outer = ReasonerGrammarObject(inner, [END])
    outer.maybe_init_reasoning(True)
    follow(outer, automaton, word, tools)
    return outer, inner


@pytest.mark.parametrize("begin", ["inside", "pending"])
@pytest.mark.parametrize("end", [[END], [SLASH, THINK, BRACKET], [SLASH, THINK, BREAK]])
def test_it_begins_behind_the_end(begin: str, end: list[int]) -> None:
    outer, inner = grammar(begin)
    for token in [A, B, *end, A, B]:
        outer.accept_token(token)
    assert inner.taken == [A, B]


def test_a_quoted_tool_marker_does_not_begin_it() -> None:
    outer, inner = grammar(tools=True)
    for token in [A, TOOL, B, END, BRACE]:
        outer.accept_token(token)
    assert inner.taken == [BRACE]


@pytest.mark.parametrize("back", range(7))
def test_tokens_are_taken_back(back: int) -> None:
    tokens = [A, SLASH, THINK, BRACKET, A, B]
    outer, inner = grammar()
    for token in tokens:
        outer.accept_token(token)
    outer.rollback(back)
    for token in tokens[len(tokens) - back :]:
        outer.accept_token(token)
    assert inner.taken == [A, B]
