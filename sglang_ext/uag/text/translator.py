"""A pair of vocabularies: the map of their control tokens, what translation reads of them, and why a pair is refused.

Control tokens are atoms: never text. Which one of the draft stands for which of the target's, in order: the operator's
override; the same control token; the same role (start of text, end, padding, turns, thinking); text, where the draft
has a text token that writes exactly this; else opaque: left out of what the draft reads, and no proposal crosses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import SettingsError
from .vocabulary import Vocabulary

TURN_STARTS = ("<|im_start|>", "<start_of_turn>", "<|START_OF_TURN_TOKEN|>", "<|turn>")
TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<|end|>", "<turn|>", "<|return|>",
             "<|end_of_text|>", "<|endoftext|>", "</s>")
"""Ends of turns first: the first that a vocabulary has is its end of a turn, and the rest end the text."""
THINK_STARTS = ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "◁think▷")
THINK_ENDS = ("</think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "◁/think▷")
OPAQUE = ""

Meaning = tuple[int, ...] | bytes | None
"""What the draft reads for an atom of the target: ids of its own, text, or nothing."""


@dataclass(frozen=True)
class SpecialMap:
    """The map between the control tokens of two vocabularies.

    Attributes:
        to_draft: for every control token of the target, and for text tokens with the role of one in the draft: ids of
            the draft, text for it to encode, or None where the token is opaque.
        to_target: the target's id for ids of the draft; a control token that is not in it ends a proposal.
    """

    to_draft: dict[int, Meaning]
    to_target: dict[int, int]

    @classmethod
    def of(cls, target: Vocabulary, draft: Vocabulary, override: Mapping[str, str] | None = None) -> SpecialMap:
        """Map two vocabularies.

        Args:
            override: target token -> draft token, or `""` for opaque; by the tokens' texts.

        Raises:
            ValueError: an override names a token that a vocabulary does not have.
        """
        chosen = _checked(target, draft, override or {})
        to_draft: dict[int, Meaning] = {}
        for i, text in target.added.items() | target.special.items():
            meaning = chosen[text] if text in chosen else _meaning(target, draft, i, text)
            if i in target.special or isinstance(meaning, tuple):
                to_draft[i] = meaning
        return cls(to_draft, _reverse(target, draft, to_draft, chosen))


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


def read_override(path: str) -> Mapping[str, str]:
    """A JSON object, target token to draft token, or to "" for none; empty where no file is named.

    Raises:
        SettingsError: there is no such file, or it is no such object.
    """
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--uag-map {path}: {error}; accepted: a JSON file") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError(f"--uag-map {path}: accepted: a JSON object of target token to draft token, both strings; "
                            '"" leaves a token out')
    return found


def _checked(target: Vocabulary, draft: Vocabulary, override: Mapping[str, str]) -> dict[str, Meaning]:
    """The override in ids; both sides must be added tokens."""
    chosen: dict[str, Meaning] = {}
    for ours, theirs in override.items():
        if ours not in target.named:
            raise ValueError(f"special-token map: the target has no token {ours!r}; accepted are its control and added "
                             f"tokens, such as {_some(target.named)}")
        if not isinstance(theirs, str):
            raise ValueError(f"special-token map: {ours!r} -> {theirs!r}; accepted is a token of the draft, or \"\"")
        i = draft.named.get(theirs)
        if theirs != OPAQUE and i is None:
            raise ValueError(f"special-token map: {ours!r} -> {theirs!r}, which the draft does not have; accepted are "
                             f"\"\" and its control and added tokens, such as {_some(draft.named)}")
        chosen[ours] = None if i is None else (i,)
    return chosen


def _some(texts: Iterable[str]) -> str:
    return ", ".join(repr(text) for text in sorted(texts)[:8])


def _meaning(target: Vocabulary, draft: Vocabulary, i: int, text: str) -> Meaning:
    same = draft.named.get(text)
    if same is not None and (same in draft.special or i in target.special):
        return (same,)
    partner = _partner(target, draft, i, text)
    if partner is not None and (partner in draft.special or i in target.special):
        return (partner,)
    names_a_role = i in target.roles.values() or text in TURN_STARTS + TURN_ENDS
    return text.encode() if not names_a_role and text.encode() in draft.texts else None


def _partner(target: Vocabulary, draft: Vocabulary, i: int, text: str) -> int | None:
    """The draft's token of the same role."""
    for role in (TURN_STARTS, THINK_STARTS, THINK_ENDS):
        if text in role:
            return _first(draft, role)
    if text in TURN_ENDS or i in target.eos:
        return turn_end(draft)
    if i == target.roles.get("bos"):
        return draft.bos
    if i == target.roles.get("pad"):
        return draft.roles.get("pad")
    return None


def _first(vocabulary: Vocabulary, texts: tuple[str, ...]) -> int | None:
    return next((i for text in texts if (i := vocabulary.named.get(text)) is not None), None)


def turn_end(vocabulary: Vocabulary) -> int | None:
    """The id that ends a turn, or the text where the vocabulary has no turns."""
    found = _first(vocabulary, TURN_ENDS)
    return vocabulary.roles.get("eos") if found is None else found


def _reverse(target: Vocabulary, draft: Vocabulary, to_draft: Mapping[int, Meaning], chosen: Mapping[str, Meaning]
             ) -> dict[int, int]:
    """Back, the surest first: the override, the same text, the target's own end, any other."""
    names = {**target.added, **target.special}
    to_target: dict[int, int] = {}

    def rank(i: int) -> tuple[bool, bool, bool, int]:
        meaning = to_draft[i]
        theirs = draft.added.get(meaning[0]) if isinstance(meaning, tuple) else None
        return names[i] not in chosen, names[i] != theirs, i != turn_end(target), i

    for i in sorted(to_draft, key=rank):
        meaning = to_draft[i]
        if isinstance(meaning, tuple) and len(meaning) == 1:
            to_target.setdefault(meaning[0], i)
    end = turn_end(target)
    for i in draft.eos | {i for i, text in draft.special.items() if text in TURN_ENDS}:
        if end is not None:
            to_target.setdefault(i, end)
    return to_target
