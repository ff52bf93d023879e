"""The OpenAI and Anthropic endpoints: a think budget as a top-level field, under any of its names.

Their request models drop unknown fields in silence, so the fields are added to the models, before the HTTP server binds
its routes to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from sglang_ext.budget.contract import ALIASES, FIELD, NESTED, spellings
from sglang_ext.budget.service import current

from .budget_fields import with_budget
from .registry import HookError

_NAMES = (FIELD, *ALIASES, *(outer for outer, _ in NESTED))


def add_fields(model: Any) -> None:
    """Add the budget's fields to a request model (pydantic), where it lacks them. `thinking` and `reasoning` are
    sglang's own fields on some models.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see the fields.
    """
    _add(model, _NAMES)


def add_nested_field(model: Any) -> None:
    """The same for the model of the object `reasoning`, which the requests that hold it are built from afterwards."""
    _add(model, tuple(inner for outer, inner in NESTED if outer == "reasoning"))


def _add(model: Any, names: tuple[str, ...]) -> None:
    from pydantic.fields import FieldInfo

    missing = [name for name in names if name not in model.model_fields]
    if missing and "sglang.srt.entrypoints.http_server" in sys.modules:
        raise HookError("sglang's HTTP server was imported before sglang-ext; its routes would drop think budgets")
    for name in missing:
        model.__annotations__[name] = Any
        model.model_fields[name] = FieldInfo(annotation=Any, default=None)
    model.model_rebuild(force=True)


def _given(request: Any) -> list[tuple[str, Any]]:
    fields = {name: getattr(request, name, None) for name in _NAMES}
    plain = {name: v.model_dump() if hasattr(v, "model_dump") else v for name, v in fields.items()}
    given = list(spellings(plain))
    for outer in ("chat_template_kwargs", "custom_params"):
        nested = getattr(request, outer, None)
        if isinstance(nested, Mapping):
            given += spellings(nested, f"{outer}.")
    return given


def _with_checked_budget(request: Any, params: dict[str, Any]) -> dict[str, Any]:
    given = _given(request)
    if not given:
        return params
    budget = current().admit(given, params.get("max_new_tokens"))
    return with_budget(params, budget.to_dict() if budget is not None else None)


def to_sampling_params(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return _with_checked_budget(self, original(self, *args, **kwargs))


def build_sampling_params(original: Callable[..., Any], self: Any, request: Any) -> dict[str, Any]:
    return _with_checked_budget(request, original(self, request))


def convert_messages_request(original: Callable[..., Any], self: Any, anthropic_request: Any) -> Any:
    """An Anthropic request becomes a chat request; its budget goes along, checked under the name it has there."""
    chat_request = original(self, anthropic_request)
    given = _given(anthropic_request)
    if given:
        budget = current().admit(given, anthropic_request.max_tokens)
        chat_request.think_budget = budget.to_dict() if budget is not None else None
    return chat_request
