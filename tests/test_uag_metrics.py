"""What is counted of drafts: sglang's own rates without padding, and our counters, which never end a server."""

from __future__ import annotations

import logging
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from sglang.srt.managers.scheduler_components.metrics_reporter import SchedulerMetricsReporter
from sglang.srt.runtime_context import get_context, get_spec
from sglang_ext.patches import speculation

from sglang_ext.uag.metrics import UagMetrics

WIDTH = 8
CAUSES = {"verification": 3, "special": 2}
UAG = {"proposed": 9, "forced": 2, "accepted": 8, "draft_forwards": 12, "translation_us": 345, "rejections": CAUSES,
       "proposed_by": {"draft": 6, "text": 3}, "accepted_by": {"draft": 5, "text": 1}}


def counters(registry: CollectorRegistry) -> UagMetrics:
    return UagMetrics(["model_name"], lambda *args: Counter(*args, registry=registry))


def counted(registry: CollectorRegistry) -> dict[str, float]:
    return {sample.name.removeprefix("sglang_ext:uag_") + sample.labels.get("cause", "")
            + sample.labels.get("source", ""): sample.value
            for family in registry.collect() for sample in family.samples if not sample.name.endswith("_created")}


def test_a_request_is_counted() -> None:
    registry = CollectorRegistry()
    metrics = counters(registry)
    metrics.observe({"model_name": "m"}, UAG)
    metrics.observe({"model_name": "m"}, UAG)
    assert counted(registry) == {
        "proposed_tokens_total": 18, "forced_tokens_total": 4, "accepted_tokens_total": 16, "draft_forwards_total": 24,
        "translation_microseconds_total": 690, "rejections_totalverification": 6, "rejections_totalspecial": 4,
        "source_proposed_tokens_totaldraft": 12, "source_proposed_tokens_totaltext": 6,
        "source_accepted_tokens_totaldraft": 10, "source_accepted_tokens_totaltext": 2}


@pytest.mark.parametrize("field", ["forced", "translation_us", "rejections"])
def test_a_count_below_zero_is_left_out(field: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    bad: Any = {**CAUSES, "special": -1} if field == "rejections" else -1
    counters(registry).observe({"model_name": "m"}, {**UAG, field: bad})
    found = counted(registry)
    assert 0 in found.values()
    assert found["rejections_totalverification"] == 3
    assert "-1" in caplog.text


class Reporter(SchedulerMetricsReporter):
    """sglang's reporter without a scheduler: it logs, and keeps the gauges' values."""

    def __init__(self) -> None:
        pool = SimpleNamespace(get_decode_usage_msg_parts=list, update_scheduler_stats=lambda stats: None)
        self.scheduler = SimpleNamespace(
            enable_fpm=False, spec_algorithm=SimpleNamespace(is_none=lambda: False, is_dspark=lambda: False),
            pool_stats_observer=SimpleNamespace(get_pool_stats=lambda: pool), disaggregation_mode=None,
            waiting_queue=[], forward_ct=0, kv_events_publisher=SimpleNamespace(publish_kv_events=lambda: None))
        self.current_scheduler_metrics_enabled = self.enable_mfu_metrics = False
        self.is_stats_logging_rank, self.decode_log_interval, self.forward_ct_decode = True, 1, 0
        self.last_decode_stats_tic = self.num_generated_tokens = 0
        self._graph_backend_label = "cuda graph"
        self.spec_num_accept_tokens = self.spec_num_correct_drafts = self.spec_num_forward_ct = 0
        self.spec_num_block_accept_tokens = self.spec_num_cap_tokens = 0
        self.spec_total_num_accept_tokens = self.spec_total_num_forward_ct = 0

    def round(self, reqs: list[Any], proposed: list[int], accepted: list[int]) -> None:
        """Launch and process a round, as the scheduler does."""
        for req, count in zip(reqs, proposed, strict=True):
            if hasattr(req, "uag"):
                req.uag.proposed += count
        speculation.resolve_spec_v2_tokens(lambda processor, result, batch: None,
                                           SimpleNamespace(metrics_reporter=self), None, SimpleNamespace(reqs=reqs))
        self.update_spec_metrics(len(reqs), sum(accepted), sum(accepted) + len(reqs))

    def report(self, reqs: list[Any]) -> None:
        batch = SimpleNamespace(reqs=reqs, forward_iter=None)
        speculation.report_decode_stats(SchedulerMetricsReporter.report_decode_stats, self, False, batch, 0)


def request() -> Any:
    return SimpleNamespace(uag=SimpleNamespace(proposed=0, forced=0))


@pytest.fixture(autouse=True)
def width() -> Any:
    with get_context().override_server_args(speculative_num_draft_tokens=WIDTH):
        yield


def rate(caplog: pytest.LogCaptureFixture) -> float:
    found = re.findall(r"accept rate: ([\d.]+)", caplog.text)
    caplog.clear()
    return float(found[-1])


def test_padding_is_not_counted_as_proposed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reporter, reqs = Reporter(), [request(), request()]
    reporter.round(reqs, [3, 0], [2, 0])
    reporter.round(reqs, [2, 1], [2, 0])
    reporter.report(reqs)
    assert math.isclose(rate(caplog), 4 / 6, abs_tol=0.005)
    reporter.round(reqs, [4, 0], [1, 0])  # the next report is of what came since
    reporter.report(reqs)
    assert math.isclose(rate(caplog), 1 / 4, abs_tol=0.005)
    reporter.round(reqs, [0, 0], [0, 0])
    reporter.report(reqs)
    assert rate(caplog) == 0
    assert get_spec().speculative_num_draft_tokens == WIDTH


def test_other_algorithms_are_reported_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reporter, reqs = Reporter(), [SimpleNamespace()]
    reporter.round(reqs, [3], [2])
    reporter.report(reqs)
    assert math.isclose(rate(caplog), 2 / (WIDTH - 1), abs_tol=0.005)


def test_meta_info_counts_what_was_proposed() -> None:
    def original(manager: Any, meta: dict[str, Any], recv: Any, i: int) -> None:
        meta.update(spec_num_correct_drafts=4, spec_num_proposed_drafts=21, spec_accept_rate=4 / 21)

    meta: dict[str, Any] = {"uag": {"proposed": 5, "forced": 3}}
    speculation.calculate_spec_decoding_metrics(original, None, meta, None, 0)
    assert (meta["spec_num_proposed_drafts"], meta["spec_accept_rate"]) == (8, 0.5)
    meta = {"uag": {"proposed": 0, "forced": 0}}
    speculation.calculate_spec_decoding_metrics(original, None, meta, None, 0)
    assert (meta["spec_num_proposed_drafts"], meta["spec_accept_rate"]) == (0, 0.0)
