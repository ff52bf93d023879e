"""Where a response thinks, by looking at its bytes: the rules of blocks, all of them in this one place.

A marker can stand where the contract says that it opens or ends a block (`Place.IS`), where it says that it is text
(`Place.IS_NOT`), and where it leaves that to the model's family (`Place.MAY_BE`). There both are followed, so a
response has one or several readings. A response is right if it agrees with one of them in everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from .served import Served

MOST_READINGS = 256
TOOL_MARKERS = (b"<tool_call>", b"<|tool_calls_section_begin|>", b"<ifm|tool_call", b"<|tools_prefix|>[")
"""What may end a block by beginning a tool call, in the families that have such an end."""


class Place(Enum):
    """What a marker is where it stands."""

    IS = "a marker"
    MAY_BE = "a marker in some families"
    IS_NOT = "text"


@dataclass(frozen=True)
class Block:
    """Ids of a response that are thinking: `first` to `last`, the end marker's last id included.

    Attributes:
        closed: whether the block ended; `last` is then the id that ended it.
        tool: whether a tool call ended it.
    """

    first: int
    last: int
    closed: bool
    tool: bool = False

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Reading:
    """One way to read a response so far.

    Attributes:
        inside: whether a block is open.
        since: offset in the text from which on markers are looked for.
        first: index of the open block's first id.
        blocks: the blocks that ended; in a finished reading the open one too.
    """

    inside: bool
    since: int = 0
    first: int = 0
    blocks: tuple[Block, ...] = ()

    @property
    def thinking(self) -> int:
        """How many ids have a block open before them."""
        return sum(map(len, self.blocks))


def readings(served: Served, prompt: Sequence[int], ids: Sequence[int]) -> list[Reading]:
    """Every way to read a response; empty where there are more than `MOST_READINGS`."""
    found = [Reading(inside) for inside in opens(served, prompt)]
    text, after_control = bytearray(), -1
    for index, token in enumerate(ids):
        piece = served.pieces[token] if 0 <= token < len(served.pieces) else b""
        for byte in piece:
            text.append(byte)
            found = [after for reading in found for after in _after(served, reading, text, index, token, after_control)]
        if token in served.control:
            after_control = len(text)
        if len(found) > MOST_READINGS:
            return []
    return [replace(r, blocks=(*r.blocks, Block(r.first, len(ids) - 1, False))) if r.inside else r for r in found]


def _after(served: Served, reading: Reading, text: bytearray, index: int, token: int, after_control: int
           ) -> Iterator[Reading]:
    """The readings of a text that has one more byte, from one of the text before."""

    def written(*markers: bytes) -> bool:
        return any(text.endswith(m) and len(text) - len(m) >= reading.since for m in markers)

    place, tool = Place.IS_NOT, False
    if reading.inside and written(served.end):
        spelled = served.end_ids and token not in served.end_ids
        place = Place.MAY_BE if spelled else Place.IS
    elif reading.inside and written(*TOOL_MARKERS):
        place, tool = Place.MAY_BE, True
    elif not reading.inside and written(served.start):
        place = _begins(served, text, reading, token, after_control)
    elif not reading.inside and written(served.end):
        if bytes(text) == served.end:  # where a family's thinking is implied, it ends as it begins
            yield Reading(False, len(text), 0, (Block(0, index, True),))
        reading = replace(reading, since=len(text))
    if place is not Place.IS:
        yield reading
    if place is not Place.IS_NOT and reading.inside:
        yield Reading(False, len(text), 0, (*reading.blocks, Block(reading.first, index, True, tool)))
    elif place is not Place.IS_NOT:
        yield Reading(True, len(text), index + 1, reading.blocks)


def _begins(served: Served, text: bytearray, reading: Reading, token: int, after_control: int) -> Place:
    """What the start marker is outside of a block.

    It opens one at the response's start and at a line's start. Behind nothing but white space, right behind an end
    marker or a turn, role or message header it may. Elsewhere it is text.
    """
    at = len(text) - len(served.start)
    before = bytes(text[reading.since : at])
    spelled = served.start_ids and token not in served.start_ids
    if at == 0 or before.endswith(b"\n"):
        return Place.MAY_BE if spelled else Place.IS
    header = 0 <= after_control <= at and bytes(text[after_control:at]).strip().isalpha()
    if _blank(before) or after_control == at or header:
        return Place.MAY_BE
    return Place.IS_NOT


def _blank(text: bytes) -> bool:
    return not text.decode(errors="replace").strip()


def opens(served: Served, prompt: Sequence[int]) -> tuple[bool, ...]:
    """Whether a prompt leaves a block open; both where that is left to the family.

    It does if it ends with the start marker (and white space), or has it at the start of the assistant's own part, or
    of a line there, and not ended. What stands before the last turn boundary, a control token, opens nothing.
    """
    text = served.text(prompt)
    at = text.rfind(served.start)
    if at < 0:
        return (False,)
    rest = text[at + len(served.start) :]
    if _blank(rest):
        return (True,)
    length, boundaries = 0, [0]
    for token in prompt:
        length += len(served.text([token]))
        if token in served.control:
            boundaries.append(length)
    if boundaries[-1] > at + len(served.start) or served.end in rest:
        return (False,)
    own = len(boundaries) > 1 and (boundaries[-1] >= at or text[at - 1 : at] == b"\n")
    return (True,) if own and not any(tool in rest for tool in TOOL_MARKERS) else (True, False)
