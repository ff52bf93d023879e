"""What is asked: questions of the small reasoner, which have one right answer, or the lines of a file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ..demo.reasoner.tasks import KINDS, MOST_TERMS, SERIAL, THOUGHTFUL, Question, make_question
from . import BenchError

LEAST_TERMS = 3
"""Fewest numbers of a question: shorter ones are answered without thinking."""


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda text, answer: text == answer,
    "number": lambda text, answer: re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))[-1:] == [answer],
    "contains": lambda text, answer: answer in text,
}
"""How a response's answer is compared with the right one, both without white space around them; `number` takes the last
number of the response."""


@dataclass(frozen=True)
class Task:
    """A conversation, its kind, and the answer that is right, where that is known."""

    messages: list[dict[str, Any]]
    kind: str = "task"
    answer: str | None = None


def questions(each: int, seed: str = "evaluation") -> list[Question]:
    """`each` questions of every kind with thinking, and a third as many of the others; the same for a seed."""
    rng = Random(seed)
    return [make_question(rng, kind, rng.randint(LEAST_TERMS, MOST_TERMS)) for kind in KINDS
            for _ in range(each if kind in THOUGHTFUL else each // 3)]


def chance(asked: Sequence[Question]) -> float:
    """How often the commonest of all totals is right."""
    totals = Counter(q.answer for q in asked if q.kind in SERIAL)
    return round(max(totals.values()) / totals.total(), 3)


def thoughtful(count: int, seed: str) -> list[Task]:
    """Questions that want thinking, of all lengths, in random order; the same for a seed."""
    rng = Random(seed)
    made = (make_question(rng, rng.choice(THOUGHTFUL), rng.randint(LEAST_TERMS, MOST_TERMS)) for _ in range(count))
    return [task(question) for question in made]


def task(question: Question) -> Task:
    """A question as a conversation."""
    return Task([{"role": "user", "content": question.text}], question.kind, question.answer)


def from_file(path: Path, count: int | None = None) -> list[Task]:
    """The first `count` conversations of a JSONL file: `messages` as in sglang's `openai` data set, `answer` and `kind`
    where there are any. A shorter file is repeated; without a count it is taken once.

    Raises:
        BenchError: a line is no such object, or there is none.
    """
    tasks = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            messages = value["messages"]
        except (json.JSONDecodeError, LookupError, TypeError):
            raise BenchError(f"--dataset: line {number} of {path} is not accepted; accepted: "
                             '{"messages": [...], "answer": "..."}') from None
        tasks.append(Task(messages, str(value.get("kind", "task")), value.get("answer")))
    if not tasks:
        raise BenchError(f"--dataset: {path} has no line; accepted: one conversation a line")
    return tasks if count is None else [tasks[i % len(tasks)] for i in range(count)]
