"""Prompts of several kinds, made from word lists and a seed.

Words, numbers and forms are split in two before anything is drawn, so no held-out prompt is ever a training prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

T = TypeVar("T")
_WORDS: dict[str, list[str]] = json.loads(files(__package__).joinpath("words.json").read_text())
KINDS = ("chat", "copying", "code", "numbers")
STYLES = ("chat", "answer", "plain")
"""As the chat template renders it, the same with thinking switched off, and the bare text."""
_STYLE_SHARES = (0.45, 0.4, 0.15)
_HELD_OUT_EVERY = 7
_VERBATIM = ("Repeat", "Copy", "Print", "Echo", "{p}\n\nRepeat")
"""Beginnings of the forms whose right answer is the passage itself."""

HELD_OUT_PASSAGES = [
    "The ferry left at half past six with only eleven passengers on board. Nobody noticed that the smallest of "
    "them had no ticket. She sat by the rail and counted the gulls until the harbour was out of sight.",
    "Please bring two copies of the signed form to room 214 before Thursday. The office closes at noon. If the "
    "door is locked, leave them with Mrs. Halloran at the front desk.",
    "Lentils should be rinsed in cold water first. Fry the onion slowly, add cumin and a little smoked paprika, "
    "then pour in the stock. After twenty minutes stir in the spinach and some lemon juice.",
    "Tenants may keep one cat or two small birds. Dogs need written permission. Bicycles belong in the cellar, "
    "not in the hallway. Quiet hours are from ten in the evening to six in the morning.",
    "Our granddaughter's school moved into the old tannery last spring. The walls still smell of leather when it "
    "rains. The pupils have painted the chimney orange, and a stork has taken it for its own.",
    "Before the update, the printer answered within a second. Now it waits, blinks twice and prints an empty "
    "page. We replaced the cable and the toner; neither helped. The log shows error 0x61011bed.",
]
"""What held-out copying prompts quote, beside records."""


@dataclass(frozen=True)
class Prompt:
    """One prompt; `style` is one of STYLES."""

    kind: str
    style: str
    text: str

    def render(self, tokenizer: Any) -> str:
        """The text as the target is given it. Without a chat template it is always the bare text."""
        if self.style == "plain" or not getattr(tokenizer, "chat_template", None):
            return self.text
        extra = {"enable_thinking": False} if self.style == "answer" else {}
        turn = [{"role": "user", "content": self.text}]
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True, **extra))


class PromptMaker:
    """A stream of prompts that a seed determines.

    Args:
        seed: same seed, same prompts.
        held_out: draw from the words, forms and numbers that training never draws from.
        passages: texts that copying prompts quote, beside records made here; may be empty.
    """

    def __init__(self, seed: int, *, held_out: bool = False, passages: Sequence[str] = ()) -> None:
        self._chance = random.Random(f"{seed} {held_out}")
        self._held_out = held_out
        self._passages = passages

    def make(self, kind: str, style: str | None = None) -> Prompt:
        """A prompt of a kind, in a style of its own choice unless one is given."""
        makers: dict[str, Callable[[bool], str]] = {
            "chat": self._chat, "copying": self._copying, "code": self._code, "numbers": self._numbers}
        if kind not in makers:
            raise ValueError(f"kind {kind!r}: accepted are {', '.join(KINDS)}")
        style = style or self._chance.choices(STYLES, _STYLE_SHARES)[0]
        return Prompt(kind, style, makers[kind](style == "plain"))

    def passage(self) -> str:
        """Something worth copying: sentences of a given text, or a record."""
        if self._passages and self._chance.random() < 0.6:
            return self._sentences(self._chance.choice(self._passages))
        return self._record()

    def echo(self) -> tuple[str, str]:
        """A request to repeat a passage, and the passage: text to train on that needs no target."""
        passage = self.passage()
        forms = [form for form in self._of(_WORDS["copies"]) if form.startswith(_VERBATIM)]
        return self._chance.choice(forms).format(p=passage), passage

    def repeats(self) -> tuple[str, str]:
        """One to three passages, and the same again, in an order of their own."""
        passages = [self.passage() for _ in range(self._chance.randint(1, 3))]
        glue = self._chance.choice(["\n", "\n\n", " "])
        again = self._chance.sample(passages, len(passages)) * self._chance.randint(1, 2)
        return glue.join(passages) + glue, glue.join(again)

    def _of(self, values: Sequence[T]) -> list[T]:
        """This side of the split of a list."""
        return [v for i, v in enumerate(values) if (i % _HELD_OUT_EVERY == 0) == self._held_out]

    def _pick(self, values: Sequence[T]) -> T:
        return self._chance.choice(self._of(values))

    def _number(self, low: int, high: int) -> int:
        """A number of this side of the split: multiples of seven are held out."""
        while True:
            value = self._chance.randint(low, high)
            if (value % _HELD_OUT_EVERY == 0) == self._held_out:
                return value

    def _chat(self, plain: bool) -> str:
        form = self._pick(_WORDS["openings"] if plain else _WORDS["questions"])
        return form.format(x=self._pick(_WORDS["topics"]), y=self._pick(_WORDS["topics"]))

    def _code(self, plain: bool) -> str:
        if plain:
            return self._pick(_WORDS["stubs"]).format(x=self._pick(_WORDS["tasks"]))
        language = self._chance.choice(_WORDS["languages"])
        return self._pick(_WORDS["requests"]).format(l=language, x=self._pick(_WORDS["tasks"]))

    def _copying(self, plain: bool) -> str:
        return self._pick(_WORDS["echoes"] if plain else _WORDS["copies"]).format(p=self.passage())

    def _numbers(self, plain: bool) -> str:
        task, start = self._chance.choice([self._count, self._table, self._sequence, self._sum, self._people])()
        return start if plain else f"{task}\n\n{start}" if self._chance.random() < 0.4 else task

    def _count(self) -> tuple[str, str]:
        first, step = self._number(1, 300), self._chance.choice([1, 1, 1, 2, 3, 5, 10])
        end = first + step * self._chance.randint(10, 30)
        task = f"Count from {first} to {end}" + (f" in steps of {step}." if step > 1 else ".")
        return task, ", ".join(str(first + step * i) for i in range(4)) + ","

    def _table(self) -> tuple[str, str]:
        factor, sign = self._number(2, 60), self._chance.choice(["x", "*", "+"])
        lines = [f"{factor} {sign} {i} = {factor + i if sign == '+' else factor * i}" for i in (1, 2, 3)]
        return f"Write the table of {factor} {sign} 1 to {factor} {sign} 20, one line each.", "\n".join(lines) + "\n"

    def _sequence(self) -> tuple[str, str]:
        first, step, many = self._number(1, 90), self._chance.randint(2, 12), self._chance.randint(10, 25)
        shown = [str(first + step * i) for i in range(5)]
        task = f"Write the next {many} numbers of this sequence: {', '.join(shown)}"
        return task, self._chance.choice(["\n", ", ", " "]).join(shown)

    def _sum(self) -> tuple[str, str]:
        values = [self._number(1, 99) for _ in range(self._chance.randint(3, 8))]
        verb = self._chance.choice(["Add these numbers", "Sort these numbers", "Find the largest of these numbers",
                                    "Double each of these numbers"])
        return f"{verb}: {', '.join(map(str, values))}", " + ".join(map(str, values)) + " ="

    def _people(self) -> tuple[str, str]:
        rows = [(self._pick(_WORDS["names"]), self._number(18, 90), self._pick(_WORDS["places"])) for _ in range(5)]
        text = "; ".join(f"{n}, {a}, {p}" for n, a, p in rows)
        head = "| Name | Age | City |\n| --- | --- | --- |\n"
        table = head + "".join(f"| {n} | {a} | {p} |\n" for n, a, p in rows[:2])
        return f"Make a table with name, age and city of these people: {text}.", table

    def _sentences(self, text: str) -> str:
        """A few sentences or lines in a row, at most 300 characters."""
        lines = text.strip().splitlines()
        sentences = [s for line in lines for s in line.replace(". ", ".\n").splitlines() if s.strip()]
        if not sentences:
            return self._record()
        start = self._chance.randrange(len(sentences))
        taken = sentences[start : start + self._chance.randint(1, 4)]
        return " ".join(taken)[:300].strip()

    def _record(self) -> str:
        name, place, thing = self._pick(_WORDS["names"]), self._pick(_WORDS["places"]), self._pick(_WORDS["things"])
        color, number = self._chance.choice(_WORDS["colors"]), self._number(10, 9999)
        letters = "".join(self._chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789abcdefhknrstxz", k=10))
        some = [self._pick(_WORDS["things"]) for _ in range(self._chance.randint(3, 9))]
        row = {"name": name, "city": place, self._pick(_WORDS["things"]): number, "code": letters}
        return self._chance.choice([
            f"{name} from {place} bought {number} {color} {thing}s and paid with the code {letters}.",
            json.dumps(row), json.dumps(row, indent=2), ", ".join(some), "\n".join(f"- {s}" for s in some),
            "\n".join(f"{i}. {s} {self._number(1, 500)}" for i, s in enumerate(some, 1)),
            " ".join(str(self._number(1, 9999)) for _ in some), " ".join(some), f"{thing}_{letters} = {number}",
            f"Dear {name}, the {color} {thing} is in {place}. Please call {number} before you send the {some[0]}.",
        ])


def held_out(count: int, seed: int = 0) -> list[Prompt]:
    """So many prompts of each kind that training never sees. Of copying, those that ask for the passage itself."""
    maker, prompts = PromptMaker(seed, held_out=True, passages=HELD_OUT_PASSAGES), []
    for kind in KINDS:
        for _ in range(count):
            prompt = maker.make(kind)
            copies = kind == "copying" and prompt.style != "plain"
            prompts.append(Prompt(kind, prompt.style, maker.echo()[0]) if copies else prompt)
    return prompts
