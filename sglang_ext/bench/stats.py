"""Statistics of the reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest  # type: ignore[import-untyped]


def percentile(values: Iterable[float | None], q: float) -> float | None:
    """Percentile of what is there, interpolated; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.percentile(known, q)) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def wilson(hits: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share; the whole range where nothing was tried."""
    if not of:
        return 0.0, 1.0
    interval = binomtest(hits, of).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def spread(ratios: Sequence[float]) -> dict[str, Any]:
    """Median of ratios with the least and the most of them."""
    return {"median": float(np.median(ratios)), "least": float(min(ratios)), "most": float(max(ratios)),
            "rounds": len(ratios)}
