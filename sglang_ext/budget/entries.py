"""The bits of an automaton word, and of an entry that leads to one. Neither torch nor an engine is imported."""

from __future__ import annotations

from enum import IntFlag

STATE_MASK = 0xFFFF
INSIDE = 1 << 16  # automaton word: a thinking block is open
LINE_END = 1 << 17  # automaton word: the last byte was a line feed
PENDING = 1 << 18  # automaton word: a block opens with the next token
THINKING = INSIDE | PENDING  # automaton word: what comes next is thinking, unless it says otherwise


class Event(IntFlag):
    """What one token does, in the entries of the lifted automaton, above the automaton word it leads to."""

    OPEN = 1 << 20  # the token completes a start marker and a block opens
    CLOSE = 1 << 21  # the token completes the end marker of an open block
    IMPLICIT = 1 << 22  # the token completes an implicit end marker of an open block
    END_OUTSIDE = 1 << 23  # the token completes an end marker right behind an end
    EOS = 1 << 24  # the token ends the response
    BEGIN = 1 << 25  # the token opens a block by itself, without a start marker, and is part of it


AUTO_MASK = STATE_MASK | THINKING | LINE_END
