"""UAG within sglang's own bookkeeping: what is told of drafts, as sglang counts padding as proposed and knows one width
only, and when slots are taken for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_ext.uag.algorithm import NAME

UAG_KEY = "uag"


def result_of(req: Any) -> dict[str, Any] | None:
    """What is reported of a request's drafts, once it has finished; None where UAG does not draft for it."""
    counts = getattr(req, "uag", None)
    if counts is None or not req.finished():
        return None
    result: dict[str, Any] = counts.result(req.spec_num_correct_drafts, req.spec_verify_ct)
    return result


def calculate_spec_decoding_metrics(original: Callable[..., None], self: Any, meta_info: dict[str, Any], recv_obj: Any,
                                    i: int) -> None:
    original(self, meta_info, recv_obj, i)
    uag = meta_info.get(UAG_KEY)
    if uag is not None and "spec_num_proposed_drafts" in meta_info:
        proposed = uag["proposed"] + uag["forced"]
        meta_info["spec_num_proposed_drafts"] = proposed
        meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / proposed if proposed else 0.0


def resolve_spec_v2_tokens(original: Callable[..., Any], self: Any, result: Any, batch: Any) -> Any:
    """Add up what was proposed. Under overlap scheduling a round is counted when the one before it is processed."""
    reporter = self.metrics_reporter
    for req in batch.reqs:
        counts = getattr(req, "uag", None)
        if counts is not None:
            proposed = counts.proposed + counts.forced
            reporter.uag_proposed = getattr(reporter, "uag_proposed", 0) + proposed - getattr(req, "uag_reported", 0)
            req.uag_reported = proposed
    return original(self, result, batch)


def report_decode_stats(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """For as long as sglang reports, the configured width is the mean one: it divides by rounds times width."""
    rounds, proposed = self.spec_num_forward_ct, getattr(self, "uag_proposed", None)
    if proposed is None or not rounds:
        return original(self, *args, **kwargs)
    from sglang.srt.runtime_context import get_spec

    with get_spec().override(speculative_num_draft_tokens=1 + proposed / rounds):
        original(self, *args, **kwargs)
    if not self.spec_num_forward_ct:  # it was time for a report
        self.uag_proposed = 0
    return None


def alloc_for_spec_decode(original: Callable[..., None], *args: Any, reqs: Sequence[Any], batch: Any = None,
                          **kwargs: Any) -> None:
    """Take no slots as long as every request has those of a widest verification. sglang keeps twice as many, for a
    round in flight under overlap scheduling, and so takes some in each round; without it nothing is in flight."""
    if batch is not None and batch.spec_algorithm.name == NAME and not batch.enable_overlap:
        width = batch.spec_info.draft_token_num
        if all(req.kv.kv_allocated_len - req.kv.kv_committed_len >= width for req in reqs):
            return
    original(*args, reqs=reqs, batch=batch, **kwargs)
