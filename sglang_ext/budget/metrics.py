"""Prometheus metrics of thinking, beside the engine's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LENGTHS = (0, *(2**k for k in range(4, 18)))
"""Upper bounds of the histogram's buckets, in tokens: 0, then 16 to 131,072."""


class ThinkMetrics:
    """Counters over finished requests that have a budget, no limit (-1) included.

    Made once a process, after `PROMETHEUS_MULTIPROC_DIR` is set: prometheus_client looks at it when it is imported.

    Args:
        labels: names of the engine's own labels.
        counter: class with the interface of `prometheus_client.Counter`, which is used where it is None.
        histogram: the same for `Histogram`.
    """

    def __init__(self, labels: Sequence[str], counter: Any = None, histogram: Any = None) -> None:
        import prometheus_client

        counter = counter or prometheus_client.Counter
        histogram = histogram or prometheus_client.Histogram
        self._tokens = counter("sglang_ext:think_tokens_total", "Tokens that models chose while thinking.", labels)
        self._forced = counter("sglang_ext:think_forced_tokens_total", "Tokens that think budgets wrote.", labels)
        self._outcomes = counter("sglang_ext:think_outcomes_total", "Requests by how their thinking ended.",
                                 [*labels, "outcome"])
        self._lengths = histogram("sglang_ext:think_tokens_histogram", "Tokens that a request's model chose while "
                                  "thinking.", labels, buckets=LENGTHS)

    def observe(self, labels: Mapping[str, str], think: Mapping[str, Any]) -> None:
        """Count one finished request by its `think` object."""
        self._tokens.labels(**labels).inc(think["tokens"])
        self._forced.labels(**labels).inc(think["forced_tokens"])
        self._outcomes.labels(**labels, outcome=think["outcome"]).inc()
        self._lengths.labels(**labels).observe(think["tokens"])
