"""What a draft with another tokenizer reads of a request.

The draft reads its own tokenization of the confirmed text. Text is encoded again only from its last proven boundary
(`boundaries`), so the work of a step does not grow with the context. What stands before that boundary never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Protocol

from .draft_text import DraftText, Part
from .proposal import END, SPECIAL, Proposal, ProposalBuilder, TargetContext
from .translator import Translator
from .vocabulary import Vocabulary

_MEMORY = 256.0  # tokens of the target over which the draft's tokens for one of them are averaged


def draft_context(translator: Translator) -> DraftContext:
    """The draft's context of a new request."""
    return SameTokenizerContext(translator) if translator.identity else TranslatedContext(translator)


class DraftContext(Protocol):
    """What the draft reads of one request. It reads no clock: the caller measures times."""

    @property
    def draft_ids(self) -> list[int]:
        """The draft's tokenization of the confirmed text, without pending bytes, opaque tokens and text that its
        vocabulary cannot write. Read only."""

    @property
    def num_unchanged(self) -> int:
        """Ids at the start of `draft_ids` that the last `confirm` did not change. A KV cache is valid up to there."""

    @property
    def pending(self) -> bytes:
        """Bytes at the end of the confirmed text that begin a character."""

    @property
    def unavailable_reason(self) -> str | None:
        """Why no draft is possible; None where one is. A later `confirm` may make it possible again."""

    @property
    def num_encoded(self) -> int:
        """Ids that all encodings so far produced, in both vocabularies."""

    def confirm(self, target_ids: Sequence[int]) -> None:
        """Append ids that the target confirmed: the prompt, later what was accepted. Ids that the target's vocabulary
        does not have are opaque."""

    def propose(self, draft_new_ids: Sequence[int], max_tokens: int) -> Proposal:
        """What ids mean to the target that the draft wrote after `draft_ids`.

        Args:
            draft_new_ids: ids of the draft, in order.
            max_tokens: most ids of the target that are wanted.
        """

    def steps_for(self, tokens: int) -> int:
        """Decode steps of the draft that `tokens` ids of the target need, by the ratio so far; at least 1."""


class SameTokenizerContext:
    """Both models have the same tokenizer: ids pass through."""

    def __init__(self, translator: Translator) -> None:
        self._target, self._draft = translator.target, translator.draft
        self._ends = self._target.eos | self._draft.eos
        self.draft_ids: list[int] = []
        self.num_unchanged = 0
        self.pending = b""
        self.unavailable_reason: str | None = None
        self.num_encoded = 0

    def confirm(self, target_ids: Sequence[int]) -> None:
        self.num_unchanged = len(self.draft_ids)
        self.draft_ids += [i for i in target_ids if _has(self._draft, i)]

    def propose(self, draft_new_ids: Sequence[int], max_tokens: int) -> Proposal:
        ids: list[int] = []
        for i in draft_new_ids[: max(max_tokens, 0)]:
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


class TranslatedContext:
    """Two tokenizers."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._text = DraftText(translator.draft)
        self._target_context = TargetContext(translator.target)
        self._opening = True  # nothing but the start of text was confirmed
        self._target_count = 0.0  # recent ids of the target, and the draft's for the same text
        self._draft_count = 0.0

    @property
    def draft_ids(self) -> list[int]:
        return self._text.ids

    @property
    def num_unchanged(self) -> int:
        return self._text.num_unchanged

    @property
    def pending(self) -> bytes:
        return self._text.pending

    @property
    def unavailable_reason(self) -> str | None:
        return self._translator.target.fault or self._text.unavailable_reason

    @property
    def num_encoded(self) -> int:
        return self._text.num_encoded + self._target_context.num_encoded

    def confirm(self, target_ids: Sequence[int]) -> None:
        known = len(self._text.ids)
        self._text.extend(self._parts(target_ids))
        self._target_context.extend(target_ids)
        if self._text.unavailable_reason is None:
            self._update_ratio(len(target_ids), len(self._text.ids) - known)

    def propose(self, draft_new_ids: Sequence[int], max_tokens: int) -> Proposal:
        if self.unavailable_reason is not None or max_tokens <= 0:
            return Proposal((), self.unavailable_reason, 0)
        builder = ProposalBuilder(self._translator, self._target_context, self.pending, self._text.empty, max_tokens)
        return builder.build(draft_new_ids)

    def steps_for(self, tokens: int) -> int:
        ratio = (self._draft_count + 1) / (self._target_count + 1)
        return max(1, ceil(tokens * ratio))

    def _parts(self, target_ids: Sequence[int]) -> Iterator[Part]:
        """Runs of text, and atoms. The draft's own BOS starts its text, so the target's is left out; so is the target's
        dummy prefix, which is no part of the text."""
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
                dummy = opening and translator.target.dummy_prefix and meaning.startswith(b" ")
                run += meaning[1:] if dummy else meaning
                continue
            yield bytes(run)
            run.clear()
            yield meaning or ()
        yield bytes(run)

    def _update_ratio(self, target_ids: int, draft_ids: int) -> None:
        self._target_count += target_ids
        self._draft_count = max(self._draft_count + draft_ids, 0.0)
        if self._target_count > _MEMORY:
            self._draft_count *= _MEMORY / self._target_count
            self._target_count = _MEMORY
