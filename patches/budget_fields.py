"""Where sglang's request objects carry a think budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sglang_ext.budget.contract import FIELD, BudgetError, ThinkBudget, shown
from sglang_ext.budget.effort import Share
from sglang_ext.budget.spelling import Off, without

NO_THINKING = {"max_tokens": 0, "message": ""}
_SWITCHES = frozenset({"enable_thinking", "thinking"})
_MODE, _OFF_MODE = "thinking_mode", "disabled"


def resolved(given: list[tuple[str, Any]], max_new_tokens: int | None, context_left: int,
            is_off: Callable[[Off], bool]) -> list[tuple[str, Any]]:
    """The same budgets, with an effort's share of the response turned into tokens, and a wish not to think into a
    budget of 0 where no template has seen to it.

    Args:
        max_new_tokens: most tokens of the response; None if the request sets none, then it is `context_left`.
        is_off: whether a wish not to think is fulfilled already.
    """
    longest = context_left if max_new_tokens is None else max_new_tokens
    out = []
    for name, value in given:
        if isinstance(value, Share):
            out.append((name, value.of(max(0, longest))))
        elif not isinstance(value, Off):
            out.append((name, value))
        elif not is_off(value):
            out.append((name, NO_THINKING))
    return out


@lru_cache(maxsize=8)
def has_switch(template: str) -> bool:
    """Whether a chat template (Jinja) reads an argument that turns thinking off. A mode counts where the template knows
    the one that is set."""
    import jinja2
    from jinja2 import meta
    from jinja2.ext import loopcontrols

    switches = _SWITCHES | ({_MODE} if _OFF_MODE in template else set())
    try:
        names = meta.find_undeclared_variables(jinja2.Environment(extensions=[loopcontrols]).parse(template))
    except jinja2.TemplateError:  # it may hold tags of transformers' own
        return any(name in template for name in switches)
    return bool(switches & names)


def refuse_beams(name: str, beam_width: int | None) -> None:
    """Raises BudgetError for a budget in beam search, whose beams have no row."""
    if beam_width not in (None, 1):
        raise BudgetError(f"{name}: beam search cannot be limited; accepted: beam_width 1")


def check_carrier(custom_params: Any) -> None:
    """Raises BudgetError if `custom_params` cannot carry a budget."""
    if custom_params is not None and not isinstance(custom_params, Mapping):
        raise BudgetError(f"custom_params: {shown(custom_params)} cannot carry a think budget; accepted: an object")


def with_budget(params: Mapping[str, Any], budget: ThinkBudget | Mapping[str, Any] | Share | Off | None,
                keep_names: bool = True) -> dict[str, Any]:
    """Sampling parameters that carry a checked budget as `custom_params.think_budget`, which every transport takes.

    Args:
        budget: a checked one, as long as the parameters are in this process; its object form; what `resolved` will turn
            into one; or None.
        keep_names: leave other names of a budget in `custom_params`, for a processor of the client's.

    Raises:
        BudgetError: `custom_params` is no object.
    """
    rest = without(params)
    custom = rest.get("custom_params")
    if budget is not None:
        check_carrier(custom)
    kept = custom
    if isinstance(custom, Mapping):
        kept = {key: value for key, value in custom.items() if key != FIELD} if keep_names else without(custom)
    if budget is not None:
        kept = {**(kept or {}), FIELD: budget}
    if kept is not None or "custom_params" in rest:
        rest["custom_params"] = kept
    return rest
