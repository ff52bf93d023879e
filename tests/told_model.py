"""The part of the scripted model that is talked to in text: the prompt's last character chooses what it says.

Every count in a response of it is known: how many tokens it thinks, what is forced, how thinking ends.
"""

from __future__ import annotations

EOS = "<|end|>"
TEMPLATE = ("<|turn|>{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
            "{{ messages[-1]['content'] }}")
"""The last message stands inside the block that the prompt opens, so that its last character is the prompt's."""

THREE = "1"  # thinks three tokens, writes the end marker (three tokens) and answers
LOOP = "2"  # thinks for ever
STOPS = "3"  # thinks one token and wants to stop
PLAIN = "4"  # two tokens, then stops
OPENS = "5"  # writes a line, opens a block, thinks for ever
CLOSE = 3
"""Tokens of the end marker."""

SEQUENCES = [
    [THREE, "one", "two", "three", "</", "think", ">", "\n\n", "answer", EOS],
    [LOOP, "loop", "lo", "loo", "loop"],
    [STOPS, "partly", EOS],
    [PLAIN, "plain", "words", EOS],
    [OPENS, "intro", "\n", "<t", "hin", "k>", "idea", "loop"],
]


def think(budget: int, tokens: int, forced: int, outcome: str) -> dict[str, int | str]:
    """A `think` object."""
    return {"budget": budget, "tokens": tokens, "forced_tokens": forced, "outcome": outcome}
