"""The automaton that sees thinking begin and end, on bytes.

Markers are bytes, so a marker is recognised however it is tokenized: as one special id, as several pieces, or with its
last piece merged with the text that follows. The automaton is explored once, from the two states a response can begin
in.

What a state knows. Outside a block: how far a start marker that began at the start of the response or of a line has
been written, and how far the end marker has been written. Inside: how far the end marker and each implicit end have
been written, whether the last byte was a line feed, and how many bytes a character that has begun still needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernels.layout import AUTO_MASK, INSIDE, LINE_END, STATE_MASK, Event

NEWLINE = 0x0A
EVENTS = Event.OPEN | Event.CLOSE | Event.IMPLICIT | Event.END_OUTSIDE


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
    missing: int


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


def _still_missing(missing: int, byte: int) -> int:
    """Bytes that a character of UTF-8 (RFC 3629) still needs after this one; 0 too where the bytes are not UTF-8."""
    if 0x80 <= byte < 0xC0:
        return max(0, missing - 1)
    return (0xC2 <= byte < 0xF5) + (0xE0 <= byte < 0xF5) + (0xF0 <= byte < 0xF5)


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
        missing: [states] int32, bytes that a half-written character of a block still needs; at most 3.
        response_start, block_start: state at the start of a response outside a block, and right after a start marker.
    """

    def __init__(self, markers: Markers, start_by_bytes: bool = True) -> None:
        self._markers = markers
        self._start_by_bytes = start_by_bytes
        self._end = _Matcher(markers.end)
        block = _Inside(0, tuple(frozenset({0}) for _ in markers.implicit), False, 0)
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
        self.missing = np.array([s.missing if isinstance(s, _Inside) else 0 for s in self._states], dtype=np.int32)

    def at_line_start(self, state: int) -> bool:
        """Whether a start marker may begin here."""
        s = self._states[state]
        return isinstance(s, _Outside) and 0 in s.starts

    def run(self, state: int, data: bytes) -> tuple[int, int]:
        """Feed bytes; return the state reached and all events on the way."""
        events = 0
        for byte in data:
            entry = int(self.delta[state, byte])
            state, events = entry & STATE_MASK, events | entry & EVENTS
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
        return self._number(_Inside(end, tuple(progress), byte == NEWLINE, _still_missing(state.missing, byte)))
