"""What a draft's ids mean to the target: the target's ids for the text that the draft wrote."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .translator import Translator
from .vocabulary import Untranslatable, Vocabulary, incomplete

PENDING, SPECIAL, UNTRANSLATABLE, END = "pending", "special", "untranslatable", "end"
_KEPT, _MOST = 96, 256  # bytes of context: how many are kept once there are more than the most
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids of the target that a draft's ids mean.

    Attributes:
        ids: at most as many as were requested.
        cause: why there are no more of them; None where all of the draft was translated, or as much as was requested.
            `pending`: the draft does not complete the character that the target has begun.
            `special`: a control token without a counterpart. `untranslatable`: text that the target's vocabulary cannot
            write. `end`: the draft ended the text. Where no draft is possible, the context's `unavailable_reason`.
        used: ids of the draft that `ids` cover, in whole or in part.
    """

    ids: tuple[int, ...]
    cause: str | None
    used: int


class TargetContext:
    """The last confirmed tokens of the target since its last control token.

    Attributes:
        num_encoded: ids that all encodings so far produced.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces: list[bytes] = []
        self._start = True  # whether the pieces begin the text
        self.num_encoded = 0

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
        if self._start and self._vocabulary.dummy_prefix and before.startswith(b" "):
            before = before[1:]
        if before or self._start:
            try:
                segment = self._vocabulary.segment(before + data, self._start)
            except Untranslatable:
                self.num_encoded += len(before) + len(data)
            else:
                self.num_encoded += len(segment.ids)
                known = bisect_right(segment.ends, len(before)) if before else 0
                if not before or segment.ends[max(known - 1, 0)] == len(before):
                    return segment.ids[known:]
        ids = self._vocabulary.encode(data, start=False)
        self.num_encoded += len(ids)
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


class ProposalBuilder:
    """Builds one proposal."""

    def __init__(self, translator: Translator, context: TargetContext, pending: bytes, opening: bool, max_tokens: int
                 ) -> None:
        self._translator, self._max_tokens, self._pending = translator, max_tokens, pending
        self._context: TargetContext | None = context  # None after an atom: text then has no context
        self._dummy = opening and translator.draft.dummy_prefix
        self._ids: list[int] = []
        self._used = 0
        self._cause: str | None = None

    def build(self, draft_ids: Sequence[int]) -> Proposal:
        pieces, to_target = self._translator.draft.pieces, self._translator.specials.to_target
        data, ends = b"", list[int]()  # text since the last atom; bytes up to the end of each of the draft's ids
        for i in draft_ids:
            piece = pieces[i] if 0 <= i < len(pieces) else b""
            if piece and i not in to_target:
                data += piece
                ends.append(len(data))
                continue
            if self._write(data, ends):
                self._atom(to_target.get(i))
            data, ends = b"", []
            if self._cause or len(self._ids) >= self._max_tokens:
                break
        else:
            self._write(data, ends, last=True)
        return Proposal(tuple(self._ids), self._cause, self._used)

    def _atom(self, i: int | None) -> None:
        if self._pending or i is None:
            self._cause = PENDING if self._pending else SPECIAL
        elif len(self._ids) < self._max_tokens:
            self._ids.append(i)
            self._used += 1
            self._context = None
            self._cause = END if i in self._translator.target.eos else None

    def _write(self, data: bytes, ends: list[int], last: bool = False) -> bool:
        """Append the target's ids of text. Returns whether all of the text was appended."""
        if not data:
            return True
        skipped = len(self._pending)
        if not data.startswith(self._pending):
            self._cause = PENDING
            return False
        if self._dummy and data.startswith(b" "):
            skipped = 1
        self._pending, self._dummy = b"", False
        held = incomplete(data) if last else 0
        covered = skipped
        for ids, size in self._runs(data[skipped : len(data) - held]):
            room = self._max_tokens - len(self._ids)
            self._ids += ids[:room]
            pieces = self._translator.target.pieces
            covered += size if len(ids) <= room else sum(len(pieces[i]) for i in ids[:room])
            if len(ids) > room:
                break
        if covered > skipped:
            self._used += min(bisect_left(ends, covered) + 1, len(ends))
        return self._cause is None and covered == len(data)

    def _runs(self, body: bytes) -> Iterator[tuple[list[int], int]]:
        """Ids and bytes of the text's parts: text, and control tokens that the draft writes as text."""
        translator = self._translator
        parts = translator.spelling.split(body) if translator.spelling else [body]
        for part in filter(None, parts):
            atom = translator.spelled.get(part)
            if atom is not None:
                self._context = None
                yield [atom], len(part)
                continue
            try:
                if self._context is None:
                    ids = translator.target.encode(part, start=False)
                else:
                    ids = self._context.continuation(part)
            except Untranslatable:
                self._cause = UNTRANSLATABLE
                return
            yield ids, len(part)
