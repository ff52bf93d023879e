"""The automaton that sees thinking begin and end, on bytes, and its lift to a vocabulary.

Markers are bytes, so a marker is recognised however it is tokenized: as one special id, as several pieces, or with its
last piece merged with the text that follows. The byte automaton is explored once; the lift runs every token of the
vocabulary through it from every state, and tokens that behave alike share a class. A step is then two look-ups.

What a state knows. Outside a block: how far a start marker that began at the start of the response or of a line has
been written, and how far the end marker has been written. Inside: how far the end marker and each implicit end have
been written, and whether the last byte was a line feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .kernels.layout import AUTO_MASK, INSIDE, LINE_END, PROGRAM_END, STATE_MASK, Event

NEWLINE = 0x0A
_EVENTS = Event.OPEN | Event.CLOSE | Event.IMPLICIT | Event.END_OUTSIDE


@dataclass(frozen=True)
class ImplicitEnd:
    """A marker inside thinking that ends it without being its end marker: a tool call."""

    marker: bytes
    at_line_start: bool = False  # only where it begins a line or the block


@dataclass(frozen=True)
class Markers:
    """What delimits thinking, as bytes.

    `line_break` is what the model's template writes after the end marker; it is forced after a forced end.
    """

    start: bytes
    end: bytes
    line_break: bytes = b""
    implicit: tuple[ImplicitEnd, ...] = ()

    def __post_init__(self) -> None:
        if not self.start or not self.end:
            raise ValueError(f"thinking markers must not be empty: start {self.start!r}, end {self.end!r}")
        if self.start == self.end:
            raise ValueError(f"thinking markers must differ, both are {self.start!r}")


@dataclass(frozen=True)
class _Outside:
    starts: frozenset[int]  # progress of start markers that began at a line start; 0 is in it at a line start
    end: int


@dataclass(frozen=True)
class _Inside:
    end: int
    implicit: tuple[frozenset[int], ...]  # for each implicit end, progress of those that began where one may begin
    line_end: bool


def _failure(pattern: bytes) -> list[int]:
    """Prefix function of Knuth, Morris and Pratt: length of the longest proper border of each prefix."""
    table = [0] * len(pattern)
    k = 0
    for i in range(1, len(pattern)):
        while k and pattern[i] != pattern[k]:
            k = table[k - 1]
        k += pattern[i] == pattern[k]
        table[i] = k
    return table


class _Matcher:
    """Progress of one pattern in a stream of bytes; a whole match restarts from nothing, as a text search does."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.failure = _failure(pattern)

    def step(self, k: int, byte: int) -> tuple[int, bool]:
        while k and byte != self.pattern[k]:
            k = self.failure[k - 1]
        k += byte == self.pattern[k]
        return (0, True) if k == len(self.pattern) else (k, False)


