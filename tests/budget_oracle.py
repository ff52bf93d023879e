"""What a think budget means, by rescanning everything at every step; shares no code with the automaton.

Slow on purpose: text is compared with `endswith`, the ids that a row loses are found by trying every id. Only what was
sampled before is not replayed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from block_scanner import Delimiters, Scanner, after, fork


@dataclass(frozen=True)
class Rules:
    """What delimits thinking, tokenizer and one request's limits.

    Attributes:
        begin: how the response starts: `outside`, `inside` or `pending`.
    """

    delimiters: Delimiters
    end_ids: Sequence[Sequence[int]]  # for each pair; at their seams alone the rest of a marker is forced
    break_ids: Sequence[int]
    begin: str
    most: float
    least: int
    grace: float
    last: float = float("inf")
    message: Sequence[int] = ()
    eos_closes: bool = True
    line_break: bool = True
    label_ids: Sequence[Sequence[int]] = ()  # of the label from each byte on
    pair: int = 0  # of the block that is open at the start
    known: dict[tuple[int, ...], View] = field(init=False, repr=False, default_factory=dict)  # by what was sampled

    @property
    def pieces(self) -> Sequence[bytes]:
        return self.delimiters.pieces

    @property
    def eos_ids(self) -> Sequence[int]:
        return self.delimiters.eos_ids


@dataclass
class View:
    """A request after some sampled tokens."""

    rules: Rules
    scanner: Scanner
    output: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)  # ids still to be forced
    used: int = 0
    forced: int = 0
    outcome: str = "none"
    reason: str = ""
    said: bool = False  # the message, by a forced end
    barred: bool = False  # the last block was ended by force
    fresh: bool = False

    def copy(self) -> View:
        return replace(self, scanner=fork(self.scanner), output=[*self.output], pending=[*self.pending])

    def left(self) -> float:
        """Tokens until the wall."""
        return min(self.rules.most - self.used, self.rules.last - len(self.output))

    def lost(self) -> set[int]:
        """Ids that must not be sampled next, when none is forced."""
        r, ids = self.rules, range(len(self.rules.pieces))
        gone = set(r.eos_ids) if self.fresh else set()
        if self.scanner.thinking and self.used < r.least:
            gone |= {i for i in ids if fork(self.scanner).feed(i) & {"close", "implicit"}} | set(r.eos_ids)
        if self.scanner.thinking and self.left() <= 3:
            gone |= {i for i in ids if after(self.scanner, i).missing() >= self.left()}
        if not self.scanner.thinking and self.barred:
            gone |= {i for i in ids if "end outside" in fork(self.scanner).feed(i)}
        return gone


def replay(rules: Rules, sampled: Sequence[int]) -> View:
    """The request after these sampled tokens, from its first one on."""
    if not sampled:
        return _start(rules)
    before, ids = rules.known.get(tuple(sampled[:-1])), tuple(sampled)
    if ids not in rules.known:
        view = before.copy() if before else replay(rules, sampled[:-1])
        take(view, ids[-1])
        rules.known[ids] = view
    return rules.known[ids].copy()


def _start(rules: Rules) -> View:
    view = View(rules, Scanner(rules.delimiters))
    view.outcome = "open" if rules.begin == "inside" else "none"
    if rules.begin == "inside":
        view.scanner.place, view.scanner.pair = "inside", rules.pair
    elif rules.begin == "pending":
        view.scanner.imply()
    _due(view, chosen=False)
    return view


def take(view: View, token: int) -> None:
    rules, scanner = view.rules, view.scanner
    stops = token in rules.eos_ids and "implicit" not in fork(scanner).feed(token)
    if not view.pending and scanner.inside and stops and rules.eos_closes:
        view.pending, view.reason = _ending(view, message=False), "eos"
    forcing, thinking = bool(view.pending), scanner.inside
    if forcing:
        token = view.pending.pop(0)
        view.forced += 1
    elif thinking:
        view.used += 1
    happened = scanner.feed(token)
    view.used += not forcing and "begin" in happened
    view.output.append(token)
    if happened & {"close", "implicit"}:
        view.outcome = view.reason if forcing else "natural" if "close" in happened else "implicit"
        view.said |= forcing
        view.barred = forcing
        if forcing and not rules.line_break:
            view.pending = []
    if scanner.inside:
        view.outcome = "open"
    view.fresh = forcing and not view.pending
    _due(view, chosen=not forcing)


def _due(view: View, chosen: bool) -> None:
    rules, scanner = view.rules, view.scanner
    if view.pending or not scanner.thinking:
        return
    line_end = scanner.inside and scanner.text[scanner.since :].endswith(b"\n")
    if view.left() <= 0:
        view.reason = "forced"
    elif chosen and view.used >= rules.grace and line_end:
        view.reason = "grace"
    else:
        return
    view.pending = _ending(view, message=not view.said)


def _ending(view: View, message: bool) -> list[int]:
    rules, scanner = view.rules, view.scanner
    written, end_ids = scanner.half_written() if scanner.inside else 0, rules.end_ids[scanner.pair]
    if scanner.place == "pending" and not scanner.spaced:
        begun = len(scanner.text) - scanner.since
        return [*rules.label_ids[begun], *end_ids, *rules.break_ids]
    seams = [sum(len(rules.pieces[i]) for i in end_ids[:k]) for k in range(len(end_ids))]
    if written and written in seams:
        return [*end_ids[seams.index(written) :], *rules.break_ids]
    return [*(rules.message if message else ()), *end_ids, *rules.break_ids]
