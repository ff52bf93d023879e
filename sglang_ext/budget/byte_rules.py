"""What delimits thinking, as bytes, and how a pattern stands half-written: the parts of the byte automaton."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .families import Family, Gap, Opening, Word

NEWLINE, ANGLE = 0x0A, 0x3C
SPACES = frozenset(b" \t\n\r\x0b\x0c")
WIDE_SPACES = frozenset(chr(c).encode() for c in (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                                                  0x205F, 0x3000))
"""White space that takes several bytes of UTF-8, as `str.isspace` has it."""
_HALF_SPACES = frozenset(s[:k] for s in WIDE_SPACES for k in range(1, len(s)))

Head = tuple[int, int, bytes]
"""An opening in progress: which, how many of its items, and what stands of a character of white space in a gap."""
Begun = int | tuple[int, int]
"""How far an implicit end stands written: bytes of its marker, or which of its heads and how far."""


@dataclass(frozen=True)
class ImplicitEnd:
    """A marker inside thinking that ends it without being its end marker: a tool call. See `families.Implicit`."""

    marker: bytes
    at_line_start: bool = False
    heads: tuple[bytes, ...] = ()
    name: bool = False
    with_tools: bool = False
    in_calls: bool = False
    until: bytes = b""

    def begun(self, fresh: bool, since: frozenset[Begun], byte: int) -> tuple[frozenset[Begun], bool]:
        """How far the marker stands written after one more byte, and whether it then ends the block.

        Args:
            fresh: whether a marker may begin behind this byte.
        """
        grown: set[Begun] = set()
        whole = len(self.marker)
        for k in since:
            if isinstance(k, tuple):
                head, n = k
                grown |= {(head, n + 1)} if self.heads[head][n] == byte else set()
            elif k < whole:
                grown |= {k + 1} if self.marker[k] == byte else set()
            else:
                grown |= {(i, 1) for i, head in enumerate(self.heads) if head[0] == byte}
                grown |= {whole + 1} if byte in SPACES else set()
                if self.name and k == whole and begins_a_name(byte):
                    return frozenset(), True
        ended = any(isinstance(k, tuple) and k[1] == len(self.heads[k[0]]) for k in grown)
        ended |= whole in grown and not self.heads and not self.name
        return frozenset(grown | {0} if fresh else grown), ended

    @property
    def patterns(self) -> Iterator[bytes]:
        """All that it looks for."""
        yield from (self.marker, *self.heads)


@dataclass(frozen=True)
class Markers:
    """What delimits thinking, as bytes; see `families.Family`.

    `line_break` is written after a forced end: what the model's template writes there, or the header of its answer.
    """

    start: bytes
    end: bytes
    line_break: bytes = b""
    implicit: tuple[ImplicitEnd, ...] = ()
    openings: tuple[Opening, ...] = ()
    label: bytes = b""
    anywhere: bool = False
    shared_end: bool = False

    def __post_init__(self) -> None:
        if not self.start or not self.end:
            raise ValueError(f"thinking markers must not be empty: start {self.start!r}, end {self.end!r}")
        if self.start == self.end:
            raise ValueError(f"thinking markers must differ, both are {self.start!r}")

    @classmethod
    def of(cls, family: Family, line_break: str) -> tuple[Markers, ...]:
        """The family's pairs; the first is the one that a response has of which nothing else is known.

        Args:
            line_break: what the chat template writes behind the end marker.

        Raises:
            ValueError: the row has no markers, or they are equal.
        """
        implicit = tuple(
            ImplicitEnd(i.marker.encode(), i.at_line_start, tuple(head.encode() for head in i.heads), i.name,
                        i.with_tools, i.in_calls, i.until.encode())
            for i in family.implicit if i.marker
        )
        after = line_break if family.answer is None else family.answer
        return tuple(
            cls(start.encode(), end.encode(), after.encode(), implicit, family.openings, family.label.encode(),
                family.anywhere, family.shared_end)
            for start, end in ((family.start, family.end), *family.more)
        )

    def without_stops(self, stops: Sequence[bytes]) -> Markers:
        """The same for a model that ends its responses with these texts."""
        return replace(self, implicit=tuple(i for i in self.implicit if i.in_calls or i.marker not in stops))

    def without_tools(self) -> Markers:
        """The same for a request that has no tools."""
        return replace(self, implicit=tuple(i for i in self.implicit if not i.with_tools))


def failure(pattern: bytes) -> list[int]:
    """Prefix function of Knuth, Morris and Pratt: length of the longest proper border of each prefix."""
    table = [0] * len(pattern)
    k = 0
    for i in range(1, len(pattern)):
        while k and pattern[i] != pattern[k]:
            k = table[k - 1]
        k += pattern[i] == pattern[k]
        table[i] = k
    return table


class Opened(NamedTuple):
    """What a complete opening opens: a block of which pair, and whether its header names a recipient."""

    pair: int
    call: bool


class Matcher:
    """Progress of one pattern in a stream of bytes; a whole match restarts from nothing, as a text search does."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.failure = failure(pattern)

    def step(self, k: int, byte: int) -> tuple[int, bool]:
        while k and byte != self.pattern[k]:
            k = self.failure[k - 1]
        k += byte == self.pattern[k]
        return (0, True) if k == len(self.pattern) else (k, False)


