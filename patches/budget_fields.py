"""Where sglang's request objects carry a think budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_ext.budget.contract import ALIASES, FIELD, NESTED, BudgetError, shown, spellings
from sglang_ext.budget.effort import Share


def given_in_sampling_params(params: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every budget in sampling parameters and their `custom_params`, with its name."""
    given = list(spellings(params))
    custom = params.get("custom_params")
    if isinstance(custom, Mapping):
        given += spellings(custom, "custom_params.")
    return given


def settled(given: list[tuple[str, Any]], max_new_tokens: int | None, context_left: int) -> list[tuple[str, Any]]:
    """The same budgets, with an effort's share of the response turned into tokens.

    Args:
        max_new_tokens: most tokens of the response; None if the request sets none, then it is `context_left`.
    """
    longest = context_left if max_new_tokens is None else max_new_tokens
    return [(name, value.of(max(0, longest)) if isinstance(value, Share) else value) for name, value in given]


def without_budget(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters without the budget's own keys, which sglang does not know."""
    rest = {key: value for key, value in params.items() if key not in (FIELD, *ALIASES)}
    for outer, inner in NESTED:
        nested = rest.get(outer)
        if isinstance(nested, Mapping) and inner in nested:
            del rest[outer]
    return rest


def check_carrier(custom_params: Any) -> None:
    """Raises BudgetError if `custom_params` cannot carry a budget."""
    if custom_params is not None and not isinstance(custom_params, Mapping):
        raise BudgetError(f"custom_params: {shown(custom_params)} cannot carry a think budget; accepted: an object")


def with_budget(params: Mapping[str, Any], budget: Mapping[str, Any] | Share | None,
                own: tuple[str, ...] = (FIELD,)) -> dict[str, Any]:
    """Sampling parameters that carry a checked budget as `custom_params.think_budget`, which every transport takes.

    Args:
        budget: the object form; a share, which `settled` will turn into tokens; or None.
        own: names in `custom_params` that are ours; the others stay for a processor of the client's.

    Raises:
        BudgetError: `custom_params` is no object.
    """
    rest = without_budget(params)
    custom = rest.get("custom_params")
    if budget is not None:
        check_carrier(custom)
    kept = {key: value for key, value in custom.items() if key not in own} if isinstance(custom, Mapping) else custom
    if budget is not None:
        kept = {**(kept or {}), FIELD: budget}
    if kept is not None or "custom_params" in rest:
        rest["custom_params"] = kept
    return rest
