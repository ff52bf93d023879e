"""The draft's ids of a text that grows at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .vocabulary import Segment, Untranslatable, Vocabulary, incomplete

LONG = 1024
"""Bytes without a proven boundary from which on a boundary is accepted that reproduces the ids after it."""
MOST = 4096
"""Bytes without any boundary from which on the text is only encoded again each time it has doubled."""
_TRIES = 4
_KEPT = 64  # bytes; of text that cannot be written and has no line ends, what is tried again

Part = bytes | tuple[int, ...]
"""Text, or an atom: the draft's ids for it, none where it is opaque."""


class DraftText:
    """The draft's ids of a growing text, with everything that its vocabulary cannot write left out.

    Attributes:
        ids: the draft's ids so far.
        num_unchanged: ids at the start that the last `extend` left as they were.
        pending: bytes at the end that begin a character; they are not in `ids`.
        unavailable_reason: why the end of the text is not in `ids`; None where it is.
        num_encoded: ids that all encodings so far produced; a failed encoding counts its bytes.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.ids: list[int] = [] if vocabulary.bos is None else [vocabulary.bos]
        self.num_unchanged = 0
        self.pending = b""
        self.unavailable_reason: str | None = vocabulary.fault
        self.num_encoded = 0
        self._num_stable = len(self.ids)  # ids that no text to come can change
        self._tail = b""  # the text after them
        self._start = True  # whether nothing stands before the tail
        self._reason = ""  # why the last failed encoding failed
        self._retry = 0  # bytes of the tail below which it is not encoded again

    @property
    def empty(self) -> bool:
        """Whether no text has been read."""
        return self._start and not self._tail

    def extend(self, parts: Iterable[Part]) -> None:
        """Append text and atoms."""
        kept = self._num_stable
        before = self.ids[kept:]
        del self.ids[kept:]
        self.unavailable_reason = self._vocabulary.fault
        if self.unavailable_reason is None:
            for part in parts:
                if isinstance(part, bytes):
                    self._tail += part
                else:
                    self._end_run(part)
            self._read_tail()
        self.num_unchanged = kept + common_prefix(before, self.ids[kept:])

    def _end_run(self, atom: tuple[int, ...]) -> None:
        """An atom is no text: what stands before it is complete."""
        if self._tail:
            self._retry = 0
            self._write(self._tail)
            self._restart(b"")
            self.unavailable_reason = None
        if atom:
            self.ids += atom
            self._restart(b"")

    def _restart(self, tail: bytes) -> None:
        """No text to come can change the ids so far; `tail` is the text after them."""
        self._num_stable, self._tail, self._start, self._retry = len(self.ids), tail, False, 0

    def _read_tail(self) -> None:
        held = incomplete(self._tail)
        body = self._tail[: len(self._tail) - held]
        self.pending = self._tail[len(body) :]
        if len(self._tail) < self._retry:
            self.unavailable_reason = f"no boundary in {len(self._tail)} bytes of text"
        elif body:
            self._write(body)

    def _write(self, body: bytes) -> None:
        segment = self._segment(body, self._start)
        if segment is None:
            self._leave_out(body)
            return
        base = len(self.ids)
        self.ids += segment.ids
        num_stable = segment.num_stable or (self._synchronised(body, segment) if len(body) > LONG else 0)
        if num_stable:
            self._tail = self._tail[segment.ends[num_stable - 1] :]
            self._num_stable, self._start, self._retry = base + num_stable, False, 0
        elif len(body) > MOST:
            self._retry = 2 * len(body)

    def _segment(self, body: bytes, start: bool) -> Segment | None:
        try:
            segment = self._vocabulary.segment(body, start)
        except Untranslatable as error:
            self._reason = str(error)
            self.num_encoded += len(body)
            return None
        self.num_encoded += len(segment.ids)
        return segment

    def _synchronised(self, body: bytes, segment: Segment) -> int:
        """Ids before a place in the middle from which the text encodes to the ids that it has; 0 if none is found."""
        first = next(k for k, end in enumerate(segment.ends, 1) if end >= len(body) - LONG // 2)
        for k in range(first, min(first + _TRIES, len(segment.ids))):
            rest = body[segment.ends[k - 1] :]
            if rest and rest[0] & 0xC0 != 0x80:
                again = self._segment(rest, False)
                if again is not None and again.ids == segment.ids[k:]:
                    return k
        return 0

    def _leave_out(self, body: bytes) -> None:
        """Text that cannot be written as a whole: without the characters, then the lines, that cannot."""
        *before, last = _writable_runs(self._vocabulary, body)
        if not before and last == body:
            head, last = _split_for_retry(body)
            if not head:
                self.unavailable_reason = self._reason
                return
            before = head.splitlines(keepends=True)
        for run in filter(None, before):
            segment = self._segment(run, self._start)
            self.ids += segment.ids if segment is not None else ()
            self._start = False
        self._restart(last + self.pending)
        if last:
            self._write(last)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Ids at the start that are the same."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _writable_runs(vocabulary: Vocabulary, body: bytes) -> Iterator[bytes]:
    """The text without the characters, and bytes that are none, that the vocabulary cannot write; what stood between
    two of them may be empty."""
    run = b""
    for character in body.decode(errors="surrogateescape"):
        if vocabulary.writes(character):
            run += character.encode(errors="surrogateescape")
        else:
            yield run
            run = b""
    yield run


def _split_for_retry(body: bytes) -> tuple[bytes, bytes]:
    """What is given up line by line, and the last line; of a long line, its end."""
    cut = body.rfind(b"\n", 0, len(body) - 1) + 1
    if not cut and len(body) > 4 * _KEPT:
        cut = len(body) - _KEPT
        while body[cut] & 0xC0 == 0x80:
            cut += 1
    return body[:cut], body[cut:]
