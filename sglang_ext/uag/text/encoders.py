"""Text to ids, for each kind of tokenizer: never a control token, and a dummy space only at the start of the text.

The tokenizers that serve are not touched: encoders work on copies.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any, NamedTuple, Protocol

from ...vocab import components, kind_of, ranks_of, sentencepiece_of

_UNMATCHABLE = "\ufdd0{}"  # a noncharacter: Unicode keeps it out of text
_CHARACTER_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]")
_HARMLESS_GROUPS = ("(?!\\S)", "(?:", "(?i:", "(?>", "(?s:", "(?-i:")
_LOOKAROUND = re.compile(r"\(\?|\\[bBAGzZ]|[\^$]")
_LOCAL_SPLITTERS = ("Metaspace", "WhitespaceSplit", "CharDelimiterSplit", "Punctuation")


class Encoded(NamedTuple):
    """Ids, and for each the number of the pre-token that it lies in; None where the encoder does not say."""

    ids: list[int]
    words: list[int] | None


class Encoder(Protocol):
    """A tokenizer's way from text to ids.

    Attributes:
        splits: how the tokenizer takes text apart before it looks up pieces. `words`: by a pattern that can begin anew
            at any of its boundaries and looks no further than two pre-tokens. `letters`: not at all, or at single
            characters. `unknown`: nothing can be said.
    """

    splits: str

    def encode(self, text: str, start: bool) -> Encoded: ...


def encoder_of(tokenizer: Any, pieces: list[bytes], special: set[int]) -> Encoder:
    """The encoder of a tokenizer.

    Args:
        tokenizer: fast, slow SentencePiece, tiktoken-based, or anything with `encode(text, add_special_tokens=False)`.
        pieces: [vocab], bytes of each id.
        special: ids of its control tokens.
    """
    ranks = ranks_of(tokenizer)
    if ranks is not None:
        return TiktokenEncoder(ranks.encoding, ranks.shift, pieces)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return FastEncoder(backend, special)
    processor = sentencepiece_of(tokenizer)
    return CallEncoder(tokenizer) if processor is None else SentencePieceEncoder(processor)


def describe(tokenizer: Any) -> str:
    """The kind of tokenizer in words: `byte-level BPE`, `sentencepiece Unigram`, `tiktoken`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model = json.loads(backend.to_str())["model"]["type"] if backend is not None else ""
    return f"{kind_of(tokenizer)} {model}".rstrip()


class FastEncoder:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, backend: Any, special: set[int]) -> None:
        spec = json.loads(backend.to_str())
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        _hide_control_pieces(spec, special)
        self._first = _built(spec)
        middle = copy.deepcopy(spec)
        _drop_dummy_space(middle)
        self._middle = self._first if middle == spec else _built(middle)
        self.splits = _splits(spec.get("pre_tokenizer"))

    def encode(self, text: str, start: bool) -> Encoded:
        encoding = (self._first if start else self._middle).encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, encoding.word_ids)


class SentencePieceEncoder:
    """A SentencePiece model, BPE or Unigram."""

    splits = "letters"

    def __init__(self, processor: Any) -> None:
        model = processor.serialized_model_proto()
        self._first = type(processor)(model_proto=model)
        self._middle = type(processor)(model_proto=model)
        self._middle.override_normalizer_spec(add_dummy_prefix=False)

    def encode(self, text: str, start: bool) -> Encoded:
        return Encoded(list((self._first if start else self._middle).encode(text)), None)


class TiktokenEncoder:
    """A `tiktoken.Encoding`; its pattern is run once more to know the pre-tokens."""

    def __init__(self, encoding: Any, shift: int, pieces: list[bytes]) -> None:
        import regex  # type: ignore[import-untyped]

        self._encoding, self._shift = encoding, shift
        self._lengths = [len(piece) for piece in pieces]  # [vocab], bytes
        self._pattern = regex.compile(encoding._pat_str)
        self.splits = "words" if _restartable(encoding._pat_str) else "unknown"

    def encode(self, text: str, start: bool) -> Encoded:
        ids = [i + self._shift for i in self._encoding.encode_ordinary(text)]
        return Encoded(ids, self._words(text, ids))

    def _words(self, text: str, ids: list[int]) -> list[int]:
        """A pre-token's bytes are those of whole ids."""
        words: list[int] = []
        lengths = (len(match[0].encode()) for match in self._pattern.finditer(text))
        word, left = -1, 0
        for i in ids:
            if left <= 0:
                word, left = word + 1, next(lengths, 0)
            words.append(word)
            left -= self._lengths[i]
        return words


class CallEncoder:
    """A tokenizer of which only the call is known."""

    splits = "unknown"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, start: bool) -> Encoded:
        return Encoded(list(self._tokenizer.encode(text, add_special_tokens=False)), None)


def _built(spec: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.encode_special_tokens = True  # control tokens are not looked for in text
    return tokenizer


def _hide_control_pieces(spec: dict[str, Any], special: set[int]) -> None:
    """A Unigram model finds its control tokens in text like any other piece: give them names that no text has."""
    if spec["model"].get("type") != "Unigram":
        return
    vocabulary = spec["model"]["vocab"]
    names = {}
    for i in special:
        if i < len(vocabulary):
            names[vocabulary[i][0]] = vocabulary[i][0] = _UNMATCHABLE.format(i)
    for token in spec["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])


def _drop_dummy_space(spec: dict[str, Any]) -> None:
    for part in components(spec.get("pre_tokenizer")):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    normalizer = spec.get("normalizer")
    if normalizer and normalizer["type"] == "Prepend":
        spec["normalizer"] = None
    elif normalizer and normalizer["type"] == "Sequence":
        normalizer["normalizers"] = [n for n in normalizer["normalizers"] if n["type"] != "Prepend"]


def _splits(pre_tokenizer: dict[str, Any] | None) -> str:
    parts = list(components(pre_tokenizer))
    if all(_is_local(part) for part in parts):
        return "letters"
    return "words" if all(_is_local(part) or _can_restart(part) for part in parts) else "unknown"


def _is_local(part: dict[str, Any]) -> bool:
    """Whether this pre-tokenizer looks at single characters only."""
    kind = part["type"]
    if kind == "ByteLevel":
        return not part.get("use_regex", True)
    if kind == "Digits":
        return bool(part["individual_digits"])
    if kind == "Split":
        return len(part["pattern"].get("String", "  ")) == 1
    return kind in _LOCAL_SPLITTERS


def _can_restart(part: dict[str, Any]) -> bool:
    if part["type"] == "Split":
        return _restartable(part["pattern"].get("Regex", "(?="))
    return part["type"] in ("ByteLevel", "Digits")


def _restartable(pattern: str) -> bool:
    """Whether a pattern of pre-tokens begun at one of its boundaries finds the same ones: it has no lookaround but the
    one for the end of white space."""
    pattern = _CHARACTER_CLASS.sub("", pattern)
    for group in _HARMLESS_GROUPS:
        pattern = pattern.replace(group, "")
    return _LOOKAROUND.search(pattern) is None
