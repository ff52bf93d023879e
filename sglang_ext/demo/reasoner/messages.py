"""Stop messages: what a server may write into the thinking before it closes it.

The model has to answer after any of them. English ones come from a small grammar, so that hardly one is seen twice;
the rest are loose words and random tokens, which leave nothing to rely on but the end marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from .tasks import WORDS

QWEN: Final = ("Considering the limited time by the user, I have to give the solution based on the thinking directly "
               "now.")
"""Qwen3's sentence for the end of a thinking budget."""

_OPENERS: Final = ("Considering the limited time by the user", "Since the budget is used up", "As time is short",
                   "Because I have no more tokens", "Given the limit on my thinking", "The user wants an answer",
                   "I have thought for long enough", "There is no time left", "My reasoning must end here", "OK",
                   "Wait", "So", "Now", "Well", "Time is up", "The limit is reached", "This has to be enough",
                   "To sum up")
_ACTIONS: Final = ("I have to give the solution based on the thinking directly now", "I will answer now",
                   "I should give my best guess", "let me write the final answer", "I must stop and reply at once",
                   "I have to decide with what I know", "here is what I have found so far", "it is time to respond",
                   "the answer follows", "I need to conclude", "stop thinking and give the result", "finish",
                   "let us go on to the answer", "I will state the result without more thought")
_CLOSERS: Final = (".", "!", "...", "", ":", "?", " Done.", " End of thinking.", " Final answer:")
_BREAKS: Final = ("", "", "", "\n", "\n\n", " ")


def english(rng: Random) -> str:
    """A sentence or two that call for an end."""
    parts = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        joint = rng.choice([", ", ". ", " and ", " - ", "; ", ": ", "\n"])
        halves = [rng.choice(_OPENERS), rng.choice(_ACTIONS)]
        shown = rng.choice([halves, halves, halves[:1], halves[1:]])
        text = joint.join(shown) + rng.choice(_CLOSERS)
        parts.append(text[0].upper() + text[1:])
    return " ".join(parts)


def loose_words(rng: Random) -> str:
    """Words that say nothing."""
    words = rng.choices(WORDS, k=rng.randint(1, 12))
    return rng.choice([str, str.upper, str.title])(" ".join(words))


def stop_message(rng: Random, encode: Callable[[str], list[int]], ordinary: Sequence[int]) -> list[int]:
    """Ids of a random stop message; empty for one in four.

    Args:
        rng: source of randomness.
        encode: tokenizes a text.
        ordinary: ids that are not special tokens.
    """
    draw = rng.random()
    if draw < 0.25:
        return []
    if draw < 0.50:
        return rng.choices(ordinary, k=rng.randint(1, rng.choice([10, 40, 100])))
    text = QWEN if draw < 0.58 else english(rng) if draw < 0.88 else loose_words(rng)
    return encode(rng.choice(_BREAKS) + text + rng.choice(_BREAKS))
