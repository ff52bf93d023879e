"""`/server_info` and `/v1/models`: a client can read that think budgets are served, and which are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_ext.budget.results import advertised
from sglang_ext.budget.service import current

from .fit import description
from .request_models import add_field, efforts

KEY = "think_budget"
VERSIONS = "sglang_ext"


def build_server_info(original: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
    info = {**original(*args, **kwargs), VERSIONS: description()}
    try:
        return {**info, KEY: _advertised()}
    except RuntimeError:  # a follower node, which answers for its configuration alone
        return info


def add_to_model_card(model: Any) -> None:
    """Every card that is made from here on tells what is served."""
    add_field(model, KEY, default_factory=_advertised)
    model.model_rebuild(force=True)


def _advertised() -> dict[str, Any] | None:
    return advertised(current(), efforts())
