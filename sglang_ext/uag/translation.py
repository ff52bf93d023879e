"""What a draft with another tokenizer reads of a request, and what its tokens mean to the target.

The draft reads its own tokenization of the confirmed text. Text is encoded again only from its last proven boundary
(`boundaries`), so the work of a round does not grow with the context, and what stands before is never changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from .context import TargetContext
from .drafted import DraftText, Part
from .specials import TURN_STARTS, SpecialMap
from .vocabulary import Untranslatable, Vocabulary, incomplete

_MEMORY = 256.0  # tokens of the target over which the draft's tokens for one of them are averaged

PENDING, SPECIAL, UNTRANSLATABLE, END = "pending", "special", "untranslatable", "end"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids of the target that a draft's ids mean.

    Attributes:
        ids: at most as many as were asked for.
        cause: why there are no more of them; None where all was translated, or enough. `pending`: the draft does not
            complete the character that the target has begun. `special`: a control token without a counterpart.
            `untranslatable`: text that the target's vocabulary cannot write. `end`: the draft ended the text. Of a
            blind reading, why it is blind.
        used: ids of the draft that `ids` cover, in whole or in part.
    """

    ids: tuple[int, ...]
    cause: str | None
    used: int


class Translator:
    """One per pair of vocabularies; it holds nothing of a request.

    Attributes:
        identity: whether both are the same tokenizer, then ids pass through. Padding may differ, and one may have
            control tokens after the other's last id: those the draft does not read, and the target is never offered.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, specials: SpecialMap) -> None:
        self.target, self.draft, self.specials = target, draft, specials
        self.identity = same_tokenizer(target, draft)
        texts = {meaning: i for i, meaning in specials.to_draft.items() if isinstance(meaning, bytes)}
        self.spelled: dict[bytes, int] = texts  # control tokens of the target that the draft writes as text
        self.spelling = re.compile(b"(" + b"|".join(map(re.escape, texts)) + b")") if texts else None
        bos = target.roles.get("bos")
        self.opening = bos if bos is not None and target.special.get(bos) not in TURN_STARTS else None

    def begin(self) -> Reading:
        """The reading of a new request."""
        return SameReading(self) if self.identity else TranslatedReading(self)


def same_tokenizer(target: Vocabulary, draft: Vocabulary) -> bool:
    """Whether every id up to the last one of the smaller vocabulary writes the same in both."""
    ours, theirs = _written(target), _written(draft)
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


def _written(vocabulary: Vocabulary) -> list[bytes]:
    """What each id writes, control tokens by their names, without the padding at the end."""
    out = list(vocabulary.pieces)
    for i, text in vocabulary.special.items():
        out[i] = text.encode()
    while out and not out[-1]:
        out.pop()
    return out


class Reading(Protocol):
    """The draft's reading of one request's text. Times are the caller's to take: nothing here reads a clock."""

    @property
    def draft_ids(self) -> list[int]:
        """The draft's tokenization of the confirmed text, less what is pending, opaque or not writable; read only."""

    @property
    def stable(self) -> int:
        """Ids at the start of `draft_ids` that the last `confirm` left as they were; a KV cache is good up to there."""

    @property
    def pending(self) -> bytes:
        """Bytes at the end of the confirmed text that begin a character."""

    @property
    def blind(self) -> str | None:
        """Why there is no draft; None where there may be one. A later `confirm` may end it."""

    @property
    def encoded(self) -> int:
        """Ids that all encodings so far came to, of both vocabularies."""

    def confirm(self, target_ids: Sequence[int]) -> None:
        """Append ids that the target confirmed: the prompt, later what was accepted. Ids that the target's vocabulary
        does not have are opaque."""

    def propose(self, draft_new_ids: Sequence[int], most: int) -> Proposal:
        """What ids mean to the target that the draft wrote after `draft_ids`.

        Args:
            draft_new_ids: ids of the draft, in order.
            most: ids of the target wanted at most.
        """

    def steps_for(self, tokens: int) -> int:
        """Steps of the draft that `tokens` ids of the target need, going by the text so far; at least 1."""


