"""Where thinking stands in a response, and what is asked of the server next. Nothing here knows HTTP or a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from ..budget.byte_automaton import ByteAutomaton
from ..budget.byte_rules import Markers
from ..budget.byte_states import Inside, Outside
from ..budget.entries import Event

UNLIMITED = -1


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


@cache
def _machine(markers: Markers) -> ByteAutomaton:
    return ByteAutomaton(markers.without_tools(), everywhere=markers.anywhere)


@dataclass
class Thinking:
    """Follows a response and sees its thinking begin and end, by the automaton of the budget inside a server.

    Attributes:
        markers: what delimits thinking.
        used: tokens chosen inside blocks so far, the model's own end marker included; at most that many where `exact`
            is false.
        exact: whether every change was seen token by token.
        length: bytes of the response so far.
        blocks: in order.
    """

    markers: Markers
    used: int = 0
    exact: bool = True
    length: int = 0
    blocks: list[Block] = field(default_factory=list)
    _state: int = field(init=False)

    def __post_init__(self) -> None:
        self._state = _machine(self.markers).response_start

    def begin_inside(self, written: bytes) -> None:
        """The prompt left a block open, with `written` in it."""
        self.blocks.append(Block(0, 0))
        self._state, _ = _machine(self.markers).run(self._state, self.markers.start + written)

    @property
    def open(self) -> bool:
        """Whether a block is open."""
        return bool(self.blocks) and self.blocks[-1].inner_end is None

    @property
    def half_end(self) -> int:
        """Bytes of the end marker, in whole characters, that stand written at the end of an open block."""
        state, end = _machine(self.markers).states[self._state], self.markers.end
        written = state.end if isinstance(state, Inside) else 0
        return written if end[written] & 0xC0 != 0x80 else 0  # 10xxxxxx goes on with a character

    @property
    def half_start(self) -> bool:
        """Whether a start marker stands half-written where it would open a block."""
        state = _machine(self.markers).states[self._state]
        return isinstance(state, Outside) and bool(state.heads)

    def feed(self, data: bytes, tokens: int = 1, control: bool = False) -> None:
        """The model wrote `data`, in `tokens` tokens.

        Args:
            control: it is a control token: a block may open with it, and right behind it.
        """
        was_open, known = self.open, len(self.blocks)
        self._write(data, control)
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

    def _write(self, data: bytes, control: bool = False) -> None:
        machine = _machine(self.markers)
        self._state = int(machine.control[self._state]) if control else self._state
        for byte in data:
            self.length += 1
            self._state, events = machine.run(self._state, bytes([byte]))
            if events & Event.OPEN:
                self._opened()
            if events & Event.CLOSE:
                block = self.blocks[-1]
                block.inner_end, block.end = self.length - len(self.markers.end), self.length
        self._state = int(machine.control[self._state]) if control else self._state

    def _opened(self) -> None:
        """A start marker is complete, or the label behind one."""
        if self.open:
            self.blocks[-1].inner_begin = self.length
        else:
            self.blocks.append(Block(self.length - len(self.markers.start), self.length))


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