class ByteAutomaton:
    """The automaton over bytes.

    Args:
        markers: what delimits thinking.
        start_by_bytes: whether the start marker is recognised from its bytes; false where it is one token of the
            vocabulary, which then alone opens a block.

    Attributes:
        delta: [states, 256] int32, the automaton word after a byte, with its events.
        words: [states] int32, the automaton word of each state.
        end_progress: bytes of the end marker that stand written in each state.
        response_start, block_start: state at the start of a response outside a block, and right after a start marker.
    """

    def __init__(self, markers: Markers, start_by_bytes: bool = True) -> None:
        self._markers = markers
        self._start_by_bytes = start_by_bytes
        self._end = _Matcher(markers.end)
        block = _Inside(0, tuple(frozenset({0}) for _ in markers.implicit), False)
        self._index: dict[_Outside | _Inside, int] = {}
        self._states: list[_Outside | _Inside] = []
        self.response_start = self._number(_Outside(frozenset({0}), 0))
        self.block_start = self._number(block)
        rows: list[list[int]] = []
        while len(rows) < len(self._states):
            state = self._states[len(rows)]
            rows.append([int(self._step(state, byte)) for byte in range(256)])
        self.words = np.array([self._word(s) for s in range(len(self._states))], dtype=np.int32)
        self.delta = np.array([[(e & ~AUTO_MASK) | self._word(e & STATE_MASK) for e in row] for row in rows], np.int32)
        self.end_progress = [s.end for s in self._states]

    def at_line_start(self, state: int) -> bool:
        """Whether a start marker may begin here."""
        s = self._states[state]
        return isinstance(s, _Outside) and 0 in s.starts

    def run(self, state: int, data: bytes) -> tuple[int, int]:
        """Feed bytes; return the state reached and all events on the way."""
        events = 0
        for byte in data:
            entry = int(self.delta[state, byte])
            state, events = entry & STATE_MASK, events | entry & _EVENTS
        return state, events

    def _number(self, state: _Outside | _Inside) -> int:
        if state not in self._index:
            self._index[state] = len(self._states)
            self._states.append(state)
        return self._index[state]

    def _word(self, index: int) -> int:
        state = self._states[index]
        if isinstance(state, _Outside):
            return index
        return index | INSIDE | (LINE_END if state.line_end else 0)

    def _step(self, state: _Outside | _Inside, byte: int) -> int:
        return self._outside(state, byte) if isinstance(state, _Outside) else self._inside(state, byte)

    def _outside(self, state: _Outside, byte: int) -> int:
        end, ended = self._end.step(state.end, byte)
        events = Event.END_OUTSIDE if ended else Event(0)
        starts = {0} if byte == NEWLINE else set()
        if self._start_by_bytes:
            starts |= {k + 1 for k in state.starts if self._markers.start[k] == byte}
            if len(self._markers.start) in starts:
                return self.block_start | events | Event.OPEN
        return self._number(_Outside(frozenset(starts), end)) | events

    def _inside(self, state: _Inside, byte: int) -> int:
        end, ended = self._end.step(state.end, byte)
        if ended:
            return self._number(_Outside(frozenset(), 0)) | Event.CLOSE
        progress = []
        for spec, begun in zip(self._markers.implicit, state.implicit, strict=True):
            grown = {k + 1 for k in begun if spec.marker[k] == byte}
            if len(spec.marker) in grown:
                return self._number(_Outside(frozenset(), 0)) | Event.IMPLICIT
            progress.append(frozenset(grown | {0} if byte == NEWLINE or not spec.at_line_start else grown))
        return self._number(_Inside(end, tuple(progress), byte == NEWLINE))


@dataclass(frozen=True)
class Vocabulary:
    """What the lift needs of a tokenizer.

    Attributes:
        pieces: bytes of each id; empty for an id that writes nothing (unused, padding).
        start_id: the id that is the whole start marker, if there is one.
        end_ids: how the end marker is written, in ids.
        break_ids: how the line break after it is written, in ids.
        eos_ids: ids that end the response.
        control_ids: ids that are not text (turn boundaries and the like), markers left out.
    """

    pieces: Sequence[bytes]
    start_id: int | None
    end_ids: tuple[int, ...]
    break_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    control_ids: frozenset[int] = frozenset()

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """The lowest id that writes exactly these bytes, among the ids that are text."""
        markers = {self.start_id, *self.end_ids} if len(self.end_ids) == 1 else {self.start_id}
        ids: dict[bytes, int] = {}
        for i, piece in enumerate(self.pieces):
            if piece and i not in markers and i not in self.eos_ids and i not in self.control_ids:
                ids.setdefault(piece, i)
        return ids

    def spell(self, data: bytes) -> list[int]:
        """Write bytes in as few ids as possible.

        Raises:
            ValueError: no sequence of ids writes these bytes.
        """
        best: list[list[int] | None] = [[]] + [None] * len(data)
        longest = max(map(len, self.by_bytes), default=0)
        for stop in range(1, len(data) + 1):
            for start in range(max(0, stop - longest), stop):
                head, piece = best[start], self.by_bytes.get(data[start:stop])
                shortest = best[stop]
                if head is not None and piece is not None and (shortest is None or len(head) + 1 < len(shortest)):
                    best[stop] = [*head, piece]
        whole = best[len(data)]
        if whole is None:
            raise ValueError(f"the vocabulary cannot write {data!r}")
        return whole


