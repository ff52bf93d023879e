"""Where thinking begins and ends in a text, by looking at all of it again at every byte; shares no code with the
automaton. Openings and calls are regular expressions here."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

SPACES = rb"[ \t\n\r\x0b\x0c]*"
WIDE = [c for c in range(0x80, 0x3001) if chr(c).isspace()]
SPACE = b"(?:[ \t\n\r\x0b\x0c]|" + b"|".join(chr(c).encode() for c in WIDE) + b")"


@dataclass(frozen=True)
class Delimiters:
    """What delimits thinking, and how a vocabulary writes it.

    Attributes:
        openings: parts of each header, a text or the name of a gap, and whether it has a recipient.
        implicit: each as `ImplicitEnd`.
        control: ids of control tokens.
        answer: what is written behind a forced end.
    """

    start: bytes
    end: bytes
    pieces: Sequence[bytes]
    eos_ids: Sequence[int]
    implicit: Sequence[Any] = ()
    openings: Sequence[tuple[Sequence[Any], bool]] = ()
    control: frozenset[int] = frozenset()
    answer: bytes = b""
    label: bytes = b""
    shared_end: bool = False
    everywhere: bool = False

    @cached_property
    def headers(self) -> list[tuple[re.Pattern[bytes], bool]]:
        """A pattern of each opening, and whether it has a recipient."""
        plain: list[tuple[Sequence[Any], bool]] = [((self.start.decode(),), False), *self.openings]
        return [(re.compile(b"".join(_part(p) for p in parts), re.DOTALL), call) for parts, call in plain]


def _part(part: Any) -> bytes:
    if isinstance(part, str):
        return re.escape(part.encode())
    if hasattr(part, "text"):
        return b"(?i:" + re.escape(part.text.encode()) + b")"
    return {"SPACES": SPACE + b"*", "SPACE": SPACE, "TEXT": rb"[^<]*", "ANY": rb".*"}[part.name]


@lru_cache(1 << 16)
def blank(text: bytes) -> bool:
    """Whether a text is white space, its last character perhaps not complete."""
    for cut in range(4):
        head, tail = text[: len(text) - cut], text[len(text) - cut :]
        try:
            whole = head.decode()
        except UnicodeDecodeError:
            continue
        half = not tail or any(chr(c).encode().startswith(tail) for c in WIDE)
        return (not whole or whole.isspace()) and half and not (set(whole) & {"\x1c", "\x1d", "\x1e", "\x1f"})
    return False


def complete(text: bytes) -> bool:
    """Whether a text ends with a whole character."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class Scanner:
    """One response. `place` is `outside`, `inside`, `pending` or `call`."""

    rules: Delimiters
    place: str = "outside"
    text: bytes = b""
    since: int = 0  # the end marker is looked for from here on
    fresh: int | None = 0  # behind this only white space may stand before an opening
    begins: list[int] = field(default_factory=list)  # further places where an opening may begin
    behind: int | None = None  # the last end, as long as nothing but white space and the answer's header follow it
    expected: bytes = b""
    spaced: bool = True
    first: int = 0  # where this place began
    recipient: bool = False
    until: bytes = b""

    def feed(self, token: int) -> set[str]:
        r, happened = self.rules, set[str]()
        if self.place == "pending" and token in r.eos_ids:
            return happened
        control = token in r.control or token in r.eos_ids
        if control and self.place == "outside":
            self.begins.append(len(self.text))
        for byte in r.pieces[token] if 0 <= token < len(r.pieces) else b"":
            self.text += bytes([byte])
            happened |= getattr(self, "_" + self.place)()
        if control and self.place == "outside":
            self.begins += self._fresh_places()
            self.fresh = len(self.text)
        return happened

    @property
    def inside(self) -> bool:
        return self.place == "inside"

    @property
    def thinking(self) -> bool:
        return self.place in ("inside", "pending")

    def imply(self) -> None:
        """What comes next is thinking."""
        self._wait(self.rules.start, spaced=True)

    def open(self) -> None:
        """A block opens here."""
        if self.rules.label and self.expected != self.rules.label:
            self._wait(self.rules.label, spaced=False)
        else:
            self.place, self.since, self.expected = "inside", len(self.text), b""

    def _wait(self, expected: bytes, spaced: bool) -> None:
        self.place, self.since, self.expected, self.spaced = "pending", len(self.text), expected, spaced

    def _leave(self, fresh: bool, behind: bool) -> None:
        here = self.first = len(self.text)
        self.place, self.since, self.begins, self.recipient = "outside", here, [], False
        self.fresh, self.behind = here if fresh else None, here if behind else None

    def _fresh_places(self) -> list[int]:
        """Places behind `fresh` where an opening may have begun."""
        if self.fresh is None:
            return []
        between = ((p, self.text[self.fresh : p]) for p in range(self.fresh, len(self.text)))
        return [p for p, text in between if blank(text) and complete(text)]

    def _outside(self) -> set[str]:
        r, text = self.rules, self.text
        places = list(range(self.first, len(text)) if r.everywhere else self.begins)
        places += self._fresh_places()
        matched = [call for header, call in r.headers for p in places if header.fullmatch(text, p)]
        if matched:
            self.recipient = any(matched)
            self.open()
            return {"open"}
        if text[self.since :].endswith(r.end):
            again = self.behind is not None and self._nothing_since(text[self.behind : len(text) - len(r.end)])
            self.since, self.fresh = len(text), len(text)
            self.behind = len(text) if again else None
            return {"end outside"} if again else set()
        if text.endswith(b"\n"):
            self.begins.append(len(text))
        header = r.answer.strip()
        if header and self.behind is not None and text.endswith(header) and self._nothing_since(
                text[self.behind : len(text) - len(header)], header=False):
            self.fresh = len(text)
        return set()

    def _nothing_since(self, text: bytes, header: bool = True) -> bool:
        answer = self.rules.answer.strip()
        texts = [text]
        if header and answer:
            texts += [text[: i] + b"\0" + text[i + len(answer) :] for i in range(len(text))
                      if text[i:].startswith(answer)]
        return any(all(blank(part) and complete(part) for part in t.split(b"\0", 1)) for t in texts)

    def _pending(self) -> set[str]:
        seen, wanted = self.text[self.since :], self.expected
        body = seen
        if self.spaced:
            n = next((n for n in range(len(seen), 0, -1) if blank(seen[:n]) and complete(seen[:n])), 0)
            body = seen[n:]
        if wanted and body == wanted:
            self.open()
            return {"open"}
        if body and body != seen and not wanted and blank(body):
            return set()
        if (wanted and wanted.startswith(body)) or (self.spaced and blank(body)):
            return set()
        self.place, self.since, self.expected = "inside", len(self.text) - len(body), b""
        return {"begin"} | self._inside()

    def _inside(self) -> set[str]:
        r, seen = self.rules, self.text[self.since :]
        if seen.endswith(r.end):
            self._leave(fresh=True, behind=not r.shared_end)
            return {"close"}
        for each in r.implicit:
            if (self.recipient or not each.in_calls) and self._calls(each, seen):
                self._leave(fresh=False, behind=False)
                if each.until:
                    self.place, self.until = "call", each.until
                return {"implicit"}
        return set()

    def _calls(self, each: Any, seen: bytes) -> bool:
        heads = [SPACES + re.escape(head) for head in each.heads] + ([rb"[A-Za-z_]"] if each.name else [])
        tail = re.compile(re.escape(each.marker) + b"(?:" + b"|".join(heads) + b")" if heads else
                          re.escape(each.marker))
        starts = (i for i in range(len(seen)) if not each.at_line_start or i == 0 or seen[i - 1 : i] == b"\n")
        return any(tail.fullmatch(seen, i) for i in starts)

    def _call(self) -> set[str]:
        if self.text[self.since :].endswith(self.until):
            self._wait(b"", spaced=True)
        return set()

    def missing(self) -> int:
        """Bytes that a character begun at the end of the block's text still needs."""
        if not self.inside:
            return 0
        for k in (1, 2, 3):
            tail = self.text[self.since :][-k:]
            lead, rest = tail[:1], tail[1:]
            if len(tail) == k and all(0x80 <= b < 0xC0 for b in rest):
                length = 2 if b"\xc2" <= lead < b"\xe0" else 3 if b"\xe0" <= lead < b"\xf0" else \
                    4 if b"\xf0" <= lead < b"\xf5" else 0
                if length > k:
                    return length - k
        return 0

    def half_written(self) -> int:
        """Bytes of the end marker at the end of the block's text."""
        seen = self.text[self.since :]
        return max(k for k in range(len(self.rules.end)) if seen.endswith(self.rules.end[:k]))


def fork(scanner: Scanner) -> Scanner:
    other = copy.copy(scanner)
    other.begins = list(scanner.begins)
    return other


def after(scanner: Scanner, token: int) -> Scanner:
    other = fork(scanner)
    other.feed(token)
    return other
