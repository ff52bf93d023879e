"""`Req` and `DetokenizerManager`: text that a budget wrote meets no stop condition of a client's.

sglang looks for stop strings in the text of a response's last tokens, for stop ids among a step's tokens, and cuts the
response at the first place where the stop string stands. Here each looks only at runs of tokens that the model chose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_ext.budget.stops import StopText

NO_TOKEN = object()
"""Stands for a forced token where sglang looks for stop ids: it equals none."""


class _Run:
    """One run of chosen tokens, as sglang's search for stop strings reads a `Req`."""

    decoded_text = ""

    def __init__(self, req: Any, begin: int, end: int) -> None:
        self._kind = type(req)
        self.output_ids = req.output_ids[begin:end]
        self.sampling_params, self.tokenizer, self.rid = req.sampling_params, req.tokenizer, req.rid
        self.finished_reason: Any = None
        self.finished_len: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name).__get__(self)

    def text(self) -> str:
        """What a client sees of the run, up to the stop."""
        params = self.sampling_params
        return str(self.tokenizer.decode(self.output_ids[: self.finished_len],
                                         skip_special_tokens=params.skip_special_tokens,
                                         spaces_between_special_tokens=params.spaces_between_special_tokens))


def process_batch_result(original: Callable[..., Any], self: Any, batch: Any, result: Any) -> Any:
    output = getattr(result, "auxiliary_host_output", None)
    if output is not None:
        if result.copy_done is not None:
            result.copy_done.synchronize()
        for each in getattr(output, "outputs", (output,)):
            announce = getattr(each, "announce", None)
            if announce is not None:
                announce(batch)
    return original(self, batch, result)


def check_str_based_finish(original: Callable[..., bool], self: Any, new_accepted_len: int = 1) -> bool:
    think = getattr(self, "think", None)
    if think is not None:
        think.mark(self, new_accepted_len)
    if think is None or not think.seams:
        return original(self, new_accepted_len)
    length = len(self.output_ids)
    for begin, end in think.seams.runs(length, new_accepted_len):
        run = _Run(self, begin, end)
        met = original(run, min(end - begin, end - (length - new_accepted_len)))
        if run.finished_reason is not None:
            self.finished_reason = run.finished_reason
        if met:
            matched = getattr(run.finished_reason, "matched", None)
            if isinstance(matched, str):
                run.finished_reason.matched = StopText(matched, len(run.text()))
            self.finished_len = None if run.finished_len is None else begin + run.finished_len
            return True
    return False


def check_token_based_finish(original: Callable[..., bool], self: Any, new_accepted_tokens: Sequence[int]) -> bool:
    think = getattr(self, "think", None)
    if think is None or not think.seams:
        return original(self, new_accepted_tokens)
    new = enumerate(new_accepted_tokens, len(self.output_ids) - len(new_accepted_tokens))
    chosen = [NO_TOKEN if think.seams.forced(place) else token for place, token in new]
    return original(self, chosen)


def check_match_stop_str_prefix(original: Callable[..., bool], self: Any) -> bool:
    think = getattr(self, "think", None)
    if think is None or not think.seams:
        return original(self)
    length = len(self.output_ids)
    return any(original(_Run(self, begin, end)) for begin, end in think.seams.runs(length, 1))


def trim_matched_stop(original: Callable[..., Any], self: Any, output: Any, finished_reason: Any,
                      no_stop_trim: bool) -> Any:
    matched = finished_reason.get("matched") if finished_reason else None
    if isinstance(matched, StopText) and isinstance(output, str):
        finished_reason["matched"] = str(matched)  # from here on a plain text: not every encoder takes another
        return matched.trimmed(output, no_stop_trim)
    return original(self, output, finished_reason, no_stop_trim)
