"""The byte automaton lifted to a vocabulary.

Every token is a function from states to states. The functions are followed byte by byte, for all tokens at once
(`lift.py`); tokens with the same function share a class. A step is then two look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .byte_automaton import ByteAutomaton, byte_automaton
from .byte_rules import ImplicitEnd, Markers
from .byte_states import Inside, Pending
from .kernels.layout import PROGRAM_END, STATE_MASK, THINKING, UTF8_GUARD, Event
from .lift import Lifted, lift

__all__ = ["MESSAGE_IDS", "Automaton", "ByteAutomaton", "ImplicitEnd", "Markers", "Vocabulary"]

MESSAGE_IDS = 512
"""Longest stop message, in ids."""


@dataclass(frozen=True)
class Vocabulary:
    """What the lift needs of a tokenizer.

    Attributes:
        pieces: bytes of each id; empty for an id that writes nothing (unused, padding).
        start_id: the id that is the whole start marker, if there is one.
        end_ids: how the end marker is written, in ids.
        break_ids: how what follows it is written, in ids.
        eos_ids: ids that end the response.
        control_ids: ids that are not text (turn boundaries and the like), markers left out.
        header_ids: ids of control tokens that the markers are written with.
        text_start_id: the id that a tokenizer puts before every text, if there is one; no turn begins with it.
        written: how the tokenizer writes other texts of the markers, in ids.
    """

    pieces: Sequence[bytes]
    start_id: int | None
    end_ids: tuple[int, ...]
    break_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    control_ids: frozenset[int] = frozenset()
    header_ids: frozenset[int] = frozenset()
    text_start_id: int | None = None
    written: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """The lowest id that writes exactly these bytes, among the ids that are text."""
        markers = {self.start_id, *self.header_ids, *(self.end_ids if len(self.end_ids) == 1 else ())}
        ids: dict[bytes, int] = {}
        for i, piece in enumerate(self.pieces):
            if piece and i not in markers and i not in self.eos_ids and i not in self.control_ids:
                ids.setdefault(piece, i)
        return ids

    def ids_of(self, data: bytes) -> tuple[int, ...]:
        """How a text of the markers is written.

        Raises:
            ValueError: no sequence of ids writes it.
        """
        return self.written[data] if data in self.written else tuple(self.spell(data))

    @cached_property
    def turn_ids(self) -> frozenset[int]:
        """Ids of which one that stands in no marker begins a turn or a message."""
        return self.control_ids | self.header_ids | frozenset(self.eos_ids)

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

    Args:
        pairs: the pairs of markers that a response of the model may have, the usual one first; or that one.
        room: most ids of a request's own message.

    Attributes:
        token_class: [vocab] int32.
        step: [states * classes] int32.
        end_cursor, end_start: [states] int32.
        ban_start: [states + 1] int32.
        guard_start: [states * UTF8_GUARD + 1] int32.
        ban_ids, guard_ids, eos_ids: int32.
        program: the shared forced sequences, each with its terminator; index 0 is the end marker and what follows it.
        spacing: from one pair's sequence to the next one's, in it and in a request's own.
        bytewise: the automaton on bytes.
    """

    def __init__(self, pairs: Markers | Sequence[Markers], vocabulary: Vocabulary, room: int = MESSAGE_IDS) -> None:
        stops = [vocabulary.pieces[i] for i in vocabulary.eos_ids]
        self.pairs = tuple(pair.without_stops(stops) for pair in ((pairs,) if isinstance(pairs, Markers) else pairs))
        self.markers = self.pairs[0]
        self.vocabulary = vocabulary
        self.bytewise = byte_automaton(self.pairs, self.markers.anywhere and not self._opens_by_id())
        lifted = lift(self.bytewise, vocabulary.pieces, self._control_ids(), vocabulary.eos_ids)
        self.token_class, self.step = lifted.token_class, np.ascontiguousarray(lifted.columns).reshape(-1)
        self.eos_ids = np.array(vocabulary.eos_ids, dtype=np.int32)
        self.ban_start, self.ban_ids = _joined(self._bans(lifted))
        self.guard_start, self.guard_ids = _joined(self._guards(lifted))
        ends, starts = ([of(pair) for pair in range(len(self.pairs))] for of in (self.end_ids, self.start_ids))
        self.spacing = room + max(map(len, starts)) + max(map(len, ends))
        self.program = self.side_by_side(ends)
        self.end_start = np.array([self.spacing * self.bytewise.pair_of(s) for s in self.bytewise.states], np.int32)
        self.end_cursor = self._cursors()

    @property
    def states(self) -> int:
        return len(self.bytewise.words)

    @property
    def response_start(self) -> int:
        """Automaton word at the start of a response whose prompt left no block open."""
        return self.start_word()

    def start_word(self, pair: int = 0, tools: bool = True) -> int:
        """Automaton word outside a block, where one may open."""
        return self.bytewise.word(self.bytewise.start_of(self.bytewise.number_of(pair, tools)))

    def implied_word(self, pair: int = 0, tools: bool = True) -> int:
        """The same where what comes is thinking, start marker or not."""
        return self.bytewise.word(self.bytewise.implied_of(self.bytewise.number_of(pair, tools)))

    def block_word(self, pair: int = 0, tools: bool = True) -> int:
        """Automaton word right behind a start marker."""
        return self.bytewise.word(self.bytewise.block_of(self.bytewise.number_of(pair, tools)))

    def _opens_by_id(self) -> bool:
        """Whether openings begin with a control token that the vocabulary has."""
        pieces = self.vocabulary.pieces
        return any(pieces[i] and self.markers.start.startswith(pieces[i]) for i in self._control_ids())

    def _control_ids(self) -> list[int]:
        v = self.vocabulary
        return sorted({*v.control_ids, *v.eos_ids, *(v.header_ids if self.markers.anywhere else ())})

    def _bans(self, lifted: Lifted) -> Iterator[np.ndarray]:
        """For each state, ids that end the block, where thinking; else those that write the end marker right behind an
        end."""
        inside = int(Event.CLOSE | Event.IMPLICIT | Event.EOS)
        for state, word in enumerate(self.bytewise.words):
            events = inside if word & THINKING else int(Event.END_OUTSIDE)
            yield lifted.ids_of(lifted.columns[state] & events != 0)

    def _guards(self, lifted: Lifted) -> Iterator[np.ndarray]:
        """For each state where thinking, ids that would leave a character with more bytes missing than tokens left."""
        for state, word in enumerate(self.bytewise.words):
            missing = self.bytewise.missing[lifted.columns[state] & STATE_MASK]
            for left in range(1, UTF8_GUARD + 1):
                yield lifted.ids_of((missing >= left) & bool(word & THINKING))

    def end_ids(self, pair: int) -> list[int]:
        """Ids that end a block of a pair of markers, terminator included."""
        return [*self._marker_ids(pair), *self.vocabulary.break_ids, PROGRAM_END]

    def start_ids(self, pair: int) -> tuple[int, ...]:
        """Ids that open a block; none where the vocabulary cannot write them."""
        v, markers = self.vocabulary, self.pairs[pair]
        try:
            return v.ids_of(markers.start) + v.ids_of(markers.label)
        except ValueError:
            return ()

    def side_by_side(self, sequences: Sequence[Sequence[int]]) -> list[int]:
        """Sequences of all pairs, each with its terminator, as a program has them."""
        padded = [[*ids, *[PROGRAM_END] * (self.spacing - len(ids))] for ids in sequences[:-1]]
        return [i for ids in [*padded, sequences[-1]] for i in ids]

    def _cursors(self) -> np.ndarray:
        """For each state, where in the program the rest of what stands half-written begins, the end behind it; else 0.

        A marker that is one id, or begins with a control token, is never completed from other pieces than its own: the
        model does not write it so.
        """
        cursor = np.zeros(self.states, dtype=np.int32)
        places: dict[tuple[int, bytes], int] = {}
        for number, state in enumerate(self.bytewise.states):
            pair = self.bytewise.pair_of(state)
            rest = b""
            if isinstance(state, Inside) and state.end in self._seams(pair):
                rest = self.pairs[pair].end[state.end :]
            elif isinstance(state, Pending) and not state.spaced:
                rest = self.pairs[pair].label.removeprefix(state.written) + self.pairs[pair].end
            if not rest:
                continue
            if (pair, rest) not in places:
                ids = self._rest(pair, rest)
                places[pair, rest] = len(self.program) if ids else 0
                self.program += [*ids, *self.vocabulary.break_ids, PROGRAM_END] if ids else []
            cursor[number] = places[pair, rest]
        return cursor

    def _marker_ids(self, pair: int) -> tuple[int, ...]:
        return self.vocabulary.ids_of(self.pairs[pair].end) if pair else self.vocabulary.end_ids

    def _seams(self, pair: int) -> set[int]:
        """How many bytes of an end marker may stand written for the rest to be forced alone."""
        v, ids = self.vocabulary, self._marker_ids(pair)
        if len(ids) > 1 and ids[0] not in v.header_ids:
            return set(range(1, len(self.pairs[pair].end)))
        return {sum(len(v.pieces[i]) for i in ids[:k]) for k in range(1, len(ids))}

    def _rest(self, pair: int, rest: bytes) -> list[int]:
        """Ids that write the last bytes of an end marker, its own pieces where they fit, or text and all of it; none
        where the vocabulary cannot write them."""
        v, end, ids = self.vocabulary, self.pairs[pair].end, self._marker_ids(pair)
        offset = 0
        for i, token in enumerate(ids):
            if end[offset:] == rest:
                return list(ids[i:])
            offset += len(v.pieces[token])
        try:
            return [*v.spell(rest[: -len(end)]), *ids] if len(rest) > len(end) else v.spell(rest)
        except ValueError:
            return []


def _joined(lists: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lists behind each other, and where each begins."""
    parts = list(lists)
    return np.cumsum([0, *map(len, parts)], dtype=np.int32), np.concatenate(parts).astype(np.int32)