class SameReading:
    """Both models have the same tokenizer: ids pass through."""

    def __init__(self, translator: Translator) -> None:
        self._target, self._draft = translator.target, translator.draft
        self._ends = self._target.eos | self._draft.eos
        self.draft_ids: list[int] = []
        self.stable = 0
        self.pending = b""
        self.blind: str | None = None
        self.encoded = 0

    def confirm(self, target_ids: Sequence[int]) -> None:
        self.stable = len(self.draft_ids)
        self.draft_ids += [i for i in target_ids if _has(self._draft, i)]

    def propose(self, draft_new_ids: Sequence[int], most: int) -> Proposal:
        ids: list[int] = []
        for i in draft_new_ids[: max(most, 0)]:
            if not _has(self._target, i):
                return Proposal(tuple(ids), SPECIAL, len(ids))
            ids.append(i)
            if i in self._ends:
                return Proposal(tuple(ids), END, len(ids))
        return Proposal(tuple(ids), None, len(ids))

    def steps_for(self, tokens: int) -> int:
        return max(tokens, 1)


def _has(vocabulary: Vocabulary, i: int) -> bool:
    return 0 <= i < len(vocabulary.pieces) and (bool(vocabulary.pieces[i]) or i in vocabulary.special)


class TranslatedReading:
    """Two tokenizers."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._text = DraftText(translator.draft)
        self._context = TargetContext(translator.target)
        self._opening = True  # nothing but the start of text was confirmed
        self._target_count = 0.0  # recent ids of the target, and the draft's for the same text
        self._draft_count = 0.0

    @property
    def draft_ids(self) -> list[int]:
        return self._text.ids

    @property
    def stable(self) -> int:
        return self._text.stable

    @property
    def pending(self) -> bytes:
        return self._text.pending

    @property
    def blind(self) -> str | None:
        return self._translator.target.fault or self._text.blind

    @property
    def encoded(self) -> int:
        return self._text.encoded + self._context.encoded

    def confirm(self, target_ids: Sequence[int]) -> None:
        known = len(self._text.ids)
        self._text.extend(self._parts(target_ids))
        self._context.extend(target_ids)
        if self._text.blind is None:
            self._weigh(len(target_ids), len(self._text.ids) - known)

    def propose(self, draft_new_ids: Sequence[int], most: int) -> Proposal:
        if self.blind is not None or most <= 0:
            return Proposal((), self.blind, 0)
        writing = _Writing(self._translator, self._context, self.pending, self._text.empty, most)
        return writing.proposal(draft_new_ids)

    def steps_for(self, tokens: int) -> int:
        ratio = (self._draft_count + 1) / (self._target_count + 1)
        return max(1, ceil(tokens * ratio))

    def _parts(self, target_ids: Sequence[int]) -> Iterator[Part]:
        """Text in runs, and atoms. The start of the text is the draft's own: its BOS stands there already, and the
        target's dummy space is none of the text."""
        translator = self._translator
        pieces, meanings = translator.target.pieces, translator.specials.to_draft
        run = bytearray()
        for i in target_ids:
            opening, self._opening = self._opening, self._opening and i == translator.opening
            if opening and i == translator.opening:
                continue
            piece = pieces[i] if 0 <= i < len(pieces) else b""
            meaning = meanings.get(i, piece or None)
            if isinstance(meaning, bytes):
                dummy = opening and translator.target.dummy_space and meaning.startswith(b" ")
                run += meaning[1:] if dummy else meaning
                continue
            yield bytes(run)
            run.clear()
            yield meaning or ()
        yield bytes(run)

    def _weigh(self, target_ids: int, draft_ids: int) -> None:
        self._target_count += target_ids
        self._draft_count = max(self._draft_count + draft_ids, 0.0)
        if self._target_count > _MEMORY:
            self._draft_count *= _MEMORY / self._target_count
            self._target_count = _MEMORY


class _Writing:
    """One proposal in the making."""

    def __init__(self, translator: Translator, context: TargetContext, pending: bytes, opening: bool, most: int
                 ) -> None:
        self._translator, self._most, self._pending = translator, most, pending
        self._context: TargetContext | None = context  # None after an atom: text then has no context
        self._dummy = opening and translator.draft.dummy_space
        self._ids: list[int] = []
        self._used = 0
        self._cause: str | None = None

    def proposal(self, draft_ids: Sequence[int]) -> Proposal:
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
            if self._cause or len(self._ids) >= self._most:
                break
        else:
            self._write(data, ends, last=True)
        return Proposal(tuple(self._ids), self._cause, self._used)

    def _atom(self, i: int | None) -> None:
        if self._pending or i is None:
            self._cause = PENDING if self._pending else SPECIAL
        elif len(self._ids) < self._most:
            self._ids.append(i)
            self._used += 1
            self._context = None
            self._cause = END if i in self._translator.target.eos else None

    def _write(self, data: bytes, ends: list[int], last: bool = False) -> bool:
        """Append the target's ids of text; whether all of it was appended."""
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
            room = self._most - len(self._ids)
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
