"""The byte automaton lifted to a vocabulary.

Every token of the vocabulary is run through the automaton from every state, once; tokens that behave alike share a
class. A step is then two look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .byte_automaton import EVENTS, ByteAutomaton, ImplicitEnd, Markers
from .kernels.layout import INSIDE, NEAR, PROGRAM_END, STATE_MASK, Event

__all__ = ["Automaton", "ByteAutomaton", "ImplicitEnd", "Markers", "Vocabulary"]


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
        cut_start: [states * NEAR + 1] int32.
        ban_ids, cut_ids, eos_ids: int32.
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
        self.cut_start, self.cut_ids = self._cuts(columns, inverse.reshape(-1)[: len(vocabulary.pieces)])
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
            events[:, :alive] |= entry & int(EVENTS)
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

    def _cuts(self, columns: np.ndarray, token_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids that would leave a character with more bytes missing than tokens left, from each state inside."""
        start, ids = [0], []
        for state in range(self.states):
            inside = self.bytewise.words[state] & INSIDE != 0
            missing = self.bytewise.missing[columns[state] & STATE_MASK] if inside else np.zeros_like(columns[state])
            for left in range(1, NEAR + 1):
                ids.append(np.flatnonzero((missing >= left)[token_class]))
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
