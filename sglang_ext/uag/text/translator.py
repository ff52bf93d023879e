"""What translation reads of a pair of vocabularies, and why a pair cannot be translated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .specials import TURN_STARTS, SpecialMap
from .vocabulary import Vocabulary


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


def refusal(target_tokenizer: Any, draft_tokenizer: Any, target_size: int | None = None, draft_size: int | None = None,
            override: Mapping[str, str] | None = None) -> str | None:
    """Why the draft cannot draft for the target; None where it can.

    Args:
        target_tokenizer, draft_tokenizer: the objects that serve; None where there is none.
        target_size, draft_size: `vocab_size` of the models, if known.
        override: the operator's map of special tokens.
    """
    for role, tokenizer in (("target", target_tokenizer), ("draft", draft_tokenizer)):
        if tokenizer is None:
            return f"the {role} has no tokenizer; translation needs both"
    return refusal_of(Vocabulary.of(target_tokenizer, target_size), Vocabulary.of(draft_tokenizer, draft_size),
                      override)


def refusal_of(target: Vocabulary, draft: Vocabulary, override: Mapping[str, str] | None = None) -> str | None:
    """As `refusal`, for vocabularies that were read already. The same tokenizer always works: nothing is translated."""
    try:
        SpecialMap.of(target, draft, override)
    except ValueError as error:
        return str(error)
    if same_tokenizer(target, draft):
        return None
    for role, vocabulary in (("target", target), ("draft", draft)):
        if vocabulary.fault is not None:
            return f"{role}: {vocabulary.fault}"
    return None
