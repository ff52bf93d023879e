"""`/v1/responses` of gpt-oss: one budget for a response whose built-in tools the server calls itself.

sglang asks its engine anew behind each of these calls, with the parameters of the first turn. So each turn would have
the whole budget, and nobody would count what was thought.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.contract import ARRIVAL, FIELD, FIRST_TOKEN, UNLIMITED, ThinkBudget
from sglang_ext.budget.effort import Share
from sglang_ext.budget.results import ReasoningTokens
from sglang_ext.budget.spelling import Off

from .budget_fields import NO_THINKING, with_budget
from .usage import RESULT_KEY


class Turns:
    """The turns of one response.

    Args:
        context: sglang's object of the response; what its turns put out is seen here first.
        params: sampling parameters of all turns. What is left of the budget is written into them behind each one.
    """

    def __init__(self, context: Any, params: dict[str, Any]) -> None:
        self._context, self._params = context, params
        self._take_in = context.append_output
        self._before: list[Mapping[str, Any]] = []  # `meta_info` of turns that are over
        self._turn: Mapping[str, Any] = {}
        self._since = time.monotonic()  # when the deadline that is in the parameters began to count
        self._begun: float | None = None  # when the response's first token was seen

    def append_output(self, output: Any) -> None:
        """Instead of the context's own: what a turn has put out, or what a tool has answered."""
        self._take_in(output)
        if isinstance(output, dict) and isinstance(output.get("meta_info"), dict):
            self._turn = output["meta_info"]
            self._begun = time.monotonic() if self._begun is None else self._begun
            self._count()
        elif self._turn:
            self._before.append(self._turn)
            self._spend(self._turn)
            self._turn = {}

    def _count(self) -> None:
        turns = [*self._before, self._turn]
        tokens = sum(int(turn.get("reasoning_tokens") or 0) for turn in turns)
        thinks = [turn[RESULT_KEY] for turn in turns if RESULT_KEY in turn]
        if thinks:
            sums = {key: sum(think[key] for think in thinks) for key in ("tokens", "forced_tokens")}
            whole = {**thinks[-1], **sums, "budget": thinks[0]["budget"]}
            self._context.num_reasoning_tokens = ReasoningTokens(tokens, [whole])
        else:
            self._context.num_reasoning_tokens = tokens

    def _spend(self, turn: Mapping[str, Any]) -> None:
        """Leave to the next turn what this one has left."""
        think = turn.get(RESULT_KEY)
        if think is None:
            return
        wish = (self._params.get("custom_params") or {}).get(FIELD)
        default = service.current().limits.default
        if isinstance(wish, Off):
            wish = NO_THINKING
        elif wish is None or isinstance(wish, Share):
            wish = default or {}
        if isinstance(wish, ThinkBudget):
            wish = wish.to_dict()
        least = max(0, wish.get("min_tokens", 0) - think["tokens"])
        budget = {**wish, "min_tokens": least}
        if wish.get("seconds") is not None:
            since = self._begun if wish.get("since") == FIRST_TOKEN and self._begun is not None else self._since
            self._since = time.monotonic()
            budget |= {"seconds": max(0.0, wish["seconds"] - (self._since - since)), "since": ARRIVAL}
        if think["budget"] != UNLIMITED:
            left = max(0, think["budget"] - think["tokens"])
            grace = min(wish.get("grace_tokens", 0), left)
            budget |= {"max_tokens": left, "min_tokens": min(least, left), "grace_tokens": grace}
        if think["outcome"] in ("loop", "deadline", "asked"):  # these hold for the whole response
            budget |= {"max_tokens": 0, "min_tokens": 0, "grace_tokens": 0}
        self._params.update(with_budget(self._params, budget))


def generate_with_builtin_tools(original: Callable[..., Any], self: Any, request_id: str, request_prompt: Any,
                                adapted_request: Any, sampling_params: Any, context: Any, *args: Any,
                                **kwargs: Any) -> Any:
    if isinstance(sampling_params, dict) and hasattr(context, "num_reasoning_tokens"):
        context.append_output = Turns(context, sampling_params).append_output
    return original(self, request_id, request_prompt, adapted_request, sampling_params, context, *args, **kwargs)
