"""A response's text taken apart into thinking and answer, by the automaton that the budget follows.

So a client sees as thinking what was counted and limited, in a stream as in one piece.
"""

from __future__ import annotations

from .automaton import Automaton, Markers
from .kernels.layout import INSIDE, PENDING, STATE_MASK, Event
from .prompt import Start


def half_written(text: bytes, marker: bytes) -> int:
    """Length of the longest beginning of `marker`, short of all of it, that `text` ends in."""
    return next((k for k in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:k])), 0)


class Splitter:
    """Takes apart one response, up to its first end; what follows is answer.

    Args:
        start: how the response starts.
        tools: whether the request has tools.

    Attributes:
        thinking: whether a block is open, or opens with the next byte.
    """

    def __init__(self, automaton: Automaton, start: Start, tools: bool) -> None:
        self._machine = automaton.bytewise
        self._pairs = automaton.pairs
        word = start.word
        if word == automaton.block_word(start.pair, tools):
            word = automaton.implied_word(start.pair, tools)  # a start marker that the model repeats is no thinking
        self._state = word & STATE_MASK
        self.thinking = word & (INSIDE | PENDING) != 0
        self._held = b""
        self._over = False

    def feed(self, text: str) -> tuple[str, str]:
        """What a text adds to the thinking and to the answer. What may be a piece of a marker waits."""
        thought, answer = b"", b""
        for byte in text.encode(errors="surrogatepass"):
            if self._over:
                answer += bytes([byte])
                continue
            more = self._byte(byte)
            thought, answer = thought + more[0], answer + more[1]
        if not self._over:
            free = len(self._held) - self._waiting()
            out, self._held = self._held[:free], self._held[free:]
            thought, answer = (thought + out, answer) if self.thinking else (thought, answer + out)
        return thought.decode(errors="replace"), answer.decode(errors="replace")

    def rest(self) -> str:
        """What still waits, as the response is over. A block that is only implied has no token yet, so a piece of its
        start marker is no thinking."""
        held, self._held = self._held, b""
        self.thinking = self.thinking and not self._machine.words[self._state] & PENDING
        return held.decode(errors="replace")

    def _byte(self, byte: int) -> tuple[bytes, bytes]:
        machine = self._machine
        if self._pairs[0].anywhere:
            self._state = int(machine.control[self._state])
        block = self._block
        self._state, events = machine.run(self._state, bytes([byte]))
        self._held += bytes([byte])
        if events & (Event.CLOSE | Event.IMPLICIT):
            self._over, self.thinking = True, False
            at = len(self._held) - len(block.end) if events & Event.CLOSE else self._implicit(block)
            return self._cut(at, keep=not events & Event.CLOSE)
        if events & Event.OPEN:
            was_pending, self.thinking = self.thinking, True
            before = self._held[: max(0, self._held.rfind(self._block.start))]
            self._held = b""
            return b"", b"" if was_pending else before
        return b"", b""

    @property
    def _block(self) -> Markers:
        """The markers of the block, where one is open."""
        return self._machine.rules[self._machine.states[self._state].rules]

    def _cut(self, at: int, keep: bool = False) -> tuple[bytes, bytes]:
        held, self._held = self._held, b""
        return held[:at], held[at:] if keep else b""

    def _implicit(self, block: Markers) -> int:
        """Where the implicit end begins that is complete now."""
        return max(self._held.rfind(i.marker) for i in block.implicit)

    def _waiting(self) -> int:
        """How many of the last bytes may be a piece of a marker."""
        held = self._held
        if self._machine.words[self._state] & PENDING:
            return len(held)
        if not self.thinking:
            return max(half_written(held, pair.start) for pair in self._pairs)
        waiting = half_written(held, self._block.end)
        for spec in self._block.implicit:
            at = held.rfind(spec.marker)
            behind = held[at + len(spec.marker) :].lstrip()
            if at >= 0 and spec.heads and any(head.startswith(behind) for head in spec.heads):
                waiting = max(waiting, len(held) - at)
            waiting = max(waiting, half_written(held, spec.marker))
        return waiting
