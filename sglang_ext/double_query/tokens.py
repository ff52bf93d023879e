"""Prompts and markers in a model's token ids, from its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..vocab import added_tokens, token_bytes
from .thinking import open_in_prompt

_CONTROL_SHAPE = re.compile("<[|\uff5c][^<>]*[|\uff5c]>")  # DeepSeek writes a full-width bar

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or chat messages."""


def kind_of(prompt: Any) -> str:
    """`text`, `ids` or `messages`.

    Raises:
        ValueError: it is none of them, or empty.
    """
    if isinstance(prompt, str) and prompt:
        return "text"
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes) and len(prompt):
        if all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in prompt):
            return "ids"
        if all(isinstance(part, Mapping) for part in prompt):
            return "messages"
    raise ValueError(f"prompt: {prompt!r:.60} is not accepted; accepted: a text, token ids or chat messages, not empty")


def open_in_text(prompt: str, start: str, end: str) -> bytes | None:
    """`open_in_prompt` where only the text is known: a turn boundary is what looks like a control token."""
    boundary = 0
    for match in _CONTROL_SHAPE.finditer(prompt):
        boundary = match.end() if match[0] not in (start, end) else boundary
    return open_in_prompt(prompt[boundary:].encode(), start.encode(), end.encode())


@dataclass(frozen=True)
class Tokens:
    """A tokenizer, and how it writes the markers.

    Attributes:
        tokenizer: from transformers, or with that interface.
        start, end: the markers.
    """

    tokenizer: Any
    start: str
    end: str

    @cached_property
    def pieces(self) -> list[bytes]:
        """[vocab] bytes of each id."""
        return token_bytes(self.tokenizer)

    @cached_property
    def shown(self) -> list[bytes]:
        """[vocab] bytes that each id adds to a response's text: special tokens other than the markers add none."""
        hidden = {i for i, token in added_tokens(self.tokenizer).items() if token.special} - self._marker_ids
        return [b"" if i in hidden else piece for i, piece in enumerate(self.pieces)]

    @cached_property
    def start_id(self) -> int | None:
        """The id that is the whole start marker."""
        return self._one_id(self.start)

    @cached_property
    def end_id(self) -> int | None:
        """The id that is the whole end marker."""
        return self._one_id(self.end)

    @cached_property
    def _marker_ids(self) -> set[int]:
        return {i for i in (self.start_id, self.end_id) if i is not None}

    @cached_property
    def control_ids(self) -> set[int]:
        """Ids that are not text (turn boundaries and the like), markers left out."""
        added = added_tokens(self.tokenizer).items()
        return {i for i, t in added if t.special or _CONTROL_SHAPE.fullmatch(t.content)} - self._marker_ids

    def _one_id(self, text: str) -> int | None:
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None

    def encode(self, text: str) -> list[int]:
        """Ids that write exactly this text in the middle of a sequence.

        Raises:
            ValueError: the tokenizer does not write it so, even behind a line feed (where no space is put before it).
        """
        anchor = self._plain("\n")
        plain, behind = self._plain(text), self._plain("\n" + text)
        candidates = [plain] + [behind[len(anchor) :]] * (behind[: len(anchor)] == anchor)
        for ids in candidates:
            if b"".join(self.pieces[i] for i in ids) == text.encode():
                return ids
        raise ValueError(f"tokenizer: cannot write {text!r} as it is")

    def _plain(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def prompt(self, prompt: Prompt, template: Mapping[str, Any]) -> list[int]:
        """Ids of a prompt, as the server itself would encode it.

        Args:
            template: more arguments of the chat template, such as `enable_thinking`.
        """
        kind = kind_of(prompt)
        if kind == "ids":
            return list(prompt)  # type: ignore[arg-type]
        if kind == "text":
            return [int(i) for i in self.tokenizer.encode(prompt)]
        return self._plain(self.chat_text(prompt, template))

    def chat_text(self, messages: Any, template: Mapping[str, Any]) -> str:
        """Chat messages as one text."""
        return str(self.tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False,
                                                      add_generation_prompt=True, **template))

    def open_in(self, prompt: Sequence[int]) -> bytes | None:
        """`open_in_prompt`; the turn boundary is the last control token that is no marker."""
        begin = len(prompt)
        while begin and prompt[begin - 1] not in self.control_ids:
            begin -= 1
        data = b"".join(self.pieces[i] for i in prompt[begin:] if i < len(self.pieces))
        return open_in_prompt(data, self.start.encode(), self.end.encode())
