"""How long steps take: medians of what was measured, by batch size up to a power of two."""

from __future__ import annotations

from collections import deque
from math import inf, log2
from statistics import median_low
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Kind = Literal["plain", "verify", "draft_extend", "draft_step"]
"""A step of the target over one position a request, or over several; one of the draft over new ids of the text, or over
the id that it wrote last."""
_Model = Literal["target", "extend", "step"]
_REMEMBERED = 7  # measurements whose median is the estimate
_OUTLIER = 2.0  # times the estimate, as which a longer step counts: it may have compiled something


class StepTimes:
    """Estimated seconds of steps. What was not measured yet is expected to be short, so that it is tried.

    Args:
        width: positions of the widest verification.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._seen: dict[_Model, dict[int, dict[int, deque[float]]]] = {"target": {}, "extend": {}, "step": {}}
        """By batch bucket, then by positions; 1 for the draft's."""
        self._reading: deque[float] = deque(maxlen=_REMEMBERED)  # seconds of an id of a long text
        self._curves: dict[int, Floats] = {}  # `target` by batch bucket

    def add(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count a measured step.

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
        if kind == "draft_extend" and width > 2 * self._width:  # a prompt, or what was written without drafts
            self._reading.append(max(seconds - (self._narrowest("extend", batch) or 0.0), 0.0) / (batch * width))
        elif kind == "draft_extend":
            self._count("extend", batch, 1, seconds)
        elif kind == "draft_step":
            self._count("step", batch, 1, seconds)
        else:
            self._count("target", batch, min(width, self._width), seconds)

    def plain(self, batch: int) -> float:
        """Seconds of a target's step without drafts; 0 where none was measured."""
        return self._narrowest("target", batch) or 0.0

    def target(self, batch: int) -> Floats:
        """[width] seconds of a target's step over 1 to `width` positions a request.

        Widths between measured ones are on the line between them. Wider ones take what the widest takes, until they are
        measured. A batch size of which no wider step was measured has the proportions of the nearest one.
        """
        if bucket(batch) not in self._curves:
            self._curves[bucket(batch)] = self._curve(batch)
        return self._curves[bucket(batch)]

    def widest(self, batch: int) -> int:
        """Positions of the widest step of which `target` knows."""
        near = self._nearest(batch)
        return 1 if near is None else max(self._seen["target"][near])

    def draft(self, requests: int, steps: Floats) -> Floats | None:
        """Seconds of a draft of so many steps, the first of which reads what was confirmed; None: not measured yet."""
        first = self._narrowest("extend", requests)
        return None if first is None else np.where(steps, first + (steps - 1) * self.step(requests), 0.0)

    def step(self, requests: int) -> float:
        """Seconds of one more step of a draft; as long as the first until it is measured."""
        more = self._narrowest("step", requests)
        return more if more is not None else self._narrowest("extend", requests) or 0.0

    def read(self, ids: float) -> float:
        """Seconds in which the draft reads so many ids, beside a step that it takes anyway."""
        return ids * median_low(self._reading or [0.0])

    def _count(self, model: _Model, batch: int, size: int, seconds: float) -> None:
        expected = self.target(batch)[size - 1] if model == "target" else self._narrowest(model, batch)
        sizes = self._seen[model].setdefault(bucket(batch), {})
        sizes.setdefault(size, deque(maxlen=_REMEMBERED)).append(min(seconds, _OUTLIER * (expected or inf)))
        self._curves.clear()

    def _narrowest(self, model: _Model, batch: int) -> float | None:
        """Seconds of the narrowest step of a batch; None: not measured yet. It takes no longer than a wider one.

        It takes as long as that of the next smaller batch that was measured, or its part of that of the next larger.
        """
        n = bucket(batch)
        known = {size: min(map(median_low, widths.values())) for size, widths in self._seen[model].items()}
        smaller = max((size for size in known if size <= n), default=0)
        larger = min((size for size in known if size >= n), default=0)
        return max((known[size] * min(n / size, 1.0) for size in (smaller, larger) if size), default=None)

    def _nearest(self, batch: int) -> int | None:
        """The batch bucket nearest to `batch` of which several widths of the target's step were measured."""
        known = [n for n, seen in self._seen["target"].items() if len(seen) > 1]
        return min(known, key=lambda n: abs(log2(n / bucket(batch))), default=None)

    def _curve(self, batch: int) -> Floats:
        plain, near = self.plain(batch), self._nearest(batch)
        if near is None:
            return np.full(self._width, plain)
        wide = {size: median_low(times) for size, times in self._seen["target"][near].items() if size > 1}
        sizes = sorted(wide)
        ratios = [wide[size] / self.plain(near) for size in sizes]
        return plain * np.interp(np.arange(1, self._width + 1), [1, *sizes], [1.0, *ratios])


def bucket(batch: int) -> int:
    """The power of two that a batch counts as."""
    return 1 << (batch - 1).bit_length()
