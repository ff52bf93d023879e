"""The OpenAI endpoints: a think budget as a top-level field, under any of its names.

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
    """Add the budget's fields to a request model (pydantic), where it lacks them.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see the fields.
    """
    from pydantic.fields import FieldInfo

    missing = [name for name in _NAMES if name not in model.model_fields]
    if missing and "sglang.srt.entrypoints.http_server" in sys.modules:
        raise HookError("sglang's HTTP server was imported before sglang-ext; its routes would drop think budgets")
    for name in missing:
        model.__annotations__[name] = Any
        model.model_fields[name] = FieldInfo(annotation=Any, default=None)
    model.model_rebuild(force=True)


def _given(request: Any) -> list[tuple[str, Any]]:
    fields = {name: getattr(request, name, None) for name in _NAMES}
    given = list(spellings(fields))
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
