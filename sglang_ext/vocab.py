"""What each token id writes, in bytes, for the kinds of tokenizer in use.

Decoding to text is lossy: half of a character becomes U+FFFD. Bytes are exact, so everything that looks for markers or
translates between tokenizers works on bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_SENTENCEPIECE_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
UNKNOWN = b"\xff"
"""Stands for a byte sequence that cannot be recovered; 0xFF occurs in no UTF-8 text, so it matches no marker."""


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte, the table of GPT-2's byte-level BPE: printable Latin-1 stands for itself, the other bytes are
    moved to U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(moved)}


_BYTE_LEVEL = _byte_level_alphabet()


class ControlToken(NamedTuple):
    """A control token of a tokenizer that keeps no record of added tokens; named as `tokenizers.AddedToken` is."""

    content: str
    special: bool = True


class Ranks(NamedTuple):
    """A `tiktoken.Encoding` and how far its ranks are shifted in the vocabulary."""

    encoding: Any
    shift: int = 0


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Bytes of every id of a Hugging Face tokenizer, or of one with its interface.

    Args:
        tokenizer: fast (any backend model), slow SentencePiece, or tiktoken-based.

    Returns:
        [vocab] bytes, the index is the id; empty where the vocabulary has a hole.
    """
    pieces = dict(_regular_pieces(tokenizer))
    pieces |= {i: token.content.encode() for i, token in added_tokens(tokenizer).items()}
    size = max(pieces, default=-1) + 1
    return [pieces.get(i, b"") for i in range(size)]


def added_tokens(tokenizer: Any) -> dict[int, Any]:
    """The tokenizer's added tokens by id, each with `content` and `special`."""
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if isinstance(added, Mapping):
        return dict(added)
    return {i: ControlToken(text) for i, text in _control_tokens(tokenizer)}


def ranks_of(tokenizer: Any) -> Ranks | None:
    """The tiktoken encoding within a tokenizer: transformers' wrappers, sglang's, mistral-common's tekken."""
    inner = _mistral_common(tokenizer)
    if hasattr(inner, "num_special_tokens") and hasattr(getattr(inner, "_model", None), "decode_single_token_bytes"):
        return Ranks(inner._model, inner.num_special_tokens)
    for name in ("model", "encoder", "tokenizer"):
        candidate = getattr(tokenizer, name, None)
        if hasattr(candidate, "decode_single_token_bytes") and hasattr(candidate, "n_vocab"):
            return Ranks(candidate)
    return None


def sentencepiece_of(tokenizer: Any) -> Any | None:
    """The `SentencePieceProcessor` within a slow tokenizer or mistral-common's."""
    for candidate in (getattr(tokenizer, "sp_model", None), getattr(_mistral_common(tokenizer), "_model", None)):
        if hasattr(candidate, "id_to_piece") and hasattr(candidate, "serialized_model_proto"):
            return candidate
    return None


def kind_of(tokenizer: Any) -> str:
    """`tiktoken`, `byte-level`, `sentencepiece`, or `text` where pieces are known only through decoding."""
    if ranks_of(tokenizer) is not None:
        return "tiktoken"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "sentencepiece" if sentencepiece_of(tokenizer) or hasattr(tokenizer, "sp_model") else "text"
    spec = json.loads(backend.to_str())
    parts = [part["type"] for part in components(spec.get("decoder"))]
    parts += [part["type"] for part in components(spec.get("pre_tokenizer"))]
    if "ByteLevel" in parts:
        return "byte-level"
    if "ByteFallback" in parts or "Metaspace" in parts or spec.get("model", {}).get("byte_fallback"):
        return "sentencepiece"
    return "text"


def components(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The parts of a decoder, normalizer or pre-tokenizer of `tokenizer.json`, sequences taken apart."""
    if part is None:
        return
    children = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers")
    if children is None:
        yield part
        return
    for child in children:
        yield from components(child)


def _mistral_common(tokenizer: Any) -> Any:
    return getattr(getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None), "tokenizer", None)


def _control_tokens(tokenizer: Any) -> Iterator[tuple[int, str]]:
    ranks, processor = ranks_of(tokenizer), sentencepiece_of(tokenizer)
    if ranks is not None:
        named = {t["rank"]: t["token_str"] for t in getattr(_mistral_common(tokenizer), "_all_special_tokens", [])}
        yield from (named or {i: text for text, i in getattr(ranks.encoding, "_special_tokens", {}).items()}).items()
    elif processor is not None:
        ids = range(processor.vocab_size())
        yield from ((i, processor.id_to_piece(i)) for i in ids if processor.is_control(i) or processor.is_unknown(i))


def _regular_pieces(tokenizer: Any) -> Iterator[tuple[int, bytes]]:
    ranks = ranks_of(tokenizer)
    if ranks is not None:
        for i in range(ranks.encoding.n_vocab):
            try:
                yield i + ranks.shift, ranks.encoding.decode_single_token_bytes(i)
            except KeyError:
                continue
        return
    kind = kind_of(tokenizer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    for token, i in vocabulary.items():
        yield i, _piece_bytes(tokenizer, token, i, kind)


def _piece_bytes(tokenizer: Any, token: str, i: int, kind: str) -> bytes:
    if kind == "byte-level":
        try:
            return bytes(_BYTE_LEVEL[c] for c in token)
        except KeyError:
            return token.encode()
    if kind == "sentencepiece":
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(_SENTENCEPIECE_SPACE, " ").encode()
    text: str = tokenizer.decode([i])
    return text.encode() if "\ufffd" not in text else UNKNOWN
