"""The target's own text, as the left context in which a continuation is encoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from .vocabulary import Untranslatable, Vocabulary

_KEPT, _MOST = 96, 256  # bytes of context: what is kept when there are more than the most
_BLANK = b" \t\r\n"


class TargetContext:
    """The last confirmed tokens of the target since its last control token.

    Attributes:
        encoded: ids that all encodings so far came to.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces: list[bytes] = []
        self._start = True  # whether the pieces begin the text
        self.encoded = 0

    def extend(self, ids: Iterable[int]) -> None:
        """Append confirmed ids; one that writes nothing is a control token."""
        pieces = self._vocabulary.pieces
        for i in ids:
            if 0 <= i < len(pieces) and pieces[i]:
                self._pieces.append(pieces[i])
            elif self._pieces or i != self._vocabulary.roles.get("bos"):
                self._pieces.clear()
                self._start = False
        if sum(map(len, self._pieces)) > _MOST:
            self._forget()

    def continuation(self, data: bytes) -> list[int]:
        """Ids that write `data` after the context.

        In context where the context ends with an id there; otherwise the history is not what the tokenizer writes, or
        the text grows its last token, and the data is encoded alone.

        Raises:
            Untranslatable: the vocabulary cannot write the data.
        """
        before = b"".join(self._pieces)
        if self._start and self._vocabulary.dummy_space and before.startswith(b" "):
            before = before[1:]
        if before or self._start:
            try:
                segment = self._vocabulary.segment(before + data, self._start)
            except Untranslatable:
                self.encoded += len(before) + len(data)
            else:
                self.encoded += len(segment.ids)
                known = bisect_right(segment.ends, len(before)) if before else 0
                if not before or segment.ends[max(known - 1, 0)] == len(before):
                    return segment.ids[known:]
        ids = self._vocabulary.encode(data, start=False)
        self.encoded += len(ids)
        return ids

    def _forget(self) -> None:
        """Keep the last words; where no word begins in reach, the last whole characters."""
        kept, fallback = 0, 0
        for k in range(len(self._pieces) - 1, 0, -1):
            piece, before = self._pieces[k], self._pieces[k - 1]
            kept += len(piece)
            if kept > _MOST:
                break
            if kept >= _KEPT and piece[0] & 0xC0 != 0x80:
                fallback = fallback or k
                if piece[0] in _BLANK and before[-1] not in _BLANK:
                    fallback = k
                    break
        del self._pieces[: fallback or len(self._pieces)]
        self._start = False
