"""Prometheus metrics of drafting, beside the engine's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)


class UagMetrics:
    """Counters over finished requests.

    Made once a process, after `PROMETHEUS_MULTIPROC_DIR` is set: prometheus_client looks at it when it is imported.

    Args:
        labels: names of the engine's own labels.
        counter: class with the interface of `prometheus_client.Counter`, which is used where it is None.
    """

    def __init__(self, labels: Sequence[str], counter: Any = None) -> None:
        import prometheus_client

        counter = counter or prometheus_client.Counter
        self._totals = {
            "proposed": counter("sglang_ext:uag_proposed_tokens_total", "Target tokens that were drafted, by any "
                                "source.", labels),
            "forced": counter("sglang_ext:uag_forced_tokens_total", "Target tokens that think budgets submitted as "
                              "drafts.", labels),
            "accepted": counter("sglang_ext:uag_accepted_tokens_total", "Submitted tokens that the target confirmed.",
                                labels),
            "draft_forwards": counter("sglang_ext:uag_draft_forwards_total", "Forwards of the draft model, counted for "
                                      "each request in them.", labels),
            "translation_us": counter("sglang_ext:uag_translation_microseconds_total", "Time spent between the two "
                                      "tokenizers.", labels),
        }
        self._by_source = {
            "proposed_by": counter("sglang_ext:uag_source_proposed_tokens_total", "Target tokens that were drafted, by "
                                   "source: draft (the draft model) or text.", [*labels, "source"]),
            "accepted_by": counter("sglang_ext:uag_source_accepted_tokens_total", "Those that the target confirmed.",
                                   [*labels, "source"]),
        }
        self._rejections = counter("sglang_ext:uag_rejections_total", "Submitted tokens that the target refused "
                                   "(verification), and drafts that were not made or cut short, by cause.",
                                   [*labels, "cause"])

    def observe(self, labels: Mapping[str, str], uag: Mapping[str, Any]) -> None:
        """Count one finished request by its `uag` object. What is less than nothing is logged and left out: a counter
        raises, and the server would end."""
        for name, total in self._totals.items():
            _add(total.labels(**labels), name, uag[name])
        for name, total in self._by_source.items():
            for source, count in uag[name].items():
                _add(total.labels(**labels, source=source), f"{name} {source}", count)
        for cause, count in uag["rejections"].items():
            _add(self._rejections.labels(**labels, cause=cause), cause, count)


def _add(counter: Any, name: str, count: float) -> None:
    if count < 0:
        logger.warning("UAG: %s of a request is %s, and is not counted", name, count)
    counter.inc(max(count, 0))
