"""Which ids of a response the server wrote: every way in which its report fits the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .blocks import Block, Reading
from .served import Served


@dataclass(frozen=True)
class Run:
    """Ids that the server wrote at one end of thinking: from `first` up to, not including, `after`.

    They begin inside `block`, and go on behind it with what the family writes after an end marker.
    """

    block: Block
    first: int
    after: int


def runs(served: Served, ids: Sequence[int], reading: Reading, tokens: int, forced: int) -> Iterator[tuple[Run, ...]]:
    """Every way to place what the server says it wrote.

    A run ends its block, so of each block it is the last ids; behind the end marker each run has the same number of
    ids, unless the response ends within the last one. A start marker that the response begins with may be the server's
    too, where nothing was chosen in its block: a block that is implied and closes at once is written whole, or as far
    as the response has room.

    Args:
        tokens: `think.tokens`, ids that the model chose in thinking.
        forced: `think.forced_tokens`, ids that the server wrote.
    """
    yield from _placed(served, ids, reading, tokens, forced)
    first = reading.blocks[0].first if reading.blocks else 0
    if first and served.text(ids[:first]) == served.start:
        for placed in _placed(served, ids, reading, tokens, forced - first):
            if placed[0].first == first if placed else first == len(ids):
                yield placed


def _placed(served: Served, ids: Sequence[int], reading: Reading, tokens: int,
            forced: int) -> Iterator[tuple[Run, ...]]:
    """`runs`, with no start marker among them."""
    inside = reading.thinking - tokens
    behind = forced - inside
    if inside < 0 or behind < 0:
        return
    for parts in _parts(served, ids, reading.blocks, inside):
        ends = [(block, part) for block, part in zip(reading.blocks, parts, strict=True) if part]
        closed = sum(block.closed for block, _ in ends)
        for share in _shares(closed, behind):
            more = (*share, 0)  # of a block that is still open, which is the last
            placed = [Run(block, block.last + 1 - part, block.last + 1 + n)
                      for (block, part), n in zip(ends, more, strict=False)]
            if all(run.after <= len(ids) for run in placed):
                yield tuple(placed)


def _shares(ends: int, behind: int) -> Iterator[tuple[int, ...]]:
    """Ids behind each of so many end markers, `behind` together: the same number of each, the last one perhaps less."""
    if ends <= 1:
        if ends or not behind:
            yield (behind,) * ends
        return
    for each in range(behind + 1):
        last = behind - each * (ends - 1)
        if 0 <= last <= each:
            yield (each,) * (ends - 1) + (last,)


def _parts(served: Served, ids: Sequence[int], blocks: Sequence[Block], inside: int) -> Iterator[tuple[int, ...]]:
    """How many ids at the end of each block the server wrote, if they are `inside` together."""
    if not blocks:
        if not inside:
            yield ()
        return
    block, rest = blocks[0], blocks[1:]
    for part in range(min(inside, len(block)) + 1):
        text = served.text(ids[block.last + 1 - part : block.last + 1])
        if part and block.closed and not (text.endswith(served.end) or served.end.endswith(text)):
            continue
        yield from ((part, *others) for others in _parts(served, ids, rest, inside - part))
