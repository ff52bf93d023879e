"""What each token id writes, in bytes, for the kinds of tokenizer in use.

Decoding to text is lossy: half of a character becomes U+FFFD. Bytes are exact, so everything that looks for markers or
translates between tokenizers works on bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

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
    return dict(getattr(tokenizer, "added_tokens_decoder", None) or {})


def _regular_pieces(tokenizer: Any) -> Iterator[tuple[int, bytes]]:
    encoding = _tiktoken_encoding(tokenizer)
    if encoding is not None:
        for i in range(encoding.n_vocab):
            try:
                yield i, encoding.decode_single_token_bytes(i)
            except KeyError:
                continue
        return
    kind = _kind(tokenizer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    for token, i in vocabulary.items():
        yield i, _piece_bytes(tokenizer, token, i, kind)


def _tiktoken_encoding(tokenizer: Any) -> Any | None:
    for name in ("model", "encoder", "tokenizer"):
        candidate = getattr(tokenizer, name, None)
        if hasattr(candidate, "decode_single_token_bytes") and hasattr(candidate, "n_vocab"):
            return candidate
    return None


def _kind(tokenizer: Any) -> str:
    """`byte-level`, `sentencepiece`, or `text` where pieces are known only through decoding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "sentencepiece" if hasattr(tokenizer, "sp_model") else "text"
    spec = json.loads(backend.to_str())
    parts = [part["type"] for part in _components(spec.get("decoder"))]
    parts += [part["type"] for part in _components(spec.get("pre_tokenizer"))]
    if "ByteLevel" in parts:
        return "byte-level"
    if "ByteFallback" in parts or "Metaspace" in parts or spec.get("model", {}).get("byte_fallback"):
        return "sentencepiece"
    return "text"


def _components(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if part is None:
        return
    children = part.get("decoders") or part.get("pretokenizers")
    if children is None:
        yield part
        return
    for child in children:
        yield from _components(child)


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
