"""Which bytes delimit a model's thinking, and how its vocabulary writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..vocab import added_tokens, token_bytes
from .automaton import ImplicitEnd, Markers, Vocabulary

_THINKING_WORD = re.compile(r"think|thought|reason", re.IGNORECASE)
_CONTROL_SHAPE = re.compile("<[|\uff5c].*[|\uff5c]>", re.DOTALL)  # DeepSeek writes a full-width bar
_OPPOSITES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("BOS", "EOS"))


@dataclass(frozen=True)
class ParserMarkers:
    """What a reasoning parser looks for, as text."""

    start: str
    end: str
    implicit: tuple[tuple[str, bool], ...] = ()  # marker, only at a line start


def find_markers(tokenizer: Any, start: str | None, end: str | None, parser: ParserMarkers | None) -> Markers | None:
    """The model's markers, from the operator, the reasoning parser, or the tokenizer's added tokens, in this order.

    Args:
        start, end: the operator's markers; both or neither.
        parser: what the server's reasoning parser looks for.

    Returns:
        None if none of the three knows.

    Raises:
        ValueError: only one of start and end was given, or the two are equal.
    """
    if (start is None) != (end is None):
        raise ValueError("--think-start and --think-end go together: give both or neither")
    pair = (start, end) if start is not None else None
    if pair is None:
        pair = (parser.start, parser.end) if parser is not None else _pair_in_added_tokens(tokenizer)
    if pair is None or not pair[0] or not pair[1]:
        return None
    implicit = parser.implicit if parser is not None else ()
    return Markers(
        pair[0].encode(),
        pair[1].encode(),
        _line_break(getattr(tokenizer, "chat_template", None), pair[1]).encode(),
        tuple(ImplicitEnd(text.encode(), at_line_start) for text, at_line_start in implicit if text),
    )


def _pair_in_added_tokens(tokenizer: Any) -> tuple[str, str] | None:
    """The one pair of added tokens that is named after thinking, as `<think>` and `</think>` are."""
    texts = {token.content for token in added_tokens(tokenizer).values()}
    pairs = {(t, o) for t in texts if _THINKING_WORD.search(t) for o in _closings(t) if o in texts}
    if ("<think>", "</think>") in pairs:
        return "<think>", "</think>"
    return next(iter(pairs)) if len(pairs) == 1 else None


def _closings(opening: str) -> list[str]:
    """Texts that would close `opening`: a slash after its bracket, or an opposite word."""
    swapped = [opening.replace(a, b) for a, b in _OPPOSITES if a in opening]
    slashed = [f"{opening[:1]}/{opening[1:]}"] if "/" not in opening and not opening[:1].isalnum() else []
    return slashed + swapped


def _line_break(template: Any, end: str) -> str:
    """The line feeds that the chat template writes after the end marker; the longest run where it has several."""
    sources = template.values() if isinstance(template, dict) else [template or ""]
    runs = [run for source in sources for run in re.findall(re.escape(end) + r"((?:\\n|\n)+)", str(source))]
    return max((run.replace("\\n", "\n") for run in runs), key=len, default="")


def vocabulary_of(tokenizer: Any, markers: Markers, eos_ids: Sequence[int], width: int) -> Vocabulary:
    """How a tokenizer's vocabulary writes the markers.

    Args:
        eos_ids: ids that end a response, as the engine has them.
        width: how many ids the model can write; a tokenizer may know more.

    Raises:
        ValueError: the vocabulary cannot write the end marker.
    """
    pieces = token_bytes(tokenizer)[:width]
    added = added_tokens(tokenizer)
    start_ids = _exact(tokenizer, pieces, markers.start)
    end_ids = _exact(tokenizer, pieces, markers.end)
    marker_ids = {*(start_ids or ()), *(end_ids or ())}
    control = {i for i, token in added.items() if token.special or _CONTROL_SHAPE.fullmatch(token.content)}
    start_id = start_ids[0] if start_ids is not None and len(start_ids) == 1 else None
    known_eos = tuple(sorted({i for i in eos_ids if 0 <= i < len(pieces)}))
    draft = Vocabulary(pieces, start_id, (), (), known_eos, frozenset(control - marker_ids))
    break_ids = _exact(tokenizer, pieces, markers.line_break)
    return Vocabulary(
        pieces,
        start_id,
        tuple(end_ids if end_ids is not None else draft.spell(markers.end)),
        tuple(break_ids if break_ids is not None else draft.spell(markers.line_break)),
        draft.eos_ids,
        draft.control_ids,
    )


def encode_exact(tokenizer: Any, vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids that write exactly this text in the middle of a sequence: the tokenizer's own where they do.

    Raises:
        ValueError: the vocabulary cannot write it.
    """
    ids = _exact(tokenizer, vocabulary.pieces, text.encode())
    return ids if ids is not None else vocabulary.spell(text.encode())


def _exact(tokenizer: Any, pieces: Sequence[bytes], data: bytes) -> list[int] | None:
    """The tokenizer's ids for a text, if they write it to the byte; a tokenizer that puts a space before a text is
    asked again with the text behind a line feed."""
    if not data:
        return []
    text = data.decode()
    anchor = [int(i) for i in tokenizer.encode("\n", add_special_tokens=False)]
    for ids, drop in ((tokenizer.encode(text, add_special_tokens=False), 0),
                      (tokenizer.encode("\n" + text, add_special_tokens=False), len(anchor))):
        kept = [int(i) for i in ids[drop:]]
        writable = all(i < len(pieces) for i in kept) and list(map(int, ids[:drop])) == anchor[:drop]
        if writable and b"".join(pieces[i] for i in kept) == data:
            return kept
    return None
