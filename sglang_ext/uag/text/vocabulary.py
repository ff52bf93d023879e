"""One tokenizer's ids as bytes, and its way back from bytes to ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from ...vocab import UNKNOWN, added_tokens, kind_of, token_bytes
from .boundaries import Boundaries
from .encoders import Encoder, describe, encoder_of

_STARTS_OF_TEXT = ("<s>", "<bos>", "<BOS_TOKEN>", "<|begin_of_text|>", "<|begin▁of▁sentence|>", "<|startoftext|>")
"""Models with one of these were trained with it before every text, whatever their tokenizer's settings say."""
_ROLES = ("bos", "eos", "pad")
_PROBE = "The quick brown fox jumps over 13 lazy dogs; PACK MY BOX with 24567890 jugs"


class Untranslatable(ValueError):
    """Bytes that this tokenizer cannot write exactly."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Text as a vocabulary writes it."""

    ids: list[int]
    ends: list[int]  # [ids], bytes of the text up to the end of each id; the dummy space counts as none
    num_stable: int  # ids before the last proven boundary, see `boundaries`; 0 where there is none


@dataclass
class Vocabulary:
    """One tokenizer's ids as bytes, and its encoder. Immutable once made.

    Attributes:
        pieces: [size] bytes of each id; empty for control tokens and holes.
        special: control tokens (atoms) by id. Other added tokens are text.
        added: all added tokens by id, control tokens included.
        roles: the ids that the tokenizer names as `bos`, `eos` and `pad`.
        bos: the id that begins every text of the draft, None where it has none.
        eos: ids that end a text.
        dummy_prefix: whether the start of a text is written with a space before it.
        fault: why this tokenizer cannot write plain English text back exactly; None where it can.
        kind: the kind of tokenizer in words.
    """

    pieces: list[bytes]
    special: dict[int, str]
    added: dict[int, str]
    roles: dict[str, int]
    bos: int | None
    eos: frozenset[int]
    kind: str
    encoder: Encoder = field(repr=False)
    dummy_prefix: bool = field(init=False, default=False)
    fault: str | None = field(init=False, default=None)
    _byte_ids: dict[int, int] = field(init=False, repr=False)
    _boundaries: Boundaries = field(init=False, repr=False)
    _writable: dict[str, bool] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any, size: int | None = None) -> Vocabulary:
        """Read a tokenizer.

        Args:
            tokenizer: Hugging Face fast, slow SentencePiece, tiktoken-based, or mistral-common's; it is not changed.
            size: the model's `vocab_size`; ids from there on are never written, ids that the tokenizer lacks are holes.
        """
        pieces = token_bytes(tokenizer)
        if kind_of(tokenizer) == "text":  # there UNKNOWN is no byte, but what could not be decoded
            pieces = [b"" if piece == UNKNOWN else piece for piece in pieces]
        added = added_tokens(tokenizer)
        special = {i: str(token.content) for i, token in added.items() if token.special}
        roles = {role: i for role in _ROLES if (i := getattr(tokenizer, f"{role}_token_id", None)) is not None}
        for i in getattr(tokenizer, "all_special_ids", ()):
            special.setdefault(i, str(tokenizer.convert_ids_to_tokens(i)))
        size = len(pieces) if size is None else size
        pieces = [*pieces[:size], *[b""] * (size - len(pieces))]
        special = {i: text for i, text in special.items() if i < size}
        for i in special:
            pieces[i] = b""
        stops = set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
        eos = frozenset(i for i in {roles.get("eos"), *stops} if i is not None and i < size)
        return cls(pieces=pieces, special=special, added={i: str(t.content) for i, t in added.items() if i < size},
                   roles={role: i for role, i in roles.items() if i < size},
                   bos=_start_of_text(tokenizer, roles.get("bos"), special), eos=eos, kind=describe(tokenizer),
                   encoder=encoder_of(tokenizer, pieces, set(special)))

    def __post_init__(self) -> None:
        self._byte_ids = {piece[0]: i for i, piece in reversed(list(enumerate(self.pieces))) if len(piece) == 1}
        text_added = [len(self.pieces[i]) for i in self.added if len(self.pieces[i]) > 1]
        self._boundaries = Boundaries(self.encoder.splits, self.pieces, max(text_added, default=0))
        first = self.encoder.encode("a", True).ids
        self.dummy_prefix = b"".join(self.pieces[i] for i in first if i < len(self.pieces)) == b" a"
        try:
            self.encode(_PROBE.encode(), start=False)
        except Untranslatable as error:
            self.fault = f"the {self.kind} tokenizer does not write plain text back exactly: {error}"

    def encode(self, data: bytes, start: bool) -> list[int]:
        """Ids of text, as `segment` writes it."""
        return self.segment(data, start).ids

    def segment(self, data: bytes, start: bool) -> Segment:
        """Write text.

        Args:
            data: any bytes; those that are not UTF-8 become byte tokens.
            start: whether the text begins here, where SentencePiece puts a space before it.

        Returns:
            Ids without control tokens, whose bytes are the text, after a dummy space where `start` asks for it.

        Raises:
            Untranslatable: the vocabulary cannot write these bytes exactly.
        """
        ids: list[int] = []
        ends: list[int] = []
        num_stable = 0
        position = 0
        for part, valid in _utf8_runs(data):
            if valid:
                new, words = self._encode_text(part, start and position == 0)
                found = list(accumulate(len(self.pieces[i]) for i in new))
                dummy = found[-1] - len(part)
                found = [max(end - dummy, 0) for end in found] if dummy else found
                inner = self._boundaries.last(part, found, words)
                num_stable = len(ids) + inner if inner or position else 0
                ends += [position + end for end in found]
            else:
                new = [self._byte_id(byte) for byte in part]
                ends += range(position + 1, position + len(part) + 1)
                num_stable = len(ids) + len(new)
            ids += new
            position += len(part)
        return Segment(ids, ends, min(num_stable, max(len(ids) - 1, 0)))

    def writes(self, character: str) -> bool:
        """Whether the vocabulary can write this character, or this byte that is none, as `surrogateescape` has it."""
        known = self._writable.get(character)
        if known is None:
            try:
                known = bool(self.encode(character.encode(errors="surrogateescape"), start=False))
            except Untranslatable:
                known = False
            self._writable[character] = known
        return known

    @cached_property
    def texts(self) -> frozenset[bytes]:
        """What single tokens of text write."""
        return frozenset(self.pieces)

    @cached_property
    def named(self) -> dict[str, int]:
        """Control and added tokens by their text; a control token wins."""
        return {text: i for tokens in (self.added, self.special) for i, text in tokens.items()}

    def _encode_text(self, data: bytes, start: bool) -> tuple[list[int], list[int] | None]:
        ids, words = self.encoder.encode(data.decode(), start)
        written = self._written(ids)
        if written == data or (start and self.dummy_prefix and written == b" " + data):
            return ids, words
        if start and self.dummy_prefix:  # some tokenizers put spaces within the text, too: after added tokens
            return self._encode_text(b" " + data, False)
        raise Untranslatable(f"{_shown(data)} would be written {_shown(written)}")

    def _written(self, ids: list[int]) -> bytes:
        if any(i >= len(self.pieces) for i in ids):
            raise Untranslatable(f"text needs ids beyond the model's vocabulary of {len(self.pieces)}")
        return b"".join([self.pieces[i] for i in ids])

    def _byte_id(self, byte: int) -> int:
        if byte not in self._byte_ids:
            raise Untranslatable(f"the vocabulary has no token for the single byte 0x{byte:02X}")
        return self._byte_ids[byte]


