"""Where thinking stands in a response, and what is asked of the server next. Nothing here knows HTTP or a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..budget.byte_rules import space_after

UNLIMITED = -1
LINE_FEED = b"\n"
_NOWHERE, _HERE, _FRESH = 0, 1, 2  # where a block may open: not here; with the next byte; behind white space


def half_written(written: bytes, marker: bytes) -> int:
    """Length of the longest beginning of `marker`, short of all of it, that `written` ends in."""
    return next((k for k in range(min(len(marker) - 1, len(written)), 0, -1) if written.endswith(marker[:k])), 0)


def open_in_prompt(data: bytes, start: bytes, end: bytes) -> bytes | None:
    """What a prompt has written into the thinking block that it leaves open.

    Args:
        data: the prompt after its last turn boundary.

    Returns:
        None if it leaves no block open: the last delimiter decides.
    """
    _, marker, inside = data.rpartition(start)
    return inside if marker and end not in inside else None


@dataclass
class Block:
    """A thinking block as offsets into the response's bytes; the outer pair includes the markers."""

    begin: int
    inner_begin: int
    inner_end: int | None = None  # None while it is open
    end: int | None = None


@dataclass
class Thinking:
    """Follows a response and sees its thinking begin and end.

    A block opens at the start of the response or right behind an end marker, white space aside, and at the start of a
    line; anywhere else the start marker is text. Markers count however they are tokenized.

    Attributes:
        start, end: the markers.
        used: tokens chosen inside blocks so far, the model's own end marker included; at most that many where `exact`
            is false.
        exact: whether every change was seen token by token.
        length: bytes of the response so far.
        blocks: in order.
    """

    start: bytes
    end: bytes
    used: int = 0
    exact: bool = True
    length: int = 0
    blocks: list[Block] = field(default_factory=list)
    _recent: bytes = b""  # the last bytes on this side of the last marker
    _begun: frozenset[int] = frozenset()  # how far start markers stand written that began where a block may open
    _place: int = _FRESH  # whether one may begin with the next byte
    _space: bytes = b""  # of a character of white space that is not complete

    def begin_inside(self, written: bytes) -> None:
        """The prompt left a block open, with `written` in it."""
        self.blocks.append(Block(0, 0))
        self._recent = written[-len(self.end) :]

    @property
    def open(self) -> bool:
        """Whether a block is open."""
        return bool(self.blocks) and self.blocks[-1].inner_end is None

    @property
    def half_end(self) -> int:
        """Bytes of the end marker, in whole characters, that stand written at the end of an open block."""
        written = half_written(self._recent, self.end) if self.open else 0
        return written if self.end[written] & 0xC0 != 0x80 else 0  # 10xxxxxx goes on with a character

    @property
    def half_start(self) -> bool:
        """Whether a start marker stands half-written where it would open a block."""
        return not self.open and bool(self._begun)

    def feed(self, data: bytes, tokens: int = 1) -> None:
        """The model wrote `data`, in `tokens` tokens."""
        was_open, known = self.open, len(self.blocks)
        self._write(data)
        opened = len(self.blocks) > known
        if was_open or opened:
            self.used += tokens - (not was_open)  # the start marker takes a token, which is no thinking
        if tokens > 1 and (opened or was_open != self.open):
            self.exact = False

    def force(self, data: bytes) -> None:
        """The client wrote `data`, which counts as nobody's thinking."""
        self._write(data)

    def forget(self, n: int) -> None:
        """The last `n` bytes, which are no marker's, are left out of the response."""
        self.length -= n

    def _write(self, data: bytes) -> None:
        for byte in data:
            self.length += 1
            self._recent = (self._recent + bytes([byte]))[-len(self.end) :]
            if self.open:
                self._inside()
            else:
                self._outside(byte)

    def _inside(self) -> None:
        if self._recent == self.end:
            block = self.blocks[-1]
            block.inner_end, block.end = self.length - len(self.end), self.length
            self._restart()

    def _outside(self, byte: int) -> None:
        may_begin = self._place != _NOWHERE and not self._space
        begun = self._begun | {0} if may_begin else self._begun
        self._begun = frozenset(k + 1 for k in begun if self.start[k] == byte)
        if len(self.start) in self._begun:
            self.blocks.append(Block(self.length - len(self.start), self.length))
            self._recent, self._begun = b"", frozenset()
            return
        if self._recent == self.end:
            self._restart(self._begun)
            return
        space = space_after(self._space, byte)
        fresh = self._place == _FRESH and space is not None
        self._place = _FRESH if fresh else _HERE if byte == LINE_FEED[0] else _NOWHERE
        self._space = space if fresh and space is not None else b""

    def _restart(self, begun: frozenset[int] = frozenset()) -> None:
        """Right behind an end marker."""
        self._recent, self._begun, self._place, self._space = b"", begun, _FRESH, b""


def split(data: bytes, blocks: Iterable[Block]) -> tuple[bytes, bytes]:
    """The inside of the blocks, and what is left without them and their markers.

    Args:
        data: the response, or its beginning if it was cut.
    """
    inside, outside, done = b"", b"", 0
    for block in blocks:
        outside += data[done : block.begin]
        inside += data[block.inner_begin : block.inner_end]
        done = len(data) if block.end is None else block.end
    return inside, outside + data[done:]


@dataclass(frozen=True)
class Standing:
    """Where a response stands between two calls. Counts are in tokens.

    Attributes:
        left: tokens of `max_tokens` that are left.
        used: thinking so far.
        open: a block is open.
        opening: a start marker is half-written, or nothing is written yet, where most blocks open.
    """

    left: int
    used: int
    open: bool
    opening: bool


@dataclass(frozen=True)
class Ask:
    """Call the server for at most `max_tokens`; `guarded` calls also stop at a start marker."""

    max_tokens: int
    guarded: bool = False


@dataclass(frozen=True)
class Close:
    """Write what ends the thinking."""


def next_step(budget: int, standing: Standing) -> Ask | Close | None:
    """What comes after a call that ended by its length (or before the first one); None if the response is complete.

    No call may think beyond the budget. Inside a block it gets what is left of the budget. Outside, a block takes at
    least one token to open, so one more is safe; a longer call has to stop where a block may open.
    """
    if standing.left <= 0:
        return None
    if budget == UNLIMITED:
        return Ask(standing.left)
    remaining = max(0, budget - standing.used)
    if standing.open:
        return Ask(min(standing.left, remaining)) if remaining else Close()
    if standing.opening or standing.left <= remaining + 1:
        return Ask(min(standing.left, remaining + 1))
    return Ask(standing.left, guarded=True)
