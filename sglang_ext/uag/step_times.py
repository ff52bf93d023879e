"""How long steps take: medians of what was measured, by batch size up to a power of two."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf, log2
from statistics import median_low
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Kind = Literal["plain", "verify", "draft_extend", "draft_step"]
"""A step of the target over one position a request, or over several; one of the draft over new ids of the text, or over
the id that it wrote last."""
_PLAIN = 5  # plain steps whose median says how fast the machine is at present
_REMEMBERED = 9  # measurements whose median says how long a step takes beside a plain one
_WIDTHS = 32  # verifications of a batch size, after which what a width took is forgotten, so that it is tried again
_OUTLIER = 2.0  # times the estimate, as which a longer step counts: it may have compiled something


class StepTimes:
    """Estimated seconds of steps. What was not measured yet is expected to be short, so that it is tried.

    All but plain steps are kept as parts of a plain step of the moment in which they were measured: a machine that gets
    busy slows all of them, and those that are measured rarely stay comparable.

    Args:
        width: positions of the widest verification.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._plain: dict[int, deque[float]] = {}  # seconds, by batch bucket
        self._verify: dict[int, deque[tuple[int, float]]] = {}  # positions and plain steps, by batch bucket
        self._extend: dict[int, deque[float]] = {}  # plain steps of as many requests, by batch bucket
        self._step: dict[int, deque[float]] = {}  # the same
        self._read: deque[float] = _last()  # plain steps of one request, for an id of a long text
        self._targets: dict[int, Floats] = {}  # plain steps, by batch bucket
        self._parts: dict[tuple[int, int], float] = {}  # `_part` of what was measured so far

    def add(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count a measured step. The draft's count once a plain step was measured.

        Args:
            batch: requests in it.
            width: positions a request: of `verify` its width, of `draft_extend` the new ids, on average, else 1.

        Raises:
            ValueError: a kind that does not exist, a shape out of range, or a time that is negative or infinite.
        """
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind!r}: accepted are {', '.join(get_args(Kind))}")
        if batch < 1 or width < 1 or not 0 <= seconds < inf:
            raise ValueError(f"{kind} of batch {batch}, width {width}, {seconds} s: accepted are batch and width of 1 "
                             "or more and a finite time of 0 or more")
        plain = self.plain(batch)
        self._parts.clear()
        if kind == "plain" or (kind == "verify" and width == 1):
            most = _OUTLIER * (_at(self._plain, batch) or inf)
            self._plain.setdefault(bucket(batch), _last(_PLAIN)).append(min(seconds, most))
        elif not plain:
            return
        elif kind == "verify":
            self._add_verify(batch, min(width, self._width), seconds)
        elif kind == "draft_step" or width <= 2 * self._width:
            measured = self._step if kind == "draft_step" else self._extend
            part = self._in_plain_steps(seconds, batch, self._part(measured, batch))
            measured.setdefault(bucket(batch), _last()).append(part)
            self._parts.clear()
        else:  # a prompt, or what was written without drafts
            ids = max(seconds - self._part(self._extend, batch) * plain, 0.0) / (batch * width)
            self._read.append(ids / self.plain(1))

    def _add_verify(self, batch: int, width: int, seconds: float) -> None:
        measured = self._verify.setdefault(bucket(batch), deque(maxlen=_WIDTHS))
        part = self._in_plain_steps(seconds, batch, float(self._target(batch)[width - 1]))
        measured.append((width, max(part, 1.0)))
        self._targets.clear()

    def _in_plain_steps(self, seconds: float, batch: int, expected: float) -> float:
        return min(seconds / self.plain(batch), _OUTLIER * (expected or inf))

    def plain(self, batch: int) -> float:
        """Seconds of a target's step without drafts; 0 where none was measured."""
        return _at(self._plain, batch)

    def target(self, batch: int) -> Floats:
        """[width] seconds of a target's step over 1 to `width` positions a request.

        Widths between measured ones are on the line between them, and wider ones on the line through the two widest. If
        one was measured, wider ones take as long as it. A batch size of which no wider step was measured has the
        proportions of the nearest one.
        """
        return self._target(batch) * self.plain(batch)

    def _target(self, batch: int) -> Floats:
        n = bucket(batch)
        if n not in self._targets:
            widths: dict[int, list[float]] = {1: [1.0]}
            for size, part in self._nearest(batch):
                widths.setdefault(size, []).append(part)
            sizes = sorted(widths)
            parts = [median_low(widths[size][-_REMEMBERED:]) for size in sizes]
            positions = np.arange(1, self._width + 1)
            slope = max(parts[-1] - parts[-2], 0.0) / (sizes[-1] - sizes[-2]) if len(sizes) > 2 else 0.0
            wider = np.maximum(positions - sizes[-1], 0) * slope
            self._targets[n] = np.interp(positions, sizes, parts) + wider
        return self._targets[n]

    def widest(self, batch: int) -> int:
        """Positions of the widest step of which `target` knows."""
        return max((size for size, _ in self._nearest(batch)), default=1)

    def draft(self, requests: int, steps: Floats) -> Floats | None:
        """Seconds of a draft of so many steps, the first of which reads what was confirmed; None: not measured yet."""
        if not self._extend:
            return None
        first = self._part(self._extend, requests) * self.plain(requests)
        return np.where(steps, first + (steps - 1) * self.step(requests), 0.0)

    @property
    def drafted(self) -> bool:
        """Whether any draft was measured."""
        return bool(self._extend)

    def step(self, requests: int) -> float:
        """Seconds of one more step of a draft; as long as the first until it is measured."""
        return self._part(self._step or self._extend, requests) * self.plain(requests)

    def read(self, ids: float) -> float:
        """Seconds in which the draft reads so many ids, beside a step that it takes anyway.

        Until that is measured, it reads as many in the time of an extension as still count as one of a draft.
        """
        guess = self._part(self._extend, 1) / (2 * self._width)
        return ids * median_low(self._read or [guess]) * self.plain(1)

    def _part(self, measured: dict[int, deque[float]], batch: int) -> float:
        """Plain steps that a step of the draft takes, for plain steps of as many requests."""
        key = id(measured), bucket(batch)
        if key not in self._parts:
            seconds = {n: deque([median_low(parts) * _at(self._plain, n)]) for n, parts in measured.items()}
            self._parts[key] = _at(seconds, batch) / _at(self._plain, batch) if seconds else 0.0
        return self._parts[key]

    def _nearest(self, batch: int) -> Sequence[tuple[int, float]]:
        """Verifications of the batch bucket nearest to `batch` of which any was measured."""
        near = min(self._verify, key=lambda n: abs(log2(n / bucket(batch))), default=None)
        return () if near is None else self._verify[near]


def _last(number: int = _REMEMBERED) -> deque[float]:
    return deque(maxlen=number)


def _at(measured: dict[int, deque[float]], batch: int) -> float:
    """The median for a batch: that of the next smaller batch that was measured, or its part of that of the next larger,
    whichever is more; 0 where there is none."""
    n = bucket(batch)
    smaller = max((size for size in measured if size <= n), default=None)
    larger = min((size for size in measured if size >= n), default=None)
    return max((median_low(measured[size]) * min(n / size, 1.0) for size in (smaller, larger) if size), default=0.0)


def bucket(batch: int) -> int:
    """The power of two that a batch counts as."""
    return 1 << (batch - 1).bit_length()
