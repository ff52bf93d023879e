"""`Scheduler`: a request gets its row when it enters, and its results leave with its output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.contract import BudgetError
from sglang_ext.budget.families import Implied
from sglang_ext.budget.prompt import Request
from sglang_ext.budget.results import ReasoningCounter
from sglang_ext.budget.spelling import spellings
from sglang_ext.config import SettingsError

from . import choices, ends
from .asked import ARRIVED_KEY, REQUEST_KEY
from .launch import READY_KEY, REFUSED
from .reasoning_parser import build_admission
from .registry import check_applied
from .speculation import UAG_KEY, result_of
from .thinking import Thinking
from .usage import RESULT_KEY, Report


def init_tokenizer(original: Callable[..., Any], self: Any) -> None:
    original(self)
    try:
        service.install(build_admission(self.tokenizer, self.model_config))
    except SettingsError as error:  # sglang would print a traceback and kill the process that started this one
        print(f"sglang-ext: {error}", file=sys.stderr, flush=True)
        raise SystemExit(REFUSED) from None


def get_init_info(original: Callable[..., Any], self: Any) -> dict[str, Any]:
    check_applied()
    return {**original(self), READY_KEY: True}


def init_request(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.think, self.think_error = None, None
    custom = self.sampling_params.custom_params
    custom = custom if isinstance(custom, dict) else {}
    try:  # the tokenizer manager's object form, or a client's own words where a request came past it
        budget = service.current().admit(list(spellings(custom, "custom_params.")), None)
    except BudgetError as error:
        self.think_error = str(error)
    else:
        request = Request.of(custom.get(REQUEST_KEY))
        self.think = Thinking(budget, request) if budget is not None else None
    ends.note_request(self, custom.get(ARRIVED_KEY))
    choices.note_names(self, custom)


def validate_dllm_request(original: Callable[..., Any], self: Any, req: Any) -> str | None:
    return getattr(req, "think_error", None) or original(self, req)


def get_output_streamer_class(original: Callable[..., Any], self: Any) -> type:
    return _with_results(original(self))


@cache
def _with_results(base: type) -> type:
    """sglang's output streamer, or another plugin's, with a report on the thinking beside every output."""

    class ThinkOutputStreamer(base):  # type: ignore[misc]
        has_additional_customized_info = True

        def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
            info, counter = super().build_additional_customized_info(reqs), _counter()
            if counter is not None:
                info = {**info, RESULT_KEY: [[_report(req, counter)] for req in reqs]}
            if any(hasattr(req, "uag") for req in reqs):
                info = {**info, UAG_KEY: [[result_of(req)] for req in reqs]}
            return info

        def is_request_level_customized_info_key(self, key: str) -> bool:
            return key in (RESULT_KEY, UAG_KEY) or super().is_request_level_customized_info_key(key)

    return ThinkOutputStreamer


def _report(req: Any, counter: ReasoningCounter) -> Report:
    """What the client is told about a request's thinking so far."""
    think = getattr(req, "think", None)
    return Report(_reasoning_tokens(req, counter), think.result() if think is not None else None)


def _reasoning_tokens(req: Any, counter: ReasoningCounter) -> int | None:
    """How many tokens of the response are thinking, budget or not; None where sglang's own count stands: the prompt has
    no ids, or the response is a beam's."""
    if req.input_embeds is not None or req.beam_group is not None:
        return None
    if getattr(req, "think_count", None) is None:
        implied = req.require_reasoning and service.current().family.implied is not Implied.NEVER
        think = getattr(req, "think", None)
        request = think.request if think is not None else Request(tools=True, implied=implied)
        req.think_count = counter.start(req.origin_input_ids, request)
    return counter.advance(req.think_count, req.output_ids_through_stop)


@cache
def _counter() -> ReasoningCounter | None:
    """The served model's counter; None if its markers are unknown, and so no request has a budget."""
    automaton = service.current().automaton
    return ReasoningCounter(automaton) if automaton is not None else None
