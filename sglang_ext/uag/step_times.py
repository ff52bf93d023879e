"""How long the steps of a round take, from what was measured and from guesses where nothing was."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt
from statistics import median
from typing import Literal, get_args

Kind = Literal["plain", "verify", "draft_extend", "draft_step"]
_ORDER: dict[Kind, tuple[Kind, ...]] = {
    "plain": ("verify", "draft_step", "draft_extend"), "verify": ("plain", "draft_step", "draft_extend"),
    "draft_extend": ("draft_step", "plain", "verify"), "draft_step": ("draft_extend", "plain", "verify")}
"""Where to look for the speed of a machine that this kind was not measured on."""
_REMEMBERED = 7  # measurements whose median is the estimate
_SHORTEST = 1e-9  # seconds; a clock may show none
_FIRST = 4.0  # times the expected, of the first step of a model: it may compile something
_FIRST_OF_SHAPE = 1.1  # times the expected, of the first step of another shape, for the same reason
_APART = 4  # times as many ids, between measurements whose difference says what an id costs
_FAR = 16  # times as many ids as were ever measured, of which a guess may be far too low
_REFRESH = 8  # measurements between two looks at the estimates
_ENOUGH = 3  # measurements of a verification, of which one may have had a bad moment
_DOUBTED = 1024  # measurements after which one that was not measured so often is forgotten once, and tried again


@dataclass(frozen=True)
class Costs:
    """Guesses in plain steps of one request, until measured."""

    draft_extend: float = 0.25
    draft_step: float = 0.2
    token: float = 0.01  # more for each further token of a step, of its whole time

    def of(self, kind: Kind, tokens: float) -> float:
        """Cost of a step over `tokens` tokens, all requests together."""
        base = {"plain": 1.0, "verify": 1.0, "draft_extend": self.draft_extend, "draft_step": self.draft_step}[kind]
        return base * (1 + self.token * (tokens - 1))


class StepTimes:
    """Running estimates by kind, batch bucket and width.

    Between measured shapes the guess gives the proportion: an estimate is the nearest measurement, times what the guess
    says of the two shapes. An extension may be over one id or thousands; where measurements are far enough apart, it
    lies on the line through them.

    Args:
        costs: the guesses.
        verified: width that the target's every step has, as where its graphs have one; None: steps are as wide as they
            are said to be, and `plain` ones 1.
    """

    def __init__(self, costs: Costs, verified: int | None = None) -> None:
        self._costs = costs
        self._verified = verified
        self._seen: dict[Kind, dict[tuple[int, int], deque[float]]] = {kind: {} for kind in get_args(Kind)}
        self._cache: dict[tuple[Kind, int, int], float] = {}
        self._single: set[tuple[Kind, int, int]] = set()  # shapes that were measured once
        self._rare: dict[tuple[int, int], int] = {}  # verifications measured too rarely: number of the last measurement
        self._forgotten: set[tuple[int, int]] = set()
        self._count = 0
        self._since = 0

    def add(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count a measurement.

        Raises:
            ValueError: a kind that does not exist, a shape below 1, or a negative time.
        """
        if kind not in self._seen:
            raise ValueError(f"kind {kind!r}: accepted are {', '.join(get_args(Kind))}")
        if batch < 1 or width < 1 or not 0 <= seconds < inf:
            raise ValueError(f"{kind} of batch {batch}, width {width}, {seconds} s: accepted are batch and width of 1 "
                             "or more and a finite time of 0 or more")
        kind, width = self._step(kind, width)
        key = bucket(batch), _width_bucket(kind, width)
        self._doubt()
        if kind == "verify" and key not in self._forgotten:
            self._rare[key] = self._count
        seconds = max(seconds, _SHORTEST)
        if key[1] != width:
            seconds *= self._share(kind, *key) / self._share(kind, key[0], width)
        known = self._seen[kind].get(key)
        if known is None:
            known_model = any(self._seen[other] for other in (kind, _ORDER[kind][0]))
            factor = _FIRST_OF_SHAPE if known_model else _FIRST if self.anything() else inf
            limit = factor * self._nearest(kind, *key)
            self._seen[kind][key] = deque([min(seconds, limit)], maxlen=_REMEMBERED)
            self._single.add((kind, *key))
            self._cache.clear()
            return
        if (kind, *key) in self._single:  # the first one is only believed until there is a second
            self._single.remove((kind, *key))
            known.clear()
        known.append(seconds)
        self._since += 1
        if len(known) < _REMEMBERED or self._since >= _REFRESH:
            self._cache.clear()
            self._since = 0

    def of(self, kind: Kind, batch: int, width: int = 1) -> float:
        """Seconds that a step is expected to take; guessed plain steps before anything was measured."""
        kind, width = self._step(kind, width)
        key = kind, bucket(batch), _width_bucket(kind, width)
        if key not in self._cache:
            self._cache[key] = self._nearest(*key)
        return self._cache[key] * self._share(kind, key[1], width) / self._share(*key)

    def _doubt(self) -> None:
        """Forget verifications that were measured once or twice, long ago: a step that had a bad moment would never be
        tried again."""
        self._count += 1
        for key, last in list(self._rare.items()):
            if len(self._seen["verify"].get(key, ())) >= _ENOUGH:
                del self._rare[key]
            elif self._count - last > _DOUBTED:
                del self._rare[key], self._seen["verify"][key]
                self._forgotten.add(key)
                self._single.discard(("verify", *key))
                self._cache.clear()

    def anything(self) -> bool:
        """Whether anything was measured."""
        return any(self._seen.values())

    def trusted(self, batch: int, width: int) -> int:
        """The width, at most `width`, that a verification may have by what is known: one that was measured once is
        measured again before a wider one is tried."""
        return min([w for kind, n, w in self._single if kind == "verify" and n == bucket(batch)] + [width])

    def _step(self, kind: Kind, width: int) -> tuple[Kind, int]:
        """The step that is run for it."""
        return ("verify", self._verified) if self._verified and kind in ("plain", "verify") else (kind, width)

    def _share(self, kind: Kind, batch: int, width: int) -> float:
        """Guessed cost of a shape. A bucket's estimate is that of its widest; others have their part of it."""
        return self._costs.of(kind, batch * width) if kind == "draft_extend" else 1.0

    def _nearest(self, kind: Kind, batch: int, width: int) -> float:
        measured = self._seen[kind]
        if (batch, width) in measured:
            verified = [times for (n, _), times in self._seen["verify"].items() if n == batch and kind == "plain"]
            return min([self._known(kind, (batch, width)), *map(median, verified)])  # plain steps are no dearer
        if kind == "draft_step" and self._seen["draft_extend"]:  # a step costs no more than reading one id
            return min(self._scaled(kind, batch, width), self._nearest("draft_extend", batch, 1))
        return self._scaled(kind, batch, width)

    def _scaled(self, kind: Kind, batch: int, width: int) -> float:
        """The nearest measurement, in the guessed proportion."""
        measured, wanted = self._seen[kind], self._costs.of(kind, batch * width)
        if not measured:
            return wanted * self._unit(_ORDER[kind], 1.0)
        near = min(measured, key=lambda k: abs(log2(k[0] / batch)) + abs(log2(k[1] / width)))
        guess = self._known(kind, near) * wanted / self._costs.of(kind, near[0] * near[1])
        if kind == "verify":
            return max(guess, self._beyond(batch, width))
        return self._on_line(batch * width, guess) if kind == "draft_extend" else guess

    def _known(self, kind: Kind, shape: tuple[int, int]) -> float:
        """Seconds of a shape that was measured. An extension that was measured once or twice may have had a bad moment,
        and is not repeated while it is thought so dear: it is believed up to a few times what others tell."""
        measured = self._seen[kind]
        found = median(measured[shape])
        if kind != "draft_extend" or len(measured[shape]) >= _ENOUGH:
            return found
        often = [k for k, times in measured.items() if len(times) >= _ENOUGH]
        if not often:
            return found
        tokens = shape[0] * shape[1]
        near = min(often, key=lambda k: abs(log2(k[0] * k[1] / tokens)))
        cost = self._costs.of(kind, tokens) / self._costs.of(kind, near[0] * near[1])
        return min(found, _FIRST * median(measured[near]) * cost)

    def _beyond(self, batch: int, width: int) -> float:
        """Seconds of a verification wider than any of this batch, on the line from a plain step through the widest."""
        widest = max((w for n, w in self._seen["verify"] if n == batch), default=1)
        if not 1 < widest < width or (batch, 1) not in self._seen["plain"]:
            return 0.0
        plain = self._nearest("plain", batch, 1)
        return plain + (self._nearest("verify", batch, widest) - plain) * (width - 1) / (widest - 1)

    def _on_line(self, tokens: int, guess: float) -> float:
        """Seconds of an extension over so many ids, all requests together, by what was measured of others.

        More ids than ever are no bargain: they take what is guessed or, if that is more, what is on the line; far more
        take at least the middle between the guess and the proportion. Far fewer than ever are tried: they take what is
        guessed from the target's steps, if that is less.
        """
        known: dict[int, list[float]] = {}
        for batch, width in self._seen["draft_extend"]:
            known.setdefault(batch * width, []).append(self._known("draft_extend", (batch, width)))
        shortest, longest = min(known), max(known)
        if tokens * _APART < shortest:
            return min(guess, self._costs.of("draft_extend", tokens) * self._unit(("plain", "verify"), inf))
        if tokens > _FAR * longest:
            guess = max(guess, sqrt(guess * median(known[longest]) * tokens / longest))
        if tokens < shortest or longest < _APART * shortest:
            return guess
        low, high = shortest, longest
        if tokens < longest:
            low, high = max(n for n in known if n <= tokens), min(n for n in known if n > tokens)
        first, last = median(known[low]), median(known[high])
        line = first + (last - first) * (tokens - low) / (high - low)
        return line if tokens <= longest else max(line, guess)

    def _unit(self, kinds: Sequence[Kind], unknown: float) -> float:
        """Seconds of one plain step of one request, from the first of these kinds that was measured."""
        for kind in kinds:
            if self._seen[kind]:
                return self._nearest(kind, 1, 1) / self._costs.of(kind, 1)
        return unknown


def bucket(batch: int) -> int:
    """Batches that count as one: exact up to 4, then up to the next power of two."""
    return batch if batch <= 4 else 1 << (batch - 1).bit_length()


def _width_bucket(kind: Kind, width: int) -> int:
    """A verification's width is one of a few; an extension's is any number of ids."""
    if kind == "verify":
        return width
    return 1 << (width - 1).bit_length() if kind == "draft_extend" else 1
