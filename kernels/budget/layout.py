"""The think budget's device data: one row of words per request slot, and tables shared by all slots.

Everything a step needs about a request is in one row of 16 int32 words (64 bytes, one cache line), limits
included, so that a step reads one row per request and nothing of its history. What is common to all requests,
the automaton lifted to the vocabulary, is in `Tables`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ..entries import AUTO_MASK as AUTO_MASK
from ..entries import INSIDE as INSIDE
from ..entries import LINE_END as LINE_END
from ..entries import PENDING as PENDING
from ..entries import STATE_MASK as STATE_MASK
from ..entries import THINKING as THINKING
from ..entries import Event as Event


class Word(IntEnum):
    """Column of `BudgetState.words`. Columns up to `FLAGS` and `TOTAL` change with every token, the others only on
    admission, except `FORCE_START`, which a forced end resets: a message is written once. An end that the host asks for
    (`ask`) writes `MAX`, `FORCE_START` and `ASKED`."""

    AUTO = 0  # automaton word: state index in the low 16 bits, INSIDE and LINE_END above
    USED = 1  # tokens the model chose inside thinking so far, end marker included
    CURSOR = 2  # index into `BudgetState.program` of the next forced id, or NOT_FORCING
    OUTCOME = 3  # Outcome
    FORCED = 4  # ids written by the budget so far
    REASON = 5  # Outcome that the end being forced will have
    FLAGS = 6  # Flag
    FORCE_START = 7  # index into `program` of what the wall forces: message, end marker, line break; plus `end_start`
    MAX = 8  # most tokens inside thinking, or NO_LIMIT
    MIN = 9  # the end cannot be chosen while USED is below this
    GRACE = 10  # from this USED on, the first line end closes the block, or NO_LIMIT
    TOTAL = 11  # tokens of the response so far
    RESPONSE_LIMIT = 12  # from this TOTAL on, an open block is closed: what is left is the answer's; or NO_LIMIT
    ASKED = 13  # Outcome of the end that the host asked for and that `MAX` was lowered for, else 0


WORDS = 16
NOT_FORCING = -1
NO_LIMIT = 2**31 - 1
PROGRAM_END = -1  # terminates a forced sequence in `program`
KEEP = -1  # as the `FORCE_START` of an end that is asked for: the row's own

UTF8_GUARD = 3
"""Tokens before the wall in which no character may be begun that cannot be completed: a character has up to 4 bytes."""


class Flag(IntFlag):
    """Bits of `Word.FLAGS`."""

    ACTIVE = 1  # the request has a budget; every other row is left alone
    EOS_CLOSES = 2  # an EOS inside a block is replaced by the end marker
    NO_BREAK = 4  # nothing is forced after the end marker (a grammar starts right there)
    FORCED_END = 8  # the budget closed the last block: right behind it the end marker is not written a second time
    FRESH = 16  # the next token is the first after a forced end: it cannot be EOS


class Outcome(IntEnum):
    """How thinking ended."""

    NONE = 0  # no block was opened
    NATURAL = 1  # the model wrote the end marker
    GRACE = 2  # closed at a line end within the grace window
    FORCED = 3  # closed at the wall
    EOS = 4  # the model wanted to end the response while thinking
    IMPLICIT = 5  # a tool call began inside thinking
    OPEN = 6  # the response is inside a block
    LOOP = 7  # the host asked for the end: the thinking went round in circles
    DEADLINE = 8  # the host asked for the end: the time was up
    ASKED = 9  # the host asked for the end: a client asked for it


class Operands(NamedTuple):
    """`Tables` as one argument of a kernel (tensors), or as views on the host (numpy arrays)."""

    token_class: Any
    step: Any
    end_cursor: Any
    end_start: Any
    ban_start: Any
    ban_ids: Any
    guard_start: Any
    guard_ids: Any
    eos_ids: Any
    vocab: int  # elements of token_class
    classes: int  # behaviour classes, the row stride of step
    eos: int  # elements of eos_ids


@dataclass(frozen=True)
class Tables:
    """The lifted automaton as tensors on one device; read only."""

    token_class: torch.Tensor  # [vocab] int32, behaviour class of a token; ids beyond are class 0, inert
    step: torch.Tensor  # [states * classes] int32, automaton word after the token, with its events
    end_cursor: torch.Tensor  # [states] int32, program index that completes a half-written end marker, else 0
    end_start: torch.Tensor  # [states] int32, how far behind the first end the one of the state's blocks is forced
    ban_start: torch.Tensor  # [states + 1] int32, offsets into ban_ids
    ban_ids: torch.Tensor  # [n] int32, ids that would end the block (inside) or write the end marker (outside)
    guard_start: torch.Tensor  # [states * UTF8_GUARD + 1] int32, offsets into guard_ids, by state and tokens left
    guard_ids: torch.Tensor  # [n] int32, ids that would leave a character with more bytes missing than tokens left
    eos_ids: torch.Tensor  # [n] int32, ids that end the response

    @property
    def classes(self) -> int:
        return self.step.numel() // self.end_cursor.numel()

    @cached_property
    def operands(self) -> Operands:
        """What a kernel is given."""
        return Operands(self.token_class, self.step, self.end_cursor, self.end_start, self.ban_start, self.ban_ids,
                        self.guard_start, self.guard_ids, self.eos_ids,
                        self.token_class.numel(), self.classes, self.eos_ids.numel())

    @cached_property
    def arrays(self) -> Operands:
        """Numpy views; for tables in host memory only."""
        tensors = self.operands
        return tensors._replace(**{f.name: getattr(tensors, f.name).numpy() for f in fields(self)})

    @classmethod
    def from_host(cls, host: object, device: torch.device | str) -> Tables:
        """Copy from an object that has the same fields as integer sequences or arrays."""
        columns = {f.name: torch.tensor(getattr(host, f.name), dtype=torch.int32) for f in fields(cls)}
        return cls(**{name: column.to(device) for name, column in columns.items()})


class StateOperands(NamedTuple):
    """`BudgetState` as one argument of a kernel."""

    words: Any
    program: Any


@dataclass(frozen=True)
class BudgetState:
    """Slot-indexed state. A recycled slot is overwritten whole.

    `program` holds forced sequences, each terminated by PROGRAM_END: first the shared ones (index 0: the end marker
    and what follows it; then those of other pairs of markers, each at its `Tables.end_start`, and what completes a
    half-written marker), then `stride` ids for each slot, laid out in the same way.
    """

    words: torch.Tensor  # [slots, WORDS] int32
    program: torch.Tensor  # [shared + slots * stride] int32
    shared: int
    stride: int

    @classmethod
    def allocate(cls, slots: int, shared_program: list[int], stride: int, device: torch.device | str) -> BudgetState:
        """State for `slots` rows, all without a budget. `stride`: most ids one request's sequence may have, terminator
        included."""
        program = torch.full((len(shared_program) + slots * stride,), PROGRAM_END, dtype=torch.int32)
        program[: len(shared_program)] = torch.tensor(shared_program, dtype=torch.int32)
        words = torch.zeros((slots, WORDS), dtype=torch.int32)
        words[:, Word.CURSOR] = NOT_FORCING
        return cls(words.to(device), program.to(device), len(shared_program), stride)

    @cached_property
    def operands(self) -> StateOperands:
        """What a kernel is given."""
        return StateOperands(self.words, self.program)

    def allocate_nodes(self, requests: int, nodes: int) -> torch.Tensor:
        """[requests, nodes, WORDS] int32, what `walk` leaves for `commit`; allocated once, for the largest batch."""
        return torch.zeros((requests, nodes, WORDS), dtype=torch.int32, device=self.words.device)

    def program_start(self, slot: int) -> int:
        """Index into `program` where the slot's own forced sequence begins."""
        return self.shared + slot * self.stride
