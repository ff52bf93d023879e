"""One request's row while it has no slot, and what its budget will do with the tokens to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .automaton import Automaton
from .contract import UNLIMITED, ThinkBudget
from .kernels.layout import NO_LIMIT, NOT_FORCING, THINKING, Outcome, Word
from .kernels.reference import advance_row, tokens_left


@dataclass
class RequestRow:
    """One request's row while it has no slot: its limits, its own forced sequence, and how far its output has come.

    Attributes:
        words: [WORDS] before the first output token. As no slot is known, the request's own sequence begins right
            after the shared ones, at `shared`.
        program: ids of the request's own forced sequence, or empty.
        shared: length of the shared sequences.
        stride: room for a request's own sequence in a slot.
        budget: what it was made of.
        pair: the pair of markers that the response starts with.
        latest: [WORDS] after `latest_length` output tokens, as they stood in the slot that the request had then.
    """

    words: list[int]
    program: list[int]
    shared: int
    stride: int
    budget: ThinkBudget = field(default_factory=ThinkBudget)
    pair: int = 0
    latest_length: int = 0
    latest: list[int] = field(default_factory=list)

    def note(self, words: list[int], length: int) -> None:
        """Remember a slot's words after `length` output tokens."""
        self.latest, self.latest_length = words, length

    def to_relative(self) -> list[int]:
        """The latest words, free of a slot as `words` are."""
        lifted = list(self.latest)
        for word in (Word.CURSOR, Word.FORCE_START):
            if lifted[word] >= self.shared:
                lifted[word] = self.shared + (lifted[word] - self.shared) % self.stride
        return lifted

    def to_slot(self, words: Sequence[int], start: int) -> list[int]:
        """Words for a slot whose own program starts at `start`."""
        placed = list(words)
        for word in (Word.CURSOR, Word.FORCE_START):
            if placed[word] >= self.shared:
                placed[word] += start - self.shared
        return placed

    def result(self) -> dict[str, Any]:
        """What the client is told about its thinking so far. `budget` is the limit in force, -1 for none."""
        words, most = self.latest or self.words, self.words[Word.MAX]
        outcome = words[Word.OUTCOME]
        if outcome == Outcome.FORCED and words[Word.ASKED]:  # the wall was one that the host asked for
            outcome = words[Word.ASKED]
        return {
            "budget": UNLIMITED if most == NO_LIMIT else most,
            "tokens": words[Word.USED],
            "forced_tokens": words[Word.FORCED],
            "outcome": Outcome(outcome).name.lower(),
        }


@dataclass
class Lookahead:
    """What a request's budget will do with what comes next, as far as the host can tell.

    Attributes:
        words: [WORDS], free of a slot, after the output so far.
        program: shared sequences, then the request's own.
    """

    words: list[int]
    program: Sequence[int]
    automaton: Automaton

    @property
    def left(self) -> int | None:
        """How many tokens the model can choose before the wall; None: no wall is ahead."""
        return tokens_left(self.words) if self.words[Word.AUTO] & THINKING else None

    def forced(self, tokens: Sequence[int]) -> list[bool]:
        """Which of the next tokens, as they stand in the output, the budget writes."""
        words, forced = list(self.words), []
        for token in tokens:
            forced.append(words[Word.CURSOR] != NOT_FORCING)
            advance_row(int(token), words, self.program, self.automaton)
        return forced

    def take(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens, as they stand in the output."""
        for token in tokens:
            advance_row(int(token), self.words, self.program, self.automaton)

    def complete(self, draft: Sequence[int], most: int) -> list[int]:
        """A draft as it can stand in the output: where the budget forces ids, these.

        Args:
            draft: ids that the model may write next.
            most: ids wanted at most.
        """
        words, stands, follows = list(self.words), [], True
        for place in range(most):
            follows = follows and place < len(draft)
            if words[Word.CURSOR] != NOT_FORCING:
                token = self.program[words[Word.CURSOR]]
            elif follows:
                token = draft[place]
            else:
                break
            stands.append(advance_row(int(token), words, self.program, self.automaton))
            follows = follows and stands[-1] == draft[place]
        return stands