def incomplete(data: bytes) -> int:
    """Bytes at the end that begin a character of UTF-8 (RFC 3629) and do not complete it; 0 to 3."""
    for length in range(1, min(3, len(data)) + 1):
        byte = data[-length]
        if byte & 0xC0 == 0x80:
            continue
        wanted = (byte >= 0xC2) + (byte >= 0xE0) + (0xF0 <= byte <= 0xF4)
        return length if byte <= 0xF4 and wanted >= length and _may_continue(data[-length:]) else 0
    return 0


def _may_continue(begun: bytes) -> bool:
    """Whether some character begins with these bytes: the decoder waits for more instead of refusing them."""
    try:
        begun.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def _utf8_runs(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The text in parts, each of UTF-8 or with no byte of it, in order."""
    while data:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield data[: error.start], True
            yield data[error.start : error.end], False
            data = data[error.end :]
        else:
            yield data, True
            return


def _start_of_text(tokenizer: Any, bos: int | None, special: dict[int, str]) -> int | None:
    """The id that the model expects before every text: what the tokenizer puts there, or is known to be needed."""
    if bos is None or bos not in special:
        return None
    try:
        written = list(tokenizer.encode("a", add_special_tokens=True))
    except TypeError:
        written = []
    adds = written[:1] == [bos] or getattr(tokenizer, "add_bos_token", None) is True
    return bos if adds or special[bos] in _STARTS_OF_TEXT else None


def _shown(data: bytes) -> str:
    text = data[:40].decode(errors="backslashreplace")
    return repr(text) + ("..." if len(data) > 40 else "")
