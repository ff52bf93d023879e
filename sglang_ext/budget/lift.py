"""A machine over bytes lifted to the tokens of a vocabulary.

A token is a function from states to states, with the events on the way. All tokens are followed byte by byte at once.
What stands in between is a function too, and there are few of them: a function and a byte are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .byte_automaton import EVENTS, ByteAutomaton
from .kernels.layout import PENDING, STATE_MASK, Event


@dataclass(frozen=True)
class Lifted:
    """What tokens do.

    Attributes:
        token_class: [vocab] int32; tokens of a class do the same.
        columns: [states, classes] int32, automaton word and events after a token of the class; class 0 does nothing.
    """

    token_class: np.ndarray
    columns: np.ndarray

    @cached_property
    def _by_class(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.token_class, kind="stable")
        return order, np.searchsorted(self.token_class[order], np.arange(self.columns.shape[1] + 1))

    def ids_of(self, chosen: np.ndarray) -> np.ndarray:
        """Ids of the chosen classes, in order.

        Args:
            chosen: [classes] bool.
        """
        order, start = self._by_class
        parts = [order[start[c] : start[c + 1]] for c in np.flatnonzero(chosen)]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


class _Functions:
    """Functions from states to states with events, numbered; 0 is the one that does nothing.

    Attributes:
        states, events: for each function, [states] int32.
    """

    def __init__(self, machine: ByteAutomaton) -> None:
        self._machine = machine
        _, kind = np.unique(machine.delta, axis=1, return_inverse=True)
        self.kind_of_byte = kind.reshape(-1)
        self._byte_of_kind = {int(k): byte for byte, k in enumerate(self.kind_of_byte)}
        self.kinds = len(self._byte_of_kind)
        self.states: list[np.ndarray] = []
        self.events: list[np.ndarray] = []
        self._number: dict[bytes, int] = {}
        self._after = np.full((1024, self.kinds), -1, np.int32)
        self.add(np.arange(len(machine.words), dtype=np.int32), np.zeros(len(machine.words), np.int32))

    def add(self, states: np.ndarray, events: np.ndarray) -> int:
        """The number of a function."""
        key = states.tobytes() + events.tobytes()
        if key not in self._number:
            self._number[key] = len(self.states)
            self.states.append(states)
            self.events.append(events)
        return self._number[key]

    def with_byte(self, function: int, byte: int) -> int:
        """The function that goes on with a byte."""
        entry = self._machine.delta[self.states[function], byte]
        return self.add(entry & STATE_MASK, self.events[function] | entry & int(EVENTS))

    def with_kinds(self, functions: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """The functions [n] that go on with a byte of a kind each, [n] int."""
        after = self._after[functions, kinds]
        missing = np.flatnonzero(after < 0)
        if len(missing):
            for pair in np.unique(functions[missing].astype(np.int64) * self.kinds + kinds[missing]):
                function, kind = divmod(int(pair), self.kinds)
                number = self.with_byte(function, self._byte_of_kind[kind])
                if number >= len(self._after):
                    self._after = np.concatenate([self._after, np.full_like(self._after, -1)])
                self._after[function, kind] = number
            after = self._after[functions, kinds]
        return after


def lift(machine: ByteAutomaton, pieces: Sequence[bytes], control_ids: Iterable[int], eos_ids: Iterable[int]) -> Lifted:
    """What each token does.

    Args:
        pieces: bytes of each id.
        control_ids: ids of control tokens: an opening may begin with one, and right behind one.
        eos_ids: ids that end the response.
    """
    functions = _Functions(machine)
    ends = set(eos_ids)
    numbers = _text(functions, pieces)
    special: dict[int, np.ndarray] = {}
    for i in {*control_ids, *ends}:
        special[i] = _control(machine, pieces[i], i in ends)
    known, token_class = np.unique(np.append(numbers, 0), return_inverse=True)
    columns = [machine.words[functions.states[n]] | functions.events[n] for n in known]
    token_class = token_class.reshape(-1)[:-1].astype(np.int32)
    classes: dict[bytes, int] = {}
    for i, column in special.items():
        if column.tobytes() not in classes:
            classes[column.tobytes()] = len(columns)
            columns.append(column)
        token_class[i] = classes[column.tobytes()]
    return Lifted(token_class, np.stack(columns, axis=1).astype(np.int32))


def _text(functions: _Functions, pieces: Sequence[bytes]) -> np.ndarray:
    """[vocab] int32, each token's function as text."""
    data = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    offsets = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    numbers = np.zeros(len(pieces), np.int32)
    for position in range(int(lengths.max(initial=0))):
        alive = order[: int(np.searchsorted(-lengths[order], -position, side="left"))]
        kinds = functions.kind_of_byte[data[offsets[alive] + position]]
        numbers[alive] = functions.with_kinds(numbers[alive], kinds)
    return numbers


def _control(machine: ByteAutomaton, piece: bytes, ends: bool) -> np.ndarray:
    """[states] int32, what a control token does. The end of a response opens no block where one is only implied, and a
    call's own end is no wish to stop."""
    states, events = machine.control.copy(), np.zeros(len(machine.words), np.int32)
    for byte in piece:
        entry = machine.delta[states, byte]
        states, events = entry & STATE_MASK, events | entry & int(EVENTS)
    states = machine.control[states]
    if not ends:
        return machine.words[states] | events
    waiting = machine.words & PENDING != 0
    states = np.where(waiting, np.arange(len(states)), states)
    events = np.where(waiting, 0, events)
    return np.asarray(machine.words[states] | events | np.where(events & int(Event.IMPLICIT), 0, int(Event.EOS)))
