"""Where sglang's request objects carry a think budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_ext.budget.contract import ALIASES, FIELD, NESTED, spellings


def given_in_sampling_params(params: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every budget in sampling parameters and their `custom_params`, with its name."""
    given = list(spellings(params))
    custom = params.get("custom_params")
    if isinstance(custom, Mapping):
        given += spellings(custom, "custom_params.")
    return given


def without_budget(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters without the budget's own keys, which sglang does not know."""
    rest = {key: value for key, value in params.items() if key not in (FIELD, *ALIASES)}
    for outer, inner in NESTED:
        nested = rest.get(outer)
        if isinstance(nested, Mapping) and inner in nested:
            del rest[outer]
    return rest


def with_budget(params: Mapping[str, Any], budget: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sampling parameters that carry a checked budget as `custom_params.think_budget`, which every transport takes."""
    rest = without_budget(params)
    custom = rest.get("custom_params")
    kept = {key: value for key, value in custom.items() if key != FIELD} if isinstance(custom, Mapping) else custom
    if budget is not None:
        kept = {**(kept or {}), FIELD: dict(budget)}
    if kept is not None or "custom_params" in rest:
        rest["custom_params"] = kept
    return rest
