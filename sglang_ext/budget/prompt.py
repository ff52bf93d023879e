"""What a prompt leaves open: the automaton word at the start of the response.

What a user wrote opens and closes nothing. Only the assistant's own part counts, which is what stands behind the last
turn boundary, and there a marker counts as it would in a response; or where it ends the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .automaton import Automaton
from .kernels.layout import AUTO_MASK, INSIDE, STATE_MASK, THINKING
from .kernels.reference import lookup


@dataclass(frozen=True)
class Request:
    """What else a request says about its thinking.

    Attributes:
        tools: it has tools that the model may call.
        implied: the server's reasoning parser takes the response's beginning for thinking.
    """

    tools: bool = False
    implied: bool = False

    @classmethod
    def of(cls, carried: Any) -> Request:
        """From what travels with a request; keys that are no field are ignored."""
        known = carried if isinstance(carried, Mapping) else {}
        return cls(known.get("tools") is True, known.get("implied") is True)


@dataclass(frozen=True)
class Start:
    """How a response starts.

    Attributes:
        word: automaton word.
        pair: the pair of markers that the response has.
        closed: the assistant's part of the prompt holds a block that is closed.
    """

    word: int
    pair: int = 0
    closed: bool = False

    @property
    def open(self) -> bool:
        """Whether the prompt leaves a block open, or one is implied."""
        return bool(self.word & THINKING)


def start_of(automaton: Automaton, prompt: Sequence[int], request: Request) -> Start:
    """How the response to a prompt starts.

    Args:
        prompt: ids of the whole prompt.
    """
    begin, turn = _assistant_part(automaton, prompt)
    text = _text(automaton, prompt[begin:])
    part = prompt[begin - 1 if turn else begin :]  # a message's header may begin with the control token
    word = _ending_open(automaton, text, request.tools)
    if word is None and (turn or _begins_with_a_block(automaton, text)):
        word = _left_open(automaton, part, request.tools)
    if word is not None:
        return Start(word, automaton.bytewise.pair_of(automaton.bytewise.states[word & STATE_MASK]))
    closed = any(m.start in text and m.end in text[text.find(m.start) :] for m in automaton.pairs)
    if request.implied and not closed:
        return Start(automaton.implied_word(tools=request.tools), closed=closed)
    return Start(automaton.start_word(tools=request.tools), closed=closed)


def _ending_open(automaton: Automaton, text: bytes, tools: bool) -> int | None:
    """The word in the block that a start marker opens at the end of the assistant's part; None if none stands there."""
    machine = automaton.bytewise
    for pair, markers in enumerate(automaton.pairs):
        block = automaton.block_word(pair, tools) & STATE_MASK
        for opening in dict.fromkeys((markers.start + markers.label, markers.start)):
            if text.rstrip().endswith(opening.rstrip()):
                if len(opening) < len(markers.start + markers.label):  # the label is still to come
                    block, _ = machine.run(automaton.start_word(pair, tools) & STATE_MASK, markers.start)
                spaces = text[len(text.rstrip()) - len(opening.rstrip()) + len(opening) :]
                return int(machine.words[machine.run(block, spaces)[0]])
    return None


def _begins_with_a_block(automaton: Automaton, text: bytes) -> bool:
    return text.lstrip().startswith(tuple(markers.start.lstrip() for markers in automaton.pairs))


def _left_open(automaton: Automaton, part: Sequence[int], tools: bool) -> int | None:
    """The word in the block that the assistant's part leaves open, read as a response; None if it leaves none open."""
    word = automaton.start_word(tools=tools)
    for token in part:
        word = lookup(automaton, word, token) & AUTO_MASK
    return word if word & INSIDE else None


def _assistant_part(automaton: Automaton, prompt: Sequence[int]) -> tuple[int, bool]:
    """Where the text behind the prompt's last turn boundary begins, and whether there is one.

    A boundary is a control token that is no piece of a marker. The one that a tokenizer puts before every text is none.
    """
    vocabulary, begin = automaton.vocabulary, len(prompt)
    while begin and (prompt[begin - 1] not in vocabulary.turn_ids or _in_marker(automaton, prompt, begin - 1)):
        begin -= 1
    return begin, begin > 1 or (begin == 1 and prompt[0] != vocabulary.text_start_id)


def _in_marker(automaton: Automaton, prompt: Sequence[int], at: int) -> bool:
    """Whether a control token is a piece of a marker where it stands."""
    markers = [text for pair in automaton.pairs for text in (pair.start.strip(), pair.end)]
    reach = max(map(len, markers))  # a token writes a byte or more, but for those that write nothing
    before, piece, behind = (_text(automaton, ids) for ids in (
        prompt[max(0, at - reach) : at], prompt[at : at + 1], prompt[at + 1 : at + 1 + reach]))
    around, stop = before + piece + behind, len(before) + len(piece)
    places = ((around.find(marker, max(0, stop - len(marker))), len(marker)) for marker in markers)
    return any(0 <= place <= len(before) and place + length >= stop for place, length in places)


def _text(automaton: Automaton, ids: Sequence[int]) -> bytes:
    pieces = automaton.vocabulary.pieces
    return b"".join(pieces[i] for i in ids if 0 <= i < len(pieces))
