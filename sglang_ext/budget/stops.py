"""Which tokens of a response the budget wrote, and what a client's stop conditions are to it. No engine is imported.

Text that the server wrote stops nothing: neither by itself nor across the seam to what the model chose. So a stop
condition is looked for in each run of chosen tokens by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Seams:
    """The runs of forced tokens in one response. False while there is none."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []  # [begin, end) in output tokens, in order, not adjacent

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, forced: Sequence[bool], begin: int) -> None:
        """Note which tokens from `begin` on are forced. Tokens are noted once, in order."""
        for place, is_forced in enumerate(forced, begin):
            if not is_forced:
                continue
            if self._spans and self._spans[-1][1] == place:
                self._spans[-1] = (self._spans[-1][0], place + 1)
            else:
                self._spans.append((place, place + 1))

    def runs(self, length: int, new: int) -> Iterator[tuple[int, int]]:
        """The runs of chosen tokens, [begin, end), in a response of `length` tokens, that reach into the last `new`."""
        begin = 0
        for first, end in (*self._spans, (length, length)):
            if first > begin and first > length - new:
                yield begin, first
            begin = end

    def forced(self, place: int) -> bool:
        """Whether the budget wrote this token."""
        return any(begin <= place < end for begin, end in reversed(self._spans))


class StopText(str):
    """A stop string that was met, and how far from the response's end the run begins that it was met in.

    Attributes:
        behind: characters of that run, up to the end of the response.
    """

    behind: int

    def __new__(cls, text: str, behind: int) -> StopText:
        self = super().__new__(cls, text)
        self.behind = behind
        return self

    def __reduce__(self) -> Any:
        return StopText, (str(self), self.behind)

    def trimmed(self, text: str, keep: bool) -> str:
        """A response without the stop string and what follows it.

        Args:
            keep: leave the stop string itself.
        """
        place = text.find(self, max(0, len(text) - self.behind))
        if place < 0:
            return text
        return text[: place + len(self)] if keep else text[:place]
