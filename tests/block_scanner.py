"""Where thinking begins and ends in a text, by looking at all of it again at every byte; shares no code with the
automaton. Openings and calls are regular expressions here, and a header ends where its last text first stands."""

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
        others: start and end of further pairs of markers.
        openings: headers as `Opening`; their parts are texts, words and gaps.
        implicit: each as `ImplicitEnd`.
        control: ids of control tokens.
        answer: what is written behind a forced end.
    """

    start: bytes
    end: bytes
    pieces: Sequence[bytes]
    eos_ids: Sequence[int]
    implicit: Sequence[Any] = ()
    others: Sequence[tuple[bytes, bytes]] = ()
    openings: Sequence[Any] = ()
    control: frozenset[int] = frozenset()
    answer: bytes = b""
    label: bytes = b""
    shared_end: bool = False
    everywhere: bool = False

    @cached_property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        return [(self.start, self.end), *self.others]

    @cached_property
    def headers(self) -> list[Header]:
        return [Header(o.parts, o.call, o.decides, o.opens) for o in self.openings]


class Header:
    """One of a family's openings.

    Attributes:
        whole, decision, inside: what it is, what it is up to its last gap, and up to its first gap of any bytes.
        first, last: its first and its last text.
    """

    def __init__(self, parts: Sequence[Any], call: bool, decides: bool, opens: bool) -> None:
        self.call, self.opens = call, opens
        self.first, self.last = parts[0].encode(), parts[-1].encode()
        names = [getattr(part, "name", "") for part in parts]
        gaps = [i for i, name in enumerate(names) if name]
        self.whole = _pattern(parts)
        self.decision = _pattern(parts[: gaps[-1]], stop=b"<") if decides else None
        self.inside = _pattern(parts[: names.index("ANY")]) if "ANY" in names else None


def _pattern(parts: Sequence[Any], stop: bytes = b"(?=<)") -> re.Pattern[bytes]:
    gaps = {"SPACES": SPACE + b"*", "STOP": b"(?:" + SPACE + b"|" + stop + b")", "NAME": rb"[^< \t\n\r\x0b\x0c]+",
            "TEXT": rb"[^<]*", "ANY": rb".*"}
    texts = [re.escape(part.encode()) if isinstance(part, str) else
             b"(?i:" + re.escape(part.text.encode()) + b")" if hasattr(part, "text") else gaps[part.name]
             for part in parts]
    return re.compile(b"".join(texts), re.DOTALL)


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
    turn: int | None = None  # behind this only the name of a role may stand before one
    begins: list[int] = field(default_factory=list)  # further places where an opening may begin
    judged: dict[int, bool] = field(default_factory=dict)  # whether a place is in no other header
    behind: int | None = None  # the last end, as long as nothing but white space and the answer's header follow it
    pair: int = 0  # of the last block
    expected: Sequence[bytes] = ()
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
            self.fresh = self.turn = len(self.text)
        return happened

    @property
    def inside(self) -> bool:
        return self.place == "inside"

    @property
    def thinking(self) -> bool:
        return self.place in ("inside", "pending")

    def imply(self) -> None:
        """What comes next is thinking."""
        self._wait([start for start, _ in self.rules.pairs], spaced=True)

    def open(self, pair: int = 0) -> None:
        """A block opens here."""
        label, self.pair = self.rules.label, pair
        if label and list(self.expected) != [label]:
            self._wait([label], spaced=False)
        else:
            self.place, self.since, self.expected = "inside", len(self.text), ()

    def _wait(self, expected: Sequence[bytes], spaced: bool) -> None:
        self.place, self.since, self.expected, self.spaced = "pending", len(self.text), expected, spaced

    def _leave(self, fresh: bool, behind: bool) -> None:
        here = self.first = len(self.text)
        self.place, self.since, self.begins, self.recipient, self.turn = "outside", here, [], False, None
        self.fresh, self.behind = here if fresh else None, here if behind else None

    def _fresh_places(self) -> list[int]:
        """Places behind `fresh` where an opening may have begun."""
        if self.fresh is None:
            return []
        between = ((p, self.text[self.fresh : p]) for p in range(self.fresh, len(self.text)))
        return [p for p, text in between if blank(text) and complete(text)]

    def _role_places(self) -> list[int]:
        """Places behind the name of a role that a turn begins with."""
        if self.turn is None:
            return []
        return [p for p in range(self.turn, len(self.text)) if re.fullmatch(rb"[A-Za-z_]*", self.text[self.turn : p])]

    def _open_places(self) -> list[int]:
        """Places where an opening may have begun, in no other header."""
        if self.rules.everywhere:
            places = list(range(self.first, len(self.text)))
        else:
            places = sorted({*self.begins, *self._fresh_places(), *self._role_places()})
        for p in places:
            if p not in self.judged:
                before = [b for b in places if b < p and self.judged[b]]
                self.judged[p] = not any(self._within(header, b, p) for header in self.rules.headers for b in before)
        return [p for p in places if self.judged[p]]

    def _within(self, header: Header, begin: int, place: int) -> bool:
        """Whether a place is in a gap of any bytes of a header that begins there."""
        if header.inside is None or not self.text.startswith(header.first, begin):
            return False
        return header.last not in self.text[begin:place] and bool(header.inside.match(self.text, begin, place))

    def _headers(self) -> list[Header]:
        """Headers that are complete here, of which a decision leaves one."""
        text, found, decisions = self.text, [], []
        for p in self._open_places():
            for order, header in enumerate(self.rules.headers):
                if not text.startswith(header.first, p) or header.last in text[p:-1]:
                    continue
                if header.decision is not None:
                    ends = (q for q in range(p, len(text) + 1) if header.decision.fullmatch(text, p, q))
                    decisions += [(q, order, header) for q in [*ends][:1]]
                if header.whole.fullmatch(text, p):
                    found.append(header)
        first = min(decisions, key=lambda each: each[:2])[2] if decisions else None
        return found if first is None else [header for header in found if header is first]

    def _outside(self) -> set[str]:
        r, text = self.rules, self.text
        places = self._open_places()
        pair = next((i for i, (start, _) in enumerate(r.pairs) if any(text[p:] == start for p in places)), None)
        headers = self._headers()
        opening = [header for header in headers if header.opens]
        if pair is not None or opening:
            self.recipient = any(header.call for header in opening)
            self.open(pair if pair is not None else self.pair)
            return {"open"}
        if headers:
            self.judged |= dict.fromkeys(places, False)
        end = r.pairs[self.pair][1]
        if text[self.since :].endswith(end):
            again = self.behind is not None and self._nothing_since(text[self.behind : len(text) - len(end)])
            self.since, self.fresh, self.turn = len(text), len(text), None
            self.behind = len(text) if again else None
            return {"end outside"} if again else set()
        if text.endswith(b"\n"):
            self.begins.append(len(text))
        header = r.answer.strip()
        if header and self.behind is not None and text.endswith(header) and self._nothing_since(
                text[self.behind : len(text) - len(header)], header=False):
            self.fresh, self.turn = len(text), None
        return set()

    def _nothing_since(self, text: bytes, header: bool = True) -> bool:
        answer = self.rules.answer.strip()
        texts = [text]
        if header and answer:
            texts += [text[: i] + b"\0" + text[i + len(answer) :] for i in range(len(text))
                      if text[i:].startswith(answer)]
        return any(all(blank(part) and complete(part) for part in t.split(b"\0", 1)) for t in texts)

    def _pending(self) -> set[str]:
        r, seen, wanted = self.rules, self.text[self.since :], list(self.expected)
        body = seen
        if self.spaced:
            n = next((n for n in range(len(seen), 0, -1) if blank(seen[:n]) and complete(seen[:n])), 0)
            body = seen[n:]
        if body in wanted:
            self.open(0 if wanted == [r.label] else wanted.index(body))
            return {"open"}
        if body and body != seen and not wanted and blank(body):
            return set()
        if any(text.startswith(body) for text in wanted) or (self.spaced and blank(body)):
            return set()
        self.place, self.since, self.expected = "inside", len(self.text) - len(body), ()
        return {"begin"} | self._inside()

    def _inside(self) -> set[str]:
        r, seen = self.rules, self.text[self.since :]
        if seen.endswith(r.pairs[self.pair][1]):
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
            self._wait((), spaced=True)
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
        seen, end = self.text[self.since :], self.rules.pairs[self.pair][1]
        return max(k for k in range(len(end)) if seen.endswith(end[:k]))


def fork(scanner: Scanner) -> Scanner:
    other = copy.copy(scanner)
    other.begins, other.judged = list(scanner.begins), dict(scanner.judged)
    return other


def after(scanner: Scanner, token: int) -> Scanner:
    other = fork(scanner)
    other.feed(token)
    return other
