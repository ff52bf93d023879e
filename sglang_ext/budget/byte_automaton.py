"""The automaton that sees thinking begin and end, on bytes.

Markers are bytes, so a marker is recognised however it is tokenized: as one special id, as several pieces, or with its
last piece merged with the text that follows. Control tokens are more than their bytes: an opening may begin with one,
and right behind one. The automaton is explored once, for every set of rules that a request may have.

What a state knows. Outside a block: how far openings stand written, whether one may begin here, how far the end marker
stands written, and whether nothing but white space stands behind the last end. In a block: how far the end marker and
each implicit end stand written, whether the last byte was a line feed, and how many bytes a character that has begun
still needs. Between: a block that opens with whatever comes next, as nothing else has been written yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from .byte_rules import (
    NEWLINE,
    Begun,
    Headers,
    Markers,
    Matcher,
    begins_a_name,
    byte_kinds,
    solid,
    space_after,
    still_missing,
)
from .byte_states import FRESH, HERE, NOWHERE, ROLE, TURN, Call, Inside, Outside, Pending, State
from .entries import INSIDE, LINE_END, PENDING, STATE_MASK, Event

NOTHING = Event(0)
EVENTS = Event.OPEN | Event.CLOSE | Event.IMPLICIT | Event.END_OUTSIDE | Event.BEGIN


class ByteAutomaton:
    """The automaton over bytes.

    Args:
        pairs: the pairs of markers that a response may have.
        everywhere: openings may begin at any byte; else where a control token begins, beside the places for text.

    Attributes:
        delta: [states, 256] int32, the automaton word after a byte, with its events.
        words: [states] int32, the automaton word of each state.
        control: [states] int32, the state around a control token, before and after its bytes: an opening may begin.
        missing: [states] int32, bytes that a half-written character of a block still needs; at most 3.
        response_start, block_start: state at the start of a response outside a block, and right after a start marker,
            of the first pair.
        rules: what delimits thinking, by request: for each pair of markers, without and with tools, once if equal.
        states: what each state knows.
    """

    def __init__(self, pairs: Markers | Sequence[Markers], everywhere: bool = False) -> None:
        self._pairs = (pairs,) if isinstance(pairs, Markers) else tuple(pairs)
        self.rules = rules = list(dict.fromkeys(r for pair in self._pairs for r in (pair.without_tools(), pair)))
        self._everywhere = everywhere
        self._ends = [Matcher(r.end) for r in rules]
        self._siblings = self._families()
        self._headers = [Headers([rules[i] for i in siblings]) for siblings in self._siblings]
        self._answers = [solid(r.line_break) for r in rules]
        self._index: dict[State, int] = {}
        self.states: list[State] = []
        for i in range(len(self.rules)):
            for state in (self.start_of(i), self.block_of(i), self.implied_of(i)):
                self._number(state)
        self._explore()
        first = self.number_of(0, tools=True)
        self.response_start, self.block_start = (self._index[s] for s in (self.start_of(first), self.block_of(first)))

    def _families(self) -> list[tuple[int, ...]]:
        """For each of the rules, those of a request that has them: its own, then those of the other pairs."""
        found: dict[int, tuple[int, ...]] = {}
        for tools in (False, True):
            numbers = [self.number_of(pair, tools) for pair in range(len(self._pairs))]
            found |= {r: (r, *(n for n in numbers if n != r)) for r in numbers}
        return [found[r] for r in range(len(self.rules))]

    def _explore(self) -> None:
        kinds, spread = np.unique(byte_kinds(self.rules), return_inverse=True)
        rows: list[list[int]] = []
        control: list[int] = []
        while len(rows) < len(self.states):
            state = self.states[len(rows)]
            rows.append([self._entry(state, byte) for byte in kinds.tolist()])
            control.append(self._number(self._around(state)))
        entries = np.array(rows)
        self._shrink(entries & STATE_MASK, entries & ~STATE_MASK, np.array(control), spread)

    @staticmethod
    def _around(state: State) -> State:
        """The state around a control token. A character that is not complete is none, so no white space either."""
        if not isinstance(state, Outside):
            return state
        return replace(state, place=TURN, space=b"", behind=-1 if state.space else state.behind)

    def _shrink(self, after: np.ndarray, events: np.ndarray, control: np.ndarray, spread: np.ndarray) -> None:
        """Make one state of those that nothing tells apart (Moore's algorithm); number them, and write the tables.

        Args:
            after, events: [explored, kinds of bytes] int, the state after a byte, and what happens.
            control: [explored] int, the state around a control token.
            spread: [256] int, kind of each byte.
        """
        kinds: dict[tuple[Any, ...], int] = {}
        group = np.array([kinds.setdefault(self._told(s), len(kinds)) for s in self.states])
        found, told = 0, len(kinds)
        while told > found:
            seen = np.column_stack([group, group[control], group[after] | events]).astype(np.int32)
            numbers: dict[bytes, int] = {}
            group = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in seen])
            found, told = told, len(numbers)
        self._index = {state: int(group[i]) for state, i in self._index.items()}
        first = np.unique(group, return_index=True)[1]
        self.states = [self.states[i] for i in first]
        self.words = np.array([self._word(s) for s in self.states], dtype=np.int32)
        self.delta = (events[first] | self.words[group[after[first]]])[:, spread].astype(np.int32)
        self.control = group[control[first]].astype(np.int32)
        self.missing = np.array([s.missing if isinstance(s, Inside) else 0 for s in self.states], dtype=np.int32)
        self._rows = self.delta.tolist()

    @staticmethod
    def _told(state: State) -> tuple[Any, ...]:
        """What is to be told of a state itself, beside what it leads to."""
        if isinstance(state, Inside):
            return "inside", state.rules, state.end, state.line_end, state.missing
        if isinstance(state, Pending):
            return "pending", state.rules, state.expected, state.written
        return ("outside",)

    def number_of(self, pair: int, tools: bool) -> int:
        """Which of the rules a request has."""
        return self.rules.index(self._pairs[pair] if tools else self._pairs[pair].without_tools())

    def pair_of(self, state: State) -> int:
        """The pair of markers of a state."""
        return next(i for i, pair in enumerate(self._pairs) if pair.end == self.rules[state.rules].end)

    def start_of(self, rules: int) -> State:
        """At the start of a response, or of the assistant's part of a prompt, with no block open."""
        return Outside(rules)

    def implied_of(self, rules: int) -> State:
        """The same where what comes is thinking unless a start marker says where it begins."""
        return Pending(rules, tuple(self.rules[r].start for r in self._siblings[rules]))

    def block_of(self, rules: int, call: bool = False) -> State:
        """Right behind a start marker and its label."""
        fresh = tuple(frozenset[Begun]({0}) for _ in self.rules[rules].implicit)
        return Inside(rules, 0, fresh, False, 0, call)

    def word(self, state: State) -> int:
        """The automaton word of a state that was explored."""
        return int(self.words[self._index[state]])

    def run(self, state: int, data: bytes) -> tuple[int, int]:
        """Feed bytes; return the state reached and all events on the way."""
        events = 0
        for byte in data:
            entry = self._rows[state][byte]
            state, events = entry & STATE_MASK, events | entry & EVENTS
        return state, events

    def _number(self, state: State) -> int:
        if state not in self._index:
            self._index[state] = len(self.states)
            self.states.append(state)
        return self._index[state]

    def _word(self, state: State) -> int:
        index = self._index[state]
        if isinstance(state, Pending):
            return index | PENDING
        if isinstance(state, Inside):
            return index | INSIDE | (LINE_END if state.line_end else 0)
        return index

    def _entry(self, state: State, byte: int) -> int:
        after, events = self._step(state, byte)
        return self._number(after) | int(events)

    def _step(self, state: State, byte: int) -> tuple[State, Event]:
        if isinstance(state, Outside):
            return self._outside(state, byte)
        if isinstance(state, Pending):
            return self._pending(state, byte)
        return self._inside(state, byte) if isinstance(state, Inside) else self._call(state, byte)

    def _outside(self, state: Outside, byte: int) -> tuple[State, Event]:
        r, markers = state.rules, self.rules[state.rules]
        fresh = self._everywhere or (state.place != NOWHERE and not state.space)
        heads, opened = self._headers[r].step(state.heads, fresh, byte)
        if opened is not None:
            return self._opened(self._siblings[r][opened.pair], opened.call), Event.OPEN
        end, ended = self._ends[r].step(state.end, byte)
        if ended:
            again = self._behind(state, byte, state.end + 1, False) >= 0
            return Outside(r, heads, behind=0 if again else -1), Event.END_OUTSIDE if again else NOTHING
        space = space_after(state.space, byte)
        place = self._place(state.place, space is not None, byte)
        half = space if place == FRESH and space is not None else b""
        behind = self._behind(state, byte, end, space is not None)
        if markers.line_break and behind and behind == len(self._answers[r]) > state.behind:
            place, half = FRESH, b""
        return Outside(r, heads, place, half, end, behind), NOTHING

    @staticmethod
    def _place(place: int, space: bool, byte: int) -> int:
        """Where an opening may begin behind one more byte.

        Args:
            space: the byte goes on with white space.
        """
        if space and place in (FRESH, TURN):
            return FRESH
        if place in (TURN, ROLE) and begins_a_name(byte):
            return ROLE
        return HERE if byte == NEWLINE else NOWHERE

    def _behind(self, state: Outside, byte: int, end: int, space: bool) -> int:
        """Whether this still stands right behind an end: white space and the answer's header, and the beginning of an
        end marker there."""
        answer, written = self._answers[state.rules], state.behind
        alone = not state.space or state.end == len(state.space)  # no other byte than the end marker's stands there
        if written < 0:
            return -1
        if written < len(answer) and answer[written] == byte and (written or not (state.end or state.space)):
            return written + 1
        if 0 < written < len(answer):  # no header; it may be the beginning of an end marker
            return 0 if end == written + 1 else -1
        begun = solid(self.rules[state.rules].end[: state.end])
        stays = (space and (not begun or state.end == len(state.space))) or (alone and end == state.end + 1)
        return written if stays else -1

    def _opened(self, rules: int, call: bool = False) -> State:
        label = self.rules[rules].label
        return Pending(rules, (label,), spaced=False) if label else self.block_of(rules, call)

    def _closed(self, rules: int) -> State:
        return Outside(rules, behind=-1 if self.rules[rules].shared_end else 0)

    def _pending(self, state: Pending, byte: int) -> tuple[State, Event]:
        r, written = state.rules, state.written + bytes([byte])
        if not state.space and any(text.startswith(written) for text in state.expected):
            if written not in state.expected:
                return replace(state, written=written), NOTHING
            if not state.spaced:
                return self.block_of(r), Event.OPEN
            return self._opened(self._siblings[r][state.expected.index(written)]), Event.OPEN
        stands = state.written + state.space + bytes([byte])
        waits = self._waits(state, stands) if state.spaced else None
        if waits is not None:
            return waits, NOTHING
        after, events = self.block_of(r), Event.BEGIN
        for each in stands:
            after, more = self._step(after, each)
            events |= more
        return after, events

    def _waits(self, state: Pending, stands: bytes) -> Pending | None:
        """The state if what stands there is white space, and behind it the beginning of what is expected; else None."""
        space: bytes | None = b""
        for i, byte in enumerate(stands):
            space = space_after(space, byte) if space is not None else None
            rest = stands[i + 1 :]
            if space == b"" and (not rest or any(text.startswith(rest) for text in state.expected)):
                return replace(state, written=rest, space=b"")
        return replace(state, written=b"", space=space) if space is not None else None

    def _inside(self, state: Inside, byte: int) -> tuple[State, Event]:
        r = state.rules
        end, ended = self._ends[r].step(state.end, byte)
        if ended:
            return self._closed(r), Event.CLOSE
        progress: list[frozenset[Begun]] = []
        for i, (spec, begun) in enumerate(zip(self.rules[r].implicit, state.implicit, strict=True)):
            fresh = byte == NEWLINE or not spec.at_line_start
            grown, ended = spec.begun(fresh, begun, byte)
            if ended and (state.call or not spec.in_calls):
                after: State = Call(r, i, 0) if spec.until else Outside(r, place=NOWHERE)
                return after, Event.IMPLICIT
            progress.append(frozenset(k for k in grown if k != len(spec.marker) or spec.heads or spec.name))
        missing = still_missing(state.missing, byte)
        return Inside(r, end, tuple(progress), byte == NEWLINE, missing, state.call), NOTHING

    def _call(self, state: Call, byte: int) -> tuple[State, Event]:
        until = self.rules[state.rules].implicit[state.which].until
        at, done = Matcher(until).step(state.until, byte)
        return Pending(state.rules) if done else replace(state, until=at), NOTHING


@lru_cache(maxsize=128)
def byte_automaton(pairs: tuple[Markers, ...], everywhere: bool) -> ByteAutomaton:
    """The automaton of these pairs: it is explored once in a process, and only read from then on."""
    return ByteAutomaton(pairs, everywhere)
