"""What a think budget means, by rescanning everything from the start at every step; shares no code with the automaton.

Slow on purpose: text is compared with `endswith`, the ids that a row loses are found by trying every id.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rules:
    """Markers, tokenizer and one request's limits."""

    start: bytes
    end: bytes
    implicit: Sequence[Any]  # each with `marker` and `at_line_start`
    pieces: Sequence[bytes]
    start_id: int | None
    end_ids: Sequence[int]  # one id, or pieces at whose seams alone the marker is ever half-written
    break_ids: Sequence[int]
    eos_ids: Sequence[int]
    open_at_start: bool
    most: float
    least: int
    grace: float
    last: float = float("inf")
    message: Sequence[int] = ()
    eos_closes: bool = True
    line_break: bool = True


@dataclass
class Scanner:
    """Where thinking begins and ends in a text."""

    rules: Rules
    inside: bool
    text: bytes = b""
    since: int = 0  # the markers are looked for from here on
    line_starts: list[int] = field(default_factory=lambda: [0])

    def feed(self, token: int) -> set[str]:
        r, happened = self.rules, set()
        piece = r.pieces[token] if 0 <= token < len(r.pieces) else b""
        if token == r.start_id and not self.inside and len(self.text) in self.line_starts:
            self.text += piece
            self.inside, self.since = True, len(self.text)
            return {"open"}
        for byte in piece:
            self.text += bytes([byte])
            happened |= self._inside() if self.inside else self._outside()
        return happened

    def _inside(self) -> set[str]:
        r, seen = self.rules, self.text[self.since :]
        what = "close" if seen.endswith(r.end) else ""
        for each in r.implicit:
            before = seen[: len(seen) - len(each.marker)]
            if not what and seen.endswith(each.marker) and (
                    not each.at_line_start or before == b"" or before.endswith(b"\n")):
                what = "implicit"
        if not what:
            return set()
        self.inside, self.since, self.line_starts = False, len(self.text), []
        return {what}

    def _outside(self) -> set[str]:
        r, happened = self.rules, set()
        if self.text[self.since :].endswith(r.end):
            self.since = len(self.text)
            happened.add("end outside")
        if self.text.endswith(b"\n"):
            self.line_starts.append(len(self.text))
        if r.start_id is None and any(self.text[at:] == r.start for at in self.line_starts):
            self.inside, self.since = True, len(self.text)
            happened.add("open")
        return happened

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


@dataclass
class View:
    """A request after some sampled tokens."""

    scanner: Scanner
    output: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)  # ids still to be forced
    used: int = 0
    forced: int = 0
    outcome: str = "none"
    reason: str = ""
    said: bool = False  # the message, by a forced end
    fresh: bool = False

    def left(self) -> float:
        """Tokens until the wall."""
        return min(self.scanner.rules.most - self.used, self.scanner.rules.last - len(self.output))

    def lost(self) -> set[int]:
        """Ids that must not be sampled next, when none is forced."""
        r, ids = self.scanner.rules, range(len(self.scanner.rules.pieces))
        gone = set(r.eos_ids) if self.fresh else set()
        if self.scanner.inside and self.used < r.least:
            gone |= {i for i in ids if fork(self.scanner).feed(i) & {"close", "implicit"}} | set(r.eos_ids)
        if self.scanner.inside and self.left() <= 3:
            gone |= {i for i in ids if after(self.scanner, i).missing() >= self.left()}
        if not self.scanner.inside and self.said:
            gone |= {i for i in ids if "end outside" in fork(self.scanner).feed(i)}
        return gone


def fork(scanner: Scanner) -> Scanner:
    other = copy.copy(scanner)
    other.line_starts = list(scanner.line_starts)
    return other


def after(scanner: Scanner, token: int) -> Scanner:
    other = fork(scanner)
    other.feed(token)
    return other


def replay(rules: Rules, sampled: Sequence[int]) -> View:
    """The request after these sampled tokens, from its first one on."""
    view = View(Scanner(rules, rules.open_at_start))
    view.outcome = "open" if rules.open_at_start else "none"
    if rules.open_at_start:
        view.scanner.line_starts = []
    _due(view, chosen=False)
    for token in sampled:
        take(view, token)
    return view


def take(view: View, token: int) -> None:
    """One more sampled token."""
    rules, scanner = view.scanner.rules, view.scanner
    if not view.pending and scanner.inside and token in rules.eos_ids and rules.eos_closes:
        view.pending, view.reason = _ending(view, message=False), "eos"
    forcing, thinking = bool(view.pending), scanner.inside
    if forcing:
        token = view.pending.pop(0)
        view.forced += 1
    elif thinking:
        view.used += 1
    happened = scanner.feed(token)
    view.output.append(token)
    if happened & {"close", "implicit"}:
        view.outcome = view.reason if forcing else "natural" if "close" in happened else "implicit"
        view.said |= forcing
        if forcing and not rules.line_break:
            view.pending = []
    if scanner.inside:
        view.outcome = "open"
    view.fresh = forcing and not view.pending
    _due(view, chosen=not forcing)


def _due(view: View, chosen: bool) -> None:
    rules, scanner = view.scanner.rules, view.scanner
    if view.pending or not scanner.inside:
        return
    line_end = scanner.text[scanner.since :].endswith(b"\n")
    if view.left() <= 0:
        view.reason = "forced"
    elif chosen and view.used >= rules.grace and line_end:
        view.reason = "grace"
    else:
        return
    view.pending = _ending(view, message=not view.said)


def _ending(view: View, message: bool) -> list[int]:
    rules, written = view.scanner.rules, view.scanner.half_written()
    if written and len(rules.end_ids) > 1:
        seams = [sum(len(rules.pieces[i]) for i in rules.end_ids[:k]) for k in range(len(rules.end_ids))]
        return [*rules.end_ids[seams.index(written) :], *rules.break_ids]
    return [*(rules.message if message else ()), *rules.end_ids, *rules.break_ids]
