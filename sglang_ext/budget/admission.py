"""From a request to the row that a slot gets: what a served model's budgets need on the host. No engine is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .automaton import MESSAGE_IDS, Automaton
from .contract import UNLIMITED, BudgetError, Limits, ThinkBudget, one_of, shown
from .families import PLAIN, Family
from .kernels.layout import (
    AUTO_MASK,
    INSIDE,
    NO_LIMIT,
    NOT_FORCING,
    PENDING,
    WORDS,
    Event,
    Flag,
    Outcome,
    Word,
)
from .kernels.reference import lookup, start_forcing_if_due, tokens_left
from .prompt import Request, Start, start_of
from .row import Lookahead, RequestRow

UNKNOWN_MARKERS = ("this model's thinking markers are unknown (the server can be told with --reasoning-parser, or "
                   "--think-start and --think-end)")


class Admission:
    """Checks requests' budgets and makes their rows, for one served model.

    Args:
        limits: the operator's default and ceiling.
        automaton: the lifted automaton; None if budgets cannot be enforced, then every limited one is refused.
        encode: text to ids that write exactly that text in the middle of a sequence; ValueError if impossible.
        reason: why there is no automaton, for the refusal.
        family: the model's row.
    """

    def __init__(self, limits: Limits, automaton: Automaton | None, encode: Callable[[str], list[int]],
                 reason: str = UNKNOWN_MARKERS, family: Family = PLAIN) -> None:
        self.limits = limits
        self.automaton = automaton
        self.family = family
        self._reason = reason
        self._message_ids = lru_cache(maxsize=256)(lambda text: self._checked_message(text, encode))

    @property
    def stride(self) -> int:
        """Most ids of one request's own forced sequence, terminator included."""
        if self.automaton is None:
            return MESSAGE_IDS + 1
        return self.automaton.spacing * len(self.automaton.pairs)

    def admit(self, given: list[tuple[str, Any]], max_new_tokens: int | None) -> ThinkBudget | None:
        """The budget of a request, or None if it has none and the server sets none.

        Args:
            given: every spelling in the request, with its name.
            max_new_tokens: most tokens of the response; None if it is bounded by the context alone.

        Raises:
            BudgetError: naming field, value and what is accepted.
        """
        budget = one_of(given, self.limits)
        if budget is None:
            default = self.limits.default
            return default if default is not None and default.limited else None
        name = given[0][0]
        if not budget.limited and not self.automaton:
            return None
        if self.automaton is None:
            raise BudgetError(f"{name}: {shown(given[0][1])} cannot be enforced: {self._reason}; "
                              "accepted: -1 (no limit)")
        self.message_ids(budget, name=name)
        default = self.limits.default
        own_reserve = budget.answer_tokens and (default is None or budget.answer_tokens != default.answer_tokens)
        if own_reserve and max_new_tokens is not None:
            self._check_reserve(budget, max_new_tokens, name)
        return budget

    def start(self, prompt: Sequence[int], request: Request | None = None) -> Start | None:
        """How the response to a prompt starts; None where the markers are unknown."""
        return None if self.automaton is None else start_of(self.automaton, prompt, request or Request())

    def opens_block(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt leaves a thinking block open."""
        start = self.start(prompt)
        return start is not None and start.open

    def message_ids(self, budget: ThinkBudget, message: str | None = None,
                    name: str = "think_budget") -> tuple[int, ...]:
        """Ids of the stop message that is given, else of the budget's.

        Raises:
            BudgetError: the message cannot be forced as it is.
        """
        text = budget.message if message is None else message
        try:
            return self._message_ids(self.limits.message if text is None else text)
        except ValueError as error:
            raise BudgetError(f"{name}.message: {error}") from None

    def _checked_message(self, text: str, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
        assert self.automaton is not None
        if not text:
            return ()
        ids = encode(text)
        vocabulary, pairs = self.automaton.vocabulary, self.automaton.pairs
        markers = {text.decode() for pair in pairs for text in (pair.start, pair.end)}
        not_text = [i for i in ids if i in vocabulary.turn_ids and vocabulary.pieces[i].decode() not in markers]
        if not_text:
            raise ValueError(f"holds the control token {vocabulary.pieces[not_text[0]].decode()!r}; accepted: text")
        if len(ids) > MESSAGE_IDS:
            raise ValueError(f"{len(ids)} tokens is too long; accepted: at most {MESSAGE_IDS} tokens")
        closing = [*ids, *vocabulary.end_ids]
        held = any(end in text.encode() for pair in pairs for end in (pair.end, *(i.marker for i in pair.implicit)))
        for i, events in enumerate(self._events_inside(closing)):
            if held or bool(events & (Event.CLOSE | Event.IMPLICIT)) != (i == len(closing) - 1):
                raise ValueError("holds a marker that ends thinking; the end marker is added by itself")
        return tuple(ids)

    def _events_inside(self, ids: Sequence[int]) -> list[int]:
        assert self.automaton is not None
        auto, events = self.automaton.block_word(), []
        for token in ids:
            entry = lookup(self.automaton, auto, token)
            auto = entry & AUTO_MASK
            events.append(entry)
        return events

    def _check_reserve(self, budget: ThinkBudget, max_new_tokens: int, name: str) -> None:
        closing = self.closing(self._drop_message_if_no_room(budget, max_new_tokens))
        room = max_new_tokens - closing
        if (budget.answer_tokens or 0) > room:
            raise BudgetError(
                f"{name}.answer_tokens: {budget.answer_tokens} does not fit into max_new_tokens {max_new_tokens} "
                f"beside the {closing} tokens that close the thinking; accepted: 0 to {max(0, room)}"
            )

    def _with_reserve(self, budget: ThinkBudget, max_new_tokens: int | None) -> ThinkBudget:
        """The budget with its reserve in tokens. Only a request's own message takes room from the reserve."""
        least = self.closing(replace(budget, message=budget.message or ""))
        return replace(budget, answer_tokens=budget.reserve(max_new_tokens, least))

    def _drop_message_if_no_room(self, budget: ThinkBudget, max_new_tokens: int | None) -> ThinkBudget:
        """The budget without the server's own stop message, where that would leave no room for an answer or for any
        thinking. A budget of 0 has no message either: there was no thinking to comment on."""
        if budget.message is not None or not self.limits.message:
            return budget
        if budget.max_tokens == 0:
            return replace(budget, message="")
        if max_new_tokens is None:
            return budget
        reserve = budget.answer_tokens or 0
        needed = self.closing(budget) + max(1, reserve)
        least = 1 if reserve or budget.max_tokens == UNLIMITED else budget.max_tokens
        return budget if least + needed <= max_new_tokens else replace(budget, message="")

    def closing(self, budget: ThinkBudget) -> int:
        """How many ids closing a block takes: message, end marker, line break."""
        assert self.automaton is not None
        return len(self.message_ids(budget)) + len(self.automaton.end_ids(0)) - 1

    def row(self, budget: ThinkBudget, prompt: Sequence[int], max_new_tokens: int | None, *, ignore_eos: bool = False,
            grammar: bool = False, request: Request | None = None) -> RequestRow:
        """The row of a request that has produced nothing yet.

        Args:
            prompt: ids of the whole prompt.
            request: what else it says about its thinking.
            ignore_eos: EOS does not end this response, so it says nothing about the thinking either.
            grammar: a grammar starts right after the end marker, so no line break is forced there.
        """
        assert self.automaton is not None
        automaton, start = self.automaton, start_of(self.automaton, prompt, request or Request())
        budget = self._drop_message_if_no_room(self._with_reserve(budget, max_new_tokens), max_new_tokens)
        words = [0] * WORDS
        words[Word.AUTO] = start.word
        words[Word.CURSOR] = NOT_FORCING
        words[Word.OUTCOME] = Outcome.OPEN if words[Word.AUTO] & INSIDE else Outcome.NONE
        most = NO_LIMIT if budget.max_tokens == UNLIMITED else budget.max_tokens
        words[Word.RESPONSE_LIMIT] = NO_LIMIT
        if budget.answer_tokens and max_new_tokens is not None:
            words[Word.RESPONSE_LIMIT] = max(0, max_new_tokens - budget.answer_tokens - self.closing(budget))
        most = min(most, words[Word.RESPONSE_LIMIT])
        words[Word.MAX] = most
        words[Word.MIN] = min(budget.min_tokens, most)
        words[Word.GRACE] = most - budget.grace_tokens if budget.grace_tokens and most != NO_LIMIT else NO_LIMIT
        flags = Flag.ACTIVE
        if budget.limited and not ignore_eos:
            flags |= Flag.EOS_CLOSES
        if grammar:
            flags |= Flag.NO_BREAK
        words[Word.FLAGS] = flags
        message, shared = self.message_ids(budget), len(automaton.program)
        # Where the block is implied and closes at once, its start is written too.
        unsaid = start.word & PENDING and tokens_left(words) <= 0
        program = self.program(message, start.pair if unsaid else None)
        words[Word.FORCE_START] = shared if program else 0
        start_forcing_if_due(words, automaton, chosen=False)
        return RequestRow(words, program, shared, self.stride, budget, start.pair)

    def program(self, message: Sequence[int], unsaid: int | None = None) -> list[int]:
        """A request's own forced sequence: for each pair of markers, what ends its blocks, with a message before it;
        empty where that is the shared one.

        Args:
            unsaid: the pair whose start is to be written too; None: none.
        """
        assert self.automaton is not None
        automaton = self.automaton
        start = automaton.start_ids(unsaid) if unsaid is not None else ()
        if not message and not start:
            return []
        return automaton.side_by_side([[*(start if pair == unsaid else ()), *message, *automaton.end_ids(pair)]
                                       for pair in range(len(automaton.pairs))])

    def rebuilt(self, row: RequestRow, output: Sequence[int]) -> list[int]:
        """Slot-free words after `output`: the ones noted while it was produced, and a replay of the ids since then.

        A replay cannot tell an EOS that was replaced by the end marker from an end that the model wrote.
        """
        return self.lookahead(row, output).words

    def lookahead(self, row: RequestRow, output: Sequence[int]) -> Lookahead:
        """What the row does after `output`; see `rebuilt`."""
        assert self.automaton is not None
        words, since = list(row.words), 0
        if row.latest and row.latest_length <= len(output):
            words, since = row.to_relative(), row.latest_length
        lookahead = Lookahead(words, [*self.automaton.program, *row.program], self.automaton)
        lookahead.take(output[since:])
        return lookahead