class Headers:
    """The openings of the pairs of markers that a request may have, as a machine over bytes that follows all of them at
    once.

    Args:
        pairs: the pair of a state's last block first; the other headers are the same for all.
    """

    def __init__(self, pairs: Sequence[Markers]) -> None:
        starts = [Opening((pair.start.decode(),)) for pair in pairs]
        self._openings = (*starts, *pairs[0].openings)
        self._items = [self._items_of(o) for o in self._openings]
        self._decided = [self._last_gap(items) if o.decides else None
                         for o, items in zip(self._openings, self._items, strict=True)]
        self._pairs = len(pairs)
        self._first = frozenset((o, 0, b"") for o in range(len(self._openings)))
        self._after: dict[tuple[Head, int], tuple[Head, ...]] = {}
        self._outcome: dict[frozenset[Head], tuple[frozenset[Head], Opened | None]] = {}

    @staticmethod
    def _items_of(opening: Opening) -> tuple[bytes | Gap, ...]:
        """Its gaps, and for each byte of its texts those that may stand there."""
        items: list[bytes | Gap] = []
        for part in opening.parts:
            if isinstance(part, Word):
                items += [f"{letter.lower()}{letter.upper()}".encode() for letter in part.text]
            else:
                items += [part] if isinstance(part, Gap) else [bytes([byte]) for byte in part.encode()]
        return tuple(items)

    @staticmethod
    def _last_gap(items: tuple[bytes | Gap, ...]) -> int:
        return max(i for i, item in enumerate(items) if isinstance(item, Gap))

    def step(self, heads: frozenset[Head], fresh: bool, byte: int) -> tuple[frozenset[Head], Opened | None]:
        """Openings in progress after one more byte, and what has opened, if anything has.

        Nothing begins in a gap of any bytes: what stands there is that header's.
        """
        fresh = fresh and all(self._items[o][at] is not Gap.ANY for o, at, _ in heads)
        begun = heads | self._first if fresh else heads
        grown = frozenset(after for head in begun for after in self._grown(head, byte))
        if grown not in self._outcome:
            self._outcome[grown] = self._settled(grown)
        return self._outcome[grown]

    def _settled(self, grown: frozenset[Head]) -> tuple[frozenset[Head], Opened | None]:
        decided = [o for o, at, _ in grown if at == self._decided[o]]
        if decided:
            grown = frozenset(head for head in grown if head[0] == min(decided))
        complete = sorted({o for o, at, _ in grown if at == len(self._items[o])})
        opening = [o for o in complete if self._openings[o].opens]
        if opening:
            pair = opening[0] if opening[0] < self._pairs else 0
            return frozenset(), Opened(pair, any(self._openings[o].call for o in opening))
        return frozenset() if complete else grown, None

    def _grown(self, head: Head, byte: int) -> tuple[Head, ...]:
        after = self._after.get((head, byte))
        if after is None:
            opening, at, half = head
            after = self._after[head, byte] = tuple((opening, *each) for each in self._next(opening, at, half, byte))
        return after

    def _next(self, opening: int, at: int, half: bytes, byte: int) -> Iterator[tuple[int, bytes]]:
        items = self._items[opening]
        item = items[at]
        if not isinstance(item, Gap):
            if byte in item:
                yield at + 1, b""
            return
        space = space_after(half, byte) if item in (Gap.SPACES, Gap.STOP) else None
        if space is not None:
            yield (at + 1 if item is Gap.STOP and not space else at), space
        if item is Gap.ANY or (item is Gap.TEXT and byte != ANGLE):
            yield at, b""
        if item is Gap.NAME and byte != ANGLE and byte not in SPACES:
            yield at, b""
            yield at + 1, b""
        elif item is not Gap.NAME and not half and (item is not Gap.STOP or byte == ANGLE):
            yield from self._next(opening, at + 1, b"", byte)


def byte_kinds(rules: Iterable[Markers]) -> list[int]:
    """For each byte, the lowest one that no rule tells from it."""
    telling: set[int] = {NEWLINE, ANGLE}
    for r in rules:
        texts = [r.start, r.end, r.label, r.line_break, *(p for i in r.implicit for p in (*i.patterns, i.until))]
        parts = [part for o in r.openings for part in o.parts]
        texts += [part.encode() for part in parts if isinstance(part, str)]
        texts += [(part.text.lower() + part.text.upper()).encode() for part in parts if isinstance(part, Word)]
        telling |= {byte for text in texts for byte in text}
    telling |= {byte for space in WIDE_SPACES for byte in space}
    lowest: dict[tuple[int, ...], int] = {}
    kinds = []
    for byte in range(256):
        kind = (byte if byte in telling else -1, byte in SPACES, begins_a_name(byte), 0x80 <= byte < 0xC0,
                still_missing(0, byte))
        kinds.append(lowest.setdefault(kind, byte))
    return kinds


def begins_a_name(byte: int) -> bool:
    """Whether it is a letter of ASCII or an underscore."""
    return byte < 0x80 and (chr(byte).isalpha() or byte == 0x5F)


def space_after(half: bytes, byte: int) -> bytes | None:
    """Whether a byte goes on with white space.

    Args:
        half: what stands of a character of white space that is not complete.

    Returns:
        The same after the byte, b"" where a character is complete; None if this is no white space.
    """
    character = half + bytes([byte])
    if character in WIDE_SPACES or (not half and byte in SPACES):
        return b""
    return character if character in _HALF_SPACES else None


def still_missing(missing: int, byte: int) -> int:
    """Bytes that a character of UTF-8 (RFC 3629) still needs after this one; 0 too where the bytes are not UTF-8."""
    if 0x80 <= byte < 0xC0:
        return max(0, missing - 1)
    return (0xC2 <= byte < 0xF5) + (0xE0 <= byte < 0xF5) + (0xF0 <= byte < 0xF5)


def solid(data: Iterable[int]) -> bytes:
    """Bytes without the white space around them."""
    return bytes(data).strip(bytes(SPACES))
