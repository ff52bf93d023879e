"""`TokenizerManager`'s metrics: finished requests are counted where sglang counts its own, under the same labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_ext.budget.metrics import ThinkMetrics
from sglang_ext.uag.metrics import UagMetrics


def init_metric_collector_watchdog(original: Callable[..., None], self: Any) -> None:
    original(self)
    if self.enable_metrics:
        collector = self.metrics_collector
        self.think_metrics = ThinkMetrics(list(collector.labels), collector._counter_cls, collector._histogram_cls)
        self.uag_metrics = UagMetrics(list(collector.labels), collector._counter_cls)


def collect_metrics(original: Callable[..., None], self: Any, state: Any, recv_obj: Any, i: int) -> None:
    from sglang.srt.disaggregation.utils import DisaggregationMode

    original(self, state, recv_obj, i)
    think = getattr(state, "think", None)
    # A prefill worker sees the first token of a response, and its decode worker counts the whole.
    if state.finished and think is not None and self.disaggregation_mode != DisaggregationMode.PREFILL:
        self.think_metrics.observe(_labels(self, state.obj), think)
    uag = getattr(state, "uag", None)
    if state.finished and uag is not None:
        self.uag_metrics.observe(_labels(self, state.obj), uag)


def _labels(manager: Any, obj: Any) -> dict[str, str]:
    """Labels of a request's metrics, as `TokenizerManager.collect_metrics` makes them."""
    labels = {**manager.metrics_collector.labels, **(getattr(obj, "custom_labels", None) or {})}
    priority = getattr(obj, "priority", None)
    if manager.enable_priority_scheduling and priority is not None:
        labels["priority"] = str(priority)
    return labels
