"""What a response says about its thinking: from the scheduler's report to `meta_info` and every endpoint's `usage`.

sglang hands `meta_info["reasoning_tokens"]` by value to the `UsageInfo` of each endpoint, by its own way there. That
count carries the `think` object along, and the constructor of `UsageInfo` takes it out: no endpoint is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sglang_ext.budget.results import ReasoningTokens

from .speculation import UAG_KEY

RESULT_KEY = "think"
DETAILS = "completion_tokens_details"
FORCED_ENDS = ("forced", "grace", "eos", "loop", "deadline", "asked")

logger = logging.getLogger(__name__)


class Report(NamedTuple):
    """What the scheduler reports with each output of a request."""

    reasoning_tokens: int | None  # so far; None where sglang's own count stands
    think: dict[str, Any] | None  # of a request that has a budget


def update_request_meta_info(original: Callable[..., Any], self: Any, meta_info: dict[str, Any], state: Any,
                              customized_info: dict[str, Any], index: int, finish_reason: Any) -> None:
    reports = customized_info.get(RESULT_KEY)
    if reports and reports[index]:
        _report(meta_info, state, Report(*reports[index][-1]), finished=finish_reason is not None)
    uag = customized_info.get(UAG_KEY)
    if uag and uag[index] and uag[index][-1] is not None:
        meta_info[UAG_KEY] = state.uag = uag[index][-1]
    rest = {key: value for key, value in customized_info.items() if key not in (RESULT_KEY, UAG_KEY)}
    original(self, meta_info, state, rest, index, finish_reason)


def _report(meta_info: dict[str, Any], state: Any, report: Report, finished: bool) -> None:
    count, think = report
    if count is None:
        count = meta_info["reasoning_tokens"]
    if think is not None:
        meta_info[RESULT_KEY] = think
        count = ReasoningTokens(count, [think])
    meta_info["reasoning_tokens"] = count
    state.think = think
    if finished and think is not None and think["outcome"] in FORCED_ENDS:
        logger.debug("Request %s: its budget of %d ended the thinking (%s) after %d tokens and wrote %d",
                     meta_info["id"], think["budget"], think["outcome"], think["tokens"], think["forced_tokens"])


def allow_think(model: Any) -> None:
    """Let a usage model (pydantic) hold keys that it does not know. One that is not there is not written either, so
    the usage of a request without a budget keeps its form."""
    model.model_config["extra"] = "allow"
    model.model_rebuild(force=True)


def rebuild(model: Any) -> None:
    """Compile a model's serialiser again, with the changed usage inside."""
    model.model_rebuild(force=True)


def construct_usage(original: Callable[..., None], self: Any, **data: Any) -> None:
    count = data.get("reasoning_tokens")
    if isinstance(count, ReasoningTokens):
        data[RESULT_KEY] = count.think
    if (count and DETAILS not in type(self).model_fields) or isinstance(count, ReasoningTokens):
        data[DETAILS] = {"reasoning_tokens": int(count)}  # 0.5.22 has no such field of its own
    original(self, **data)


def calculate_streaming_usage(original: Callable[..., Any], prompt_tokens: Mapping[int, int],
                              reasoning_tokens: Mapping[int, int], *args: Any, **kwargs: Any) -> Any:
    """The counts of a stream stand in the order in which its choices began; their objects stand in that of index."""
    return original(prompt_tokens, dict(sorted(reasoning_tokens.items())), *args, **kwargs)


def think_of(usage: Any) -> Mapping[str, Any] | None:
    """The `think` object of a `UsageInfo`."""
    return (getattr(usage, "model_extra", None) or {}).get(RESULT_KEY)


def allow_think_in_responses(model: Any) -> None:
    """`/v1/responses` writes its usage by a serialiser of its own, which is compiled into the model."""
    serializer = model.__pydantic_decorators__.field_serializers["_serialize_usage"]
    original = serializer.func

    def with_think(self: Any, usage: Any, info: Any) -> dict[str, Any] | None:
        data, think = original(self, usage, info), think_of(usage)
        return data if think is None else {**data, RESULT_KEY: think}

    serializer.func = with_think
    model.model_rebuild(force=True)


def anthropic_usage(original: Callable[..., Any], usage: Any, *, include_output: bool, force_zero_output: bool = False,
                    **kwargs: Any) -> Any:
    """Anthropic's usage, with its own field for reasoning tokens where there are some."""
    result = original(usage, include_output=include_output, force_zero_output=force_zero_output, **kwargs)
    if usage is None or not include_output or force_zero_output:
        return result
    think = think_of(usage)
    if usage.reasoning_tokens or think is not None:
        result.output_tokens_details = {"thinking_tokens": usage.reasoning_tokens or 0}
    if think is not None:
        result.think = think
    return result
