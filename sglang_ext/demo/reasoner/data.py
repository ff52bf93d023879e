"""Training sequences of the small reasoner, and their batches.

Most show the whole thinking. The others teach what a server with a think budget does: the thinking is cut somewhere,
a stop message and the end marker are written for the model, and it answers. The model never learns to write what a
server writes: no loss there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import torch
from tokenizers import Tokenizer

from ...training import IGNORED
from . import messages, tasks
from .tokenizer import END_THINK, IM_END, THINK

# Shares of questions. The easy kinds are learned from few.
_WEIGHTS: Final = {"sum": 33, "chain": 37, "largest": 8, "count": 8, "say": 5, "fact": 5, "other": 4}
_FULL, _EMPTY = 0.55, 0.05
"""Shares of sequences with the whole thinking and with thinking switched off; the rest is cut."""
_AT_END, _AT_LINE_END = 0.30, 0.60
"""Of the cuts, up to the first come after the complete thinking, up to the second at a line's end. With cuts anywhere
alone the model does not trust a thinking that it was not seen to end, and answers wrong after a complete one."""
_POOL: Final = 64
"""Batches made at a time; sequences of like length share one."""


@dataclass
class Sequence:
    """One training sequence; `labels` are the ids with `IGNORED` where there is no loss."""

    ids: list[int]
    labels: list[int]

    def add(self, ids: list[int], loss: bool) -> None:
        self.ids += ids
        self.labels += ids if loss else [IGNORED] * len(ids)


def prompt(question: str, earlier: Iterable[tuple[str, str]] = (), system: str = "") -> str:
    """A conversation up to the model's turn, as the chat template writes it.

    Args:
        question: what the user says last.
        earlier: questions and answers before it.
        system: text of a system turn; none where empty.
    """
    turns = [("system", system)] if system else []
    for asked, answered in earlier:
        turns += [("user", asked), ("assistant", answered)]
    turns.append(("user", question))
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


class SequenceMaker:
    """Makes random training sequences.

    Args:
        tokenizer: the model's.
        rng: source of randomness; equal states give equal sequences.
    """

    def __init__(self, tokenizer: Tokenizer, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.think, self.end_think, self.end = (tokenizer.token_to_id(t) for t in (THINK, END_THINK, IM_END))
        special = set(tokenizer.get_added_tokens_decoder())
        self.ordinary = [i for i in range(tokenizer.get_vocab_size()) if i not in special]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def make(self, largest: int) -> Sequence:
        """A sequence whose question has at most `largest` numbers."""
        question = self._question(largest)
        sequence = Sequence([], [])
        sequence.add(self.encode(self._prompt(question)), loss=False)
        body = self.encode(thinking(question))
        draw = self.rng.random()
        if draw < _FULL:
            sequence.add([self.think, *body, self.end_think, *self.encode("\n\n")], loss=True)
        elif draw < _FULL + _EMPTY:
            sequence.add([self.think, *self.encode("\n\n"), self.end_think, *self.encode("\n\n")], loss=False)
        else:
            sequence.add([self.think, *body[:self._cut(body)]], loss=True)
            sequence.add(self._forced(), loss=False)
        sequence.add([*self.encode(question.answer), self.end], loss=True)
        return sequence

    def _question(self, largest: int) -> tasks.Question:
        kind = self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        return tasks.make_question(self.rng, kind, self.rng.randint(2, largest))

    def _prompt(self, question: tasks.Question) -> str:
        earlier = []
        if self.rng.random() < 0.08:
            past = (self._question(4) for _ in range(self.rng.randint(1, 3)))
            earlier = [(q.text, q.answer) for q in past]
        system = ""
        if self.rng.random() < 0.08:
            system = self.rng.choice(["", messages.english(self.rng), "You are a helpful assistant."])
        return prompt(question.text, earlier, system)

    def _cut(self, body: list[int]) -> int:
        """How many ids of the thinking come before the cut; 0 is right after the start marker."""
        draw = self.rng.random()
        if draw < _AT_END:
            return len(body) - self.rng.randint(0, 1)
        if draw < _AT_LINE_END:
            line_feed = self.encode("\n")[0]
            return self.rng.choice([0, *(i + 1 for i, token in enumerate(body) if token == line_feed)])
        return self.rng.randint(0, len(body))

    def _forced(self) -> list[int]:
        """What a server writes at a cut: a message or none, perhaps a line feed, the end marker, its line break."""
        message = messages.stop_message(self.rng, self.encode, self.ordinary)
        before = self.encode(self.rng.choice(["", "", "\n", "\n\n"]))
        after = self.encode("\n\n") if self.rng.random() < 0.95 else []
        return [*message, *before, self.end_think, *after]


def thinking(question: tasks.Question) -> str:
    """The text between the markers; an empty line where there is nothing to think."""
    return "\n" + "".join(line + "\n" for line in question.lines) if question.lines else "\n\n"


def batches(maker: SequenceMaker, steps: int, tokens: int, ramp: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Training batches.

    Args:
        maker: makes the sequences.
        steps: how many batches.
        tokens: most tokens of a batch, padding included.
        ramp: how many batches it takes until questions have their full size; they begin with 3 numbers.

    Yields:
        ids and labels, [sequences, length] int64; padded at the right with 0 and `IGNORED`.
    """
    made = 0
    while made < steps:
        largest = min(tasks.MOST_TERMS, 3 + (tasks.MOST_TERMS - 3) * made // max(1, ramp))
        pool = _pool(maker, largest, tokens)[:steps - made]
        yield from map(_padded, pool)
        made += len(pool)


def _pool(maker: SequenceMaker, largest: int, tokens: int) -> list[list[Sequence]]:
    """`_POOL` batches in random order, each of sequences of about the same length."""
    made: list[Sequence] = []
    total = 0
    while total < _POOL * tokens:
        made.append(maker.make(largest))
        total += len(made[-1].ids)
    made.sort(key=lambda s: len(s.ids))
    pool: list[list[Sequence]] = [[]]
    for sequence in made:
        if pool[-1] and (len(pool[-1]) + 1) * len(sequence.ids) > tokens:
            pool.append([])
        pool[-1].append(sequence)
    maker.rng.shuffle(pool)
    return pool


def _padded(batch: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(s.ids) for s in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED)
    for row, sequence in enumerate(batch):
        ids[row, :len(sequence.ids)] = torch.tensor(sequence.ids)
        labels[row, :len(sequence.labels)] = torch.tensor(sequence.labels)
    return ids, labels
