"""Questions of the small reasoner, each with the thinking that leads to its answer.

`sum` and `chain` are serial: each line of the thinking needs the one before, and a model of a few layers cannot do all
of them in one token. `largest` and `count` are helped by thinking. The rest is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

MOST_TERMS: Final = 12
"""Most numbers of a question."""
UNKNOWN: Final = "I do not know."
"""What is answered to a text that is none of the questions."""

WORDS: Final[tuple[str, ...]] = tuple("""
    river stone apple house green table music winter summer window garden silver orange yellow bread water light
    paper cloud forest mountain bridge flower island market morning evening engine letter number doctor teacher
    friend animal horse tiger rabbit monkey kitchen bottle button camera candle carpet castle circle corner cotton
    desert dinner dragon finger flight ground hammer harbor jacket jungle ladder lemon lizard magnet marble meadow
    mirror needle ocean parrot pencil pepper planet pocket potato puzzle rocket saddle salmon school shadow shirt
    spider spoon spring square ticket tomato tunnel valley velvet village violin wagon whale wheel wizard
""".split())  # noqa: SIM905

FACTS: Final = (
    ("What colour is the sky?", "blue"), ("What colour is grass?", "green"), ("What colour is snow?", "white"),
    ("What colour is coal?", "black"), ("What colour is a lemon?", "yellow"),
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Italy?", "Rome"), ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Spain?", "Madrid"), ("What is the capital of Egypt?", "Cairo"),
    ("What is the capital of Germany?", "Berlin"), ("What is the capital of England?", "London"),
    ("How many days are in a week?", "7"), ("How many months are in a year?", "12"),
    ("How many hours are in a day?", "24"), ("How many legs has a spider?", "8"), ("How many legs has a dog?", "4"),
    ("What does a cow drink?", "water"), ("What does a bee make?", "honey"), ("What do we breathe?", "air"),
    ("Who are you?", "A small model that thinks aloud."), ("Hello!", "Hello!"),
)


@dataclass(frozen=True)
class Question:
    """A question and its solution.

    Attributes:
        kind: name of the kind, a key of `KINDS`.
        size: how many numbers it has; 1 where that means nothing.
        text: what the user says.
        lines: the thinking, line by line; empty where none is needed.
        answer: what the model says.
    """

    kind: str
    size: int
    text: str
    lines: tuple[str, ...]
    answer: str


def _total(kind: str, terms: list[int], text: str) -> Question:
    """A running total over signed terms: `17`, `+23=40`, `-5=35`."""
    lines, total = [str(terms[0])], terms[0]
    for term in terms[1:]:
        total += term
        lines.append(f"{term:+d}={total}")
    return Question(kind, len(terms), text, tuple(lines), str(total))


def _sum(rng: Random, size: int) -> Question:
    terms = [rng.randint(1, 99) for _ in range(size)]
    if rng.random() < 0.5:
        return _total("sum", terms, f"Add {', '.join(map(str, terms))}.")
    joint = rng.choice(["+", " + "])
    return _total("sum", terms, f"What is {joint.join(map(str, terms))}?")


def _chain(rng: Random, size: int) -> Question:
    """Additions and subtractions from left to right, never below zero."""
    terms = [rng.randint(1, 99)]
    total = terms[0]
    for _ in range(size - 1):
        term = rng.randint(1, 99)
        terms.append(-term if term <= total and rng.random() < 0.5 else term)
        total += terms[-1]
    space = rng.choice(["", " "])
    signed = "".join(f"{space}{'+' if t > 0 else '-'}{space}{abs(t)}" for t in terms[1:])
    return _total("chain", terms, f"What is {terms[0]}{signed}?")


def _largest(rng: Random, size: int) -> Question:
    numbers = rng.sample(range(1, 100), size)
    lines = [f"{n}:{max(numbers[:i + 1])}" for i, n in enumerate(numbers)]
    text = f"What is the largest of {', '.join(map(str, numbers))}?"
    return Question("largest", size, text, tuple(lines), str(max(numbers)))


def _count(rng: Random, size: int) -> Question:
    numbers = rng.sample(range(1, 100), size)
    bound = rng.randint(1, 98)
    lines = [f"{n}:{sum(m > bound for m in numbers[:i + 1])}" for i, n in enumerate(numbers)]
    text = f"How many of {', '.join(map(str, numbers))} are above {bound}?"
    return Question("count", size, text, tuple(lines), str(sum(n > bound for n in numbers)))


def _say(rng: Random, size: int) -> Question:
    word = rng.choice(WORDS)
    return Question("say", 1, f'Say "{word}".', (), word)


def _fact(rng: Random, size: int) -> Question:
    text, answer = rng.choice(FACTS)
    return Question("fact", 1, text, (), answer)


def _other(rng: Random, size: int) -> Question:
    """Some words that ask nothing this model knows."""
    opener = rng.choice(["What is", "How many", "Tell me", "Why does", "Who", "Please", "Write", "Is", "The", ""])
    words = rng.choices(WORDS, k=rng.randint(1, 12))
    text = f"{opener} {' '.join(words)}{rng.choice(['?', '.', '!', ''])}".strip()
    return Question("other", 1, text, (), UNKNOWN)


KINDS: Final[dict[str, Callable[[Random, int], Question]]] = {
    "sum": _sum, "chain": _chain, "largest": _largest, "count": _count, "say": _say, "fact": _fact, "other": _other}
SERIAL: Final = ("sum", "chain")
"""Kinds that cannot be answered without thinking, from three terms on."""
THOUGHTFUL: Final = (*SERIAL, "largest", "count")
"""Kinds that have thinking."""


def make_question(rng: Random, kind: str, size: int) -> Question:
    """A random question.

    Args:
        rng: source of randomness.
        kind: a key of `KINDS`.
        size: how many numbers, 2 to `MOST_TERMS`; kinds without thinking take no notice.

    Raises:
        ValueError: an unknown kind, or a size out of range.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: accepted are {', '.join(KINDS)}")
    if not 2 <= size <= MOST_TERMS:
        raise ValueError(f"size {size}: accepted are 2 to {MOST_TERMS}")
    return KINDS[kind](rng, size)
