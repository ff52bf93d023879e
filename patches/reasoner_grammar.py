"""`ReasonerGrammarObject`: a grammar begins where the budget sees the thinking end.

sglang waits for the ids of the end marker; the budget and sglang's parsers see the marker in any tokenization.
"""

from __future__ import annotations

import sys
from typing import Any

from sglang_ext.budget.kernels.layout import AUTO_MASK, Event
from sglang_ext.budget.kernels.reference import lookup

from sglang_ext.budget.automaton import Automaton


class EndMatcher:
    """Stands for sglang's `TokenSequenceMatcher`. How far an end stands written is an automaton word, below zero:
    sglang takes it from its own count of the thinking, which must not shrink.

    Args:
        word: at the start of the response.
        events: what ends the thinking.
    """

    def __init__(self, automaton: Automaton, word: int, events: int) -> None:
        self._automaton, self._word, self._events = automaton, word, events

    def __len__(self) -> int:
        return sys.maxsize

    def advance(self, matched: int, token: int) -> int:
        """What stands after a token: the length if the thinking is over, else the word `w` as `-1 - w`; 0 at the
        start."""
        entry = lookup(self._automaton, -1 - matched if matched else self._word, token)
        return len(self) if entry & self._events else -1 - (entry & AUTO_MASK)


def follow(grammar: Any, automaton: Automaton, word: int, tools: bool) -> None:
    """Let the grammar of a request with a budget begin where the budget sees the end.

    Args:
        grammar: sglang's object of the request, or None.
        word: automaton word at the start of the response.
        tools: the request has tools, of which a call may end the thinking.
    """
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    if not isinstance(grammar, ReasonerGrammarObject) or isinstance(grammar._think_end_matcher, EndMatcher):
        return
    if grammar.enable_token_filter or getattr(grammar, "reasoning_in_grammar", False) or _decoding_started(grammar):
        return
    events = Event.CLOSE if tools else Event.CLOSE | Event.IMPLICIT
    grammar._think_end_matcher = EndMatcher(automaton, word, int(events))


def _decoding_started(grammar: Any) -> bool:
    """As sglang asks it before it takes another end; 0.5.22 has no function for it."""
    counts = grammar.tokens_in_think, grammar.tokens_after_end
    return (grammar.current_token is not None or bool(grammar._thinking_match_history)
            or counts not in ((0, -1), (-1, 0)))
