"""What the states of the byte automaton know."""

from __future__ import annotations

from dataclasses import dataclass

from .byte_rules import Begun, Head

NOWHERE, HERE, FRESH, TURN, ROLE = range(5)
"""Where an opening may begin: not here; with the next byte; with the next byte that is no white space; the same right
behind a control token, where the name of a role may come first; in such a name, with the next byte."""


@dataclass(frozen=True)
class Outside:
    """No block is open."""

    rules: int
    heads: frozenset[Head] = frozenset()
    place: int = FRESH
    space: bytes = b""  # of a character of white space that is not complete
    end: int = 0
    behind: int = -1  # right behind an end: bytes of the answer's header that stand there; -1 elsewhere


@dataclass(frozen=True)
class Pending:
    """A block opens with what is neither white space nor the rest of an `expected` text.

    These texts open it too, and are no thinking themselves: the start markers at the response's start, where thinking
    is implied; the label behind a start marker; nothing behind a call.
    """

    rules: int
    expected: tuple[bytes, ...] = ()
    written: bytes = b""
    space: bytes = b""
    spaced: bool = True  # white space may come first


@dataclass(frozen=True)
class Inside:
    """A block is open."""

    rules: int
    end: int
    implicit: tuple[frozenset[Begun], ...]  # for each implicit end, progress of those that began where one may begin
    line_end: bool
    missing: int
    call: bool  # its header has a recipient


@dataclass(frozen=True)
class Call:
    """In a call that a block goes on behind: the implicit end that began it, and how far the call's end stands."""

    rules: int
    which: int
    until: int


State = Outside | Pending | Inside | Call
