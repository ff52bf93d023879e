"""`meta_info` of a request that was drafted for by UAG: sglang counts padding as proposed, and knows one width only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UAG_KEY = "uag"


def result_of(req: Any) -> dict[str, Any] | None:
    """What is reported of a request's drafts, once it has finished; None where UAG does not draft for it."""
    counts = getattr(req, "uag", None)
    if counts is None or not req.finished():
        return None
    result: dict[str, Any] = counts.result(req.spec_num_correct_drafts)
    return result


def calculate_spec_decoding_metrics(original: Callable[..., None], self: Any, meta_info: dict[str, Any], recv_obj: Any,
                                    i: int) -> None:
    original(self, meta_info, recv_obj, i)
    uag = meta_info.get(UAG_KEY)
    if uag is not None and "spec_num_proposed_drafts" in meta_info:
        proposed = uag["proposed"] + uag["forced"]
        meta_info["spec_num_proposed_drafts"] = proposed
        meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / proposed if proposed else 0.0