class Automaton:
    """The byte automaton lifted to a vocabulary, as arrays on the host.

    Attributes:
        token_class: [vocab] int32.
        step: [states * classes] int32.
        end_cursor: [states] int32.
        ban_start: [states + 1] int32.
        ban_ids, eos_ids: int32.
        program: the shared forced sequences, each with its terminator; index 0 is end marker and line break.
        bytewise: the automaton on bytes.
    """

    def __init__(self, markers: Markers, vocabulary: Vocabulary) -> None:
        self.markers = markers
        self.vocabulary = vocabulary
        self.bytewise = ByteAutomaton(markers, start_by_bytes=vocabulary.start_id is None)
        moves = self._token_moves()
        columns, inverse = np.unique(moves, axis=1, return_inverse=True)
        self.token_class = (inverse.reshape(-1)[: len(vocabulary.pieces)]).astype(np.int32)
        inert = int(inverse.reshape(-1)[-1])
        swap = {0: inert, inert: 0}  # class 0 is the one that ids beyond the vocabulary get
        order = np.array([swap.get(c, c) for c in range(columns.shape[1])])
        self.token_class = order[self.token_class].astype(np.int32)
        self.step = np.ascontiguousarray(columns[:, order]).reshape(-1).astype(np.int32)
        self.eos_ids = np.array(vocabulary.eos_ids, dtype=np.int32)
        self.ban_start, self.ban_ids = self._bans(columns, inverse.reshape(-1)[: len(vocabulary.pieces)])
        self.program, self.end_cursor = self._forced_sequences()

    @property
    def states(self) -> int:
        return len(self.bytewise.words)

    @property
    def response_start(self) -> int:
        """Automaton word at the start of a response whose prompt left no block open."""
        return int(self.bytewise.words[self.bytewise.response_start])

    def _token_moves(self) -> np.ndarray:
        """[states, vocab + 1] int32: automaton word and events of every token; the last column is the inert token."""
        pieces = [*self.vocabulary.pieces, b""]
        order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i]))
        lengths = np.array([len(pieces[i]) for i in order])
        states = np.repeat(np.arange(self.states, dtype=np.int32)[:, None], len(pieces), axis=1)
        events = np.zeros_like(states)
        for position in range(lengths[0] if len(lengths) else 0):
            alive = int(np.searchsorted(-lengths, -position, side="left"))
            data = np.frombuffer(bytes(pieces[i][position] for i in order[:alive]), dtype=np.uint8)
            entry = self.bytewise.delta[states[:, :alive], data[None, :]]
            states[:, :alive] = entry & STATE_MASK
            events[:, :alive] |= entry & int(_EVENTS)
        moves = np.empty_like(states)
        moves[:, order] = self.bytewise.words[states] | events
        self._mark_special(moves)
        return moves

    def _mark_special(self, moves: np.ndarray) -> None:
        start = self.vocabulary.start_id
        if start is not None:
            opened = int(self.bytewise.words[self.bytewise.block_start]) | int(Event.OPEN)
            for state in range(self.states):
                if self.bytewise.at_line_start(state):
                    moves[state, start] = opened
        for eos in self.vocabulary.eos_ids:
            moves[:, eos] |= int(Event.EOS)

    def _bans(self, columns: np.ndarray, token_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids that end the block from a state inside, or write the end marker from a state outside."""
        inside = int(Event.CLOSE | Event.IMPLICIT | Event.EOS)
        start, ids = [0], []
        for state in range(self.states):
            events = inside if self.bytewise.words[state] & INSIDE else int(Event.END_OUTSIDE)
            ids.append(np.flatnonzero((columns[state] & events != 0)[token_class]))
            start.append(start[-1] + len(ids[-1]))
        return np.array(start, dtype=np.int32), np.concatenate(ids).astype(np.int32)

    def _forced_sequences(self) -> tuple[list[int], np.ndarray]:
        """The shared part of the program, and for each state where in it the rest of a half-written marker begins.

        A marker that is one id is never completed from pieces: the model does not write it so, and a parser that
        looks for the id would not see it.
        """
        v = self.vocabulary
        program = [*v.end_ids, *v.break_ids, PROGRAM_END]
        cursor = np.zeros(self.states, dtype=np.int32)
        if len(v.end_ids) == 1:
            return program, cursor
        places: dict[int, int] = {}
        for state, written in enumerate(self.bytewise.end_progress):
            if not written or not self.bytewise.words[state] & INSIDE:
                continue
            if written not in places:
                places[written] = len(program)
                program += [*self._rest(written), *v.break_ids, PROGRAM_END]
            cursor[state] = places[written]
        return program, cursor

    def _rest(self, written: int) -> list[int]:
        """Ids that write the end marker from its byte `written` on; the marker's own pieces where they fit."""
        v = self.vocabulary
        offset = 0
        for i, token in enumerate(v.end_ids):
            if offset == written:
                return list(v.end_ids[i:])
            offset += len(v.pieces[token])
        return v.spell(self.markers.end[written:])
