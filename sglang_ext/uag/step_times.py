"""How long the steps of a round take, from what was measured and from guesses where nothing was."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, log2
from statistics import median
from typing import Literal, get_args

Kind = Literal["plain", "verify", "draft_extend", "draft_step"]
_ORDER: dict[Kind, tuple[Kind, ...]] = {
    "plain": ("verify", "draft_step", "draft_extend"), "verify": ("plain", "draft_step", "draft_extend"),
    "draft_extend": ("draft_step", "plain", "verify"), "draft_step": ("draft_extend", "plain", "verify")}
"""Where to look for the speed of a machine that this kind was not measured on."""
_REMEMBERED = 7  # measurements whose median is the estimate
_SHORTEST = 1e-9  # seconds; a clock may show none
_FIRST = 4.0  # times the expected; the first step of a shape may compile something
_REFRESH = 8  # measurements between two looks at the estimates


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
    says of the two shapes.

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
        seconds = max(seconds, _SHORTEST) * self._share(kind, *key) / self._share(kind, key[0], width)
        known = self._seen[kind].get(key)
        if known is None:
            limit = _FIRST * self._nearest(kind, *key) if self.anything() else inf
            self._seen[kind][key] = deque([min(seconds, limit)], maxlen=_REMEMBERED)
            self._cache.clear()
            return
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

    def anything(self) -> bool:
        """Whether anything was measured."""
        return any(self._seen.values())

    def _step(self, kind: Kind, width: int) -> tuple[Kind, int]:
        """The step that is run for it."""
        return ("verify", self._verified) if self._verified and kind in ("plain", "verify") else (kind, width)

    def _share(self, kind: Kind, batch: int, width: int) -> float:
        """Guessed cost of a shape. A bucket's estimate is that of its widest; others have their part of it."""
        return self._costs.of(kind, batch * width) if kind == "draft_extend" else 1.0

    def _nearest(self, kind: Kind, batch: int, width: int) -> float:
        measured = self._seen[kind]
        if (batch, width) in measured:
            return median(measured[batch, width])
        if kind == "draft_step" and self._seen["draft_extend"]:  # a step costs no more than reading one id
            return min(self._scaled(kind, batch, width), self._nearest("draft_extend", batch, 1))
        return self._scaled(kind, batch, width)

    def _scaled(self, kind: Kind, batch: int, width: int) -> float:
        """The nearest measurement, in the guessed proportion."""
        measured, wanted = self._seen[kind], self._costs.of(kind, batch * width)
        if not measured:
            return wanted * self._unit(kind)
        near = min(measured, key=lambda k: abs(log2(k[0] / batch)) + abs(log2(k[1] / width)))
        return median(measured[near]) * wanted / self._costs.of(kind, near[0] * near[1])

    def _unit(self, kind: Kind) -> float:
        """Seconds of one plain step of one request, from another kind; from the same model's if there is one."""
        for other in _ORDER[kind]:
            if self._seen[other]:
                return self._nearest(other, 1, 1) / self._costs.of(other, 1)
        return 1.0


def bucket(batch: int) -> int:
    """Batches that count as one: exact up to 4, then up to the next power of two."""
    return batch if batch <= 4 else 1 << (batch - 1).bit_length()


def _width_bucket(kind: Kind, width: int) -> int:
    """A verification's width is one of a few; an extension's is any number of ids."""
    if kind == "verify":
        return width
    return 1 << (width - 1).bit_length() if kind == "draft_extend" else 1
