"""Why a pair of models cannot draft for each other, said before anything is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .specials import SpecialMap
from .translation import same_tokenizer
from .vocabulary import Vocabulary


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
    """The same for vocabularies that were read already. The same tokenizer always works: nothing is translated."""
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
