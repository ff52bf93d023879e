"""A tokenizer for the draft, made from what the target reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...vocab import added_tokens
from .texts import Text

SEPARATOR = "<|pad|>"
"""Stands between unrelated texts in training and pads batches; the draft never has to predict it."""


def special_strings(tokenizer: Any, texts: Sequence[Text]) -> list[str]:
    """The target's special tokens that the draft has to know: those that its texts contain, and its end token."""
    known = [token.content for token in added_tokens(tokenizer).values() if token.special]
    return [s for s in known if s == tokenizer.eos_token or any(s in t.prompt or s in t.reply for t in texts)]


def splits_digits(tokenizer: Any) -> bool:
    """Whether the target writes every digit as a token of its own."""
    digits = "1234567890" * 3
    return len(tokenizer(digits, add_special_tokens=False)["input_ids"]) >= len(digits)


def train_tokenizer(target: Any, texts: Sequence[Text], size: int) -> Any:
    """Byte-level BPE with the role markers and the end token of the target, and digits split as the target splits them.

    Args:
        target: the target's tokenizer.
        texts: prompts and replies; every byte sequence can be encoded, these decide what is short.
        size: entries of the vocabulary, special tokens included.

    Returns:
        A `PreTrainedTokenizerFast` with the target's end token as its own and SEPARATOR as padding.

    Raises:
        ValueError: the vocabulary cannot hold 256 bytes and the special tokens.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    from ...training import byte_level_bpe

    specials = [SEPARATOR, *special_strings(target, texts)]
    if size < 256 + len(specials):
        raise ValueError(f"vocabulary {size}: accepted is 256 bytes + {len(specials)} special tokens or more")
    tokenizer = byte_level_bpe(_without(specials, texts), size,
                               [AddedToken(s, normalized=False, special=True) for s in specials],
                               digits=splits_digits(target))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=target.eos_token, pad_token=SEPARATOR,
                                   chat_template=getattr(target, "chat_template", None),
                                   clean_up_tokenization_spaces=False)


def _without(specials: Sequence[str], texts: Sequence[Text]) -> list[str]:
    """What the vocabulary is learned from. Replies count double: prompts are read, replies have to be written."""
    parts = [part for t in texts for part in (t.prompt, t.reply, t.reply)]
    for special in specials:
        parts = [piece for part in parts for piece in part.split(special) if piece]
    return parts
