"""The OpenAI and Anthropic endpoints: a think budget as a top-level field, under any of its names.

Their request models drop unknown fields in silence, so the fields are added to the models, before the HTTP server binds
its routes to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

from sglang_ext.budget.contract import ALIASES, CEILING, FIELD, NESTED, shown, spellings
from sglang_ext.budget.effort import Share
from sglang_ext.budget.service import current
from sglang_ext.config import Settings

from .asked import note
from .budget_fields import with_budget
from .registry import HookError

_NAMES = (FIELD, *ALIASES, *(outer for outer, _ in NESTED))
_CARRIERS = ("chat_template_kwargs", "custom_params")
EFFORT = "reasoning_effort"
ANTHROPIC_LEAST = 1024
"""Smallest `thinking.budget_tokens` that Anthropic's API, and with it sglang, accepts."""


def add_fields(model: Any) -> None:
    """Add the budget's fields to a request model (pydantic), where it lacks them. Some are sglang's own fields on some
    models; a carrier that is not is read for budgets alone.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see the fields.
    """
    for name in (*_NAMES, *_CARRIERS):
        add_field(model, name, default=None)
    model.model_rebuild(force=True)


def add_nested_field(model: Any) -> None:
    """The same for the model of the object `reasoning`, which the requests that hold it are built from afterwards."""
    for outer, inner in NESTED:
        if outer == "reasoning":
            add_field(model, inner, default=None)
    model.model_rebuild(force=True)


def add_field(model: Any, name: str, **spec: Any) -> None:
    """Add one field of any type to a model (pydantic), unless it has it. The model must then be rebuilt.

    Args:
        spec: its default, as pydantic's `Field` takes it.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see the field.
    """
    from pydantic.fields import FieldInfo

    if name in model.model_fields:
        return
    if "sglang.srt.entrypoints.http_server" in sys.modules:
        raise HookError("sglang's HTTP server was imported before sglang-ext; its routes would drop think budgets")
    model.__annotations__[name] = Any
    model.model_fields[name] = FieldInfo(annotation=Any, **spec)


def check_budget_tokens(model: Any) -> None:
    """Anthropic's `thinking` takes "2048" and true for integers; here they are errors, as under every other name."""
    from pydantic import BeforeValidator
    from pydantic.fields import FieldInfo

    annotation = Annotated[int | None, BeforeValidator(_integer_or_none)]
    model.model_fields["budget_tokens"] = FieldInfo.from_annotated_attribute(annotation, None)
    model.model_rebuild(force=True)


def _integer_or_none(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{shown(value)} is no integer; accepted: an integer from {ANTHROPIC_LEAST} to {CEILING}")
    return value


def _given(request: Any) -> list[tuple[str, Any]]:
    fields = {name: getattr(request, name, None) for name in _NAMES}
    plain = {name: v.model_dump() if hasattr(v, "model_dump") else v for name, v in fields.items()}
    given = list(spellings(plain))
    for outer in _CARRIERS:
        nested = getattr(request, outer, None)
        if isinstance(nested, Mapping):
            given += spellings(nested, f"{outer}.")
    return given


@cache
def efforts() -> Mapping[str, int | Share]:
    """The operator's budgets of `reasoning_effort`."""
    return Settings.from_environment().efforts


def _budget_of_effort(request: Any) -> int | Share | None:
    """What the operator's map says to a request's effort; None if it says nothing."""
    nested = getattr(request, "chat_template_kwargs", None)
    effort = nested.get(EFFORT) if isinstance(nested, Mapping) else None  # it wins, as in sglang's chat endpoint
    if effort is None:
        effort = getattr(request, EFFORT, None)
    reasoning = getattr(request, "reasoning", None)
    if effort is None and "effort" in getattr(reasoning, "model_fields_set", ()):
        effort = reasoning.effort
    return efforts().get(effort) if isinstance(effort, str) else None


def _with_checked_budget(request: Any, params: dict[str, Any]) -> dict[str, Any]:
    given = _given(request)
    if not given:
        budget = _budget_of_effort(request)
        if budget is None:
            return params
        if isinstance(budget, Share):
            return with_budget(params, budget)
        given = [(EFFORT, budget)]
    admitted = current().admit(given, params.get("max_new_tokens"))
    return with_budget(params, admitted.to_dict() if admitted is not None else None)


def to_sampling_params(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return note(self, _with_checked_budget(self, original(self, *args, **kwargs)), parsed=True)


def build_sampling_params(original: Callable[..., Any], self: Any, request: Any) -> dict[str, Any]:
    return _with_checked_budget(request, original(self, request))


def convert_messages_request(original: Callable[..., Any], self: Any, anthropic_request: Any) -> Any:
    """An Anthropic request becomes a chat request; its budget goes along, checked under the name it has there."""
    given = _given(anthropic_request)
    budget = current().admit(given, anthropic_request.max_tokens) if given else None
    chat_request = original(self, _without_budget_tokens(anthropic_request))
    if budget is not None:
        chat_request.think_budget = budget.to_dict()
    return chat_request


def _without_budget_tokens(request: Any) -> Any:
    """The request without the budget of which sglang would log that it is not enforced."""
    if request.thinking is None or request.thinking.budget_tokens is None:
        return request
    return request.model_copy(update={"thinking": request.thinking.model_copy(update={"budget_tokens": None})})
