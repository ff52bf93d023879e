"""Which bytes delimit a model's thinking, and how its vocabulary writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..vocab import added_tokens, token_bytes
from .automaton import Markers, Vocabulary
from .families import PLAIN, Family

_THINKING_WORD = re.compile(r"think|thought|reason", re.IGNORECASE)
_CONTROL_SHAPE = re.compile("<[|\uff5c].*[|\uff5c]>", re.DOTALL)  # DeepSeek writes a full-width bar
_OPPOSITES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("BOS", "EOS"))


def find_markers(tokenizer: Any, start: str | None, end: str | None,
                 family: Family | None) -> tuple[Markers, ...] | None:
    """The model's markers, from the operator, the reasoning parser, or the tokenizer's added tokens, in this order.

    Args:
        start, end: the operator's markers; both or neither.
        family: the row of the server's reasoning parser.

    Returns:
        The pairs of markers that a response may have, the usual one first; None if none of the three knows.

    Raises:
        ValueError: only one of start and end was given, or the two are equal.
    """
    row = family_of(tokenizer, start, end, family)
    return markers_of(tokenizer, row) if row is not None else None


def markers_of(tokenizer: Any, family: Family) -> tuple[Markers, ...]:
    """A row's pairs of markers, with what the tokenizer's chat template writes behind the end marker.

    Raises:
        ValueError: the two of a pair are equal.
    """
    return Markers.of(family, _line_break(getattr(tokenizer, "chat_template", None), family.end))


def family_of(tokenizer: Any, start: str | None, end: str | None, family: Family | None) -> Family | None:
    """The row that is in force; see `find_markers`."""
    if (start is None) != (end is None):
        raise ValueError("--think-start and --think-end go together: give both or neither")
    if start is not None and end is not None:
        if family is not None and (start, end) == (family.start, family.end):
            return family
        return replace(PLAIN, start=start, end=end) if start and end else None
    if family is None:
        pair = _pair_in_added_tokens(tokenizer)
        return replace(PLAIN, start=pair[0], end=pair[1]) if pair is not None else None
    return family if family.start and family.end else None


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


def vocabulary_of(tokenizer: Any, pairs: Markers | Sequence[Markers], eos_ids: Sequence[int], width: int) -> Vocabulary:
    """How a tokenizer's vocabulary writes the markers.

    Args:
        pairs: the pairs of markers that a response may have, the usual one first; or that one.
        eos_ids: ids that end a response, as the engine has them.
        width: how many ids the model can write; a tokenizer may know more.

    Raises:
        ValueError: the vocabulary cannot write an end marker.
    """
    pairs = (pairs,) if isinstance(pairs, Markers) else tuple(pairs)
    pieces = token_bytes(tokenizer)[:width]
    added = {i: token for i, token in added_tokens(tokenizer).items() if i < len(pieces)}
    texts = {text for pair in pairs for text in (pair.start, pair.end, pair.label, pair.line_break)}
    exact = {text: _exact(tokenizer, pieces, text) for text in texts}
    marker_ids = {i for pair in pairs for text in (pair.start, pair.end) for i in exact[text] or ()}
    control = {i for i, token in added.items() if token.special or _CONTROL_SHAPE.fullmatch(token.content)}
    headers = {part for pair in pairs for o in pair.openings for part in o.parts if isinstance(part, str)}
    header_ids = {i for i in added if i in marker_ids or added[i].content in headers}
    first, start = pairs[0], exact[pairs[0].start]
    draft = Vocabulary(
        pieces,
        start[0] if start is not None and len(start) == 1 else None,
        (),
        (),
        tuple(sorted({i for i in eos_ids if 0 <= i < len(pieces)})),
        frozenset(control - marker_ids),
        frozenset(header_ids),
        getattr(tokenizer, "bos_token_id", None),
        {text: tuple(ids) for text, ids in exact.items() if ids is not None},
    )
    return replace(draft, end_ids=draft.ids_of(first.end), break_ids=draft.ids_of(first.line_break))


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
