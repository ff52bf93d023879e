"""`/generate`: a think budget in `sampling_params`.

sglang checks the raw body against a generated schema that refuses unknown sampling parameters and ignores unknown keys
beside them. The budget is checked here, before a stream has begun, and the schema is shown a body without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sglang_ext.budget.contract import BudgetError, shown, spellings
from sglang_ext.budget.service import current

from .budget_fields import check_carrier, given_in_sampling_params, without_budget
from .tokenizer_manager import DEFAULT_NEW_TOKENS


def generate_contract_error(original: Callable[..., Any], body: Any) -> str | None:
    if not isinstance(body, Mapping):
        return original(body)
    try:
        _check(body)
    except BudgetError as error:
        return str(error)
    params = body.get("sampling_params")
    if isinstance(params, Mapping):
        body = {**body, "sampling_params": without_budget(params)}
    elif isinstance(params, list):
        body = {**body, "sampling_params": [without_budget(p) if isinstance(p, Mapping) else p for p in params]}
    return original(body)


def _check(body: Mapping[str, Any]) -> None:
    top = [(name, value) for name, value in spellings(body) if name != "max_thinking_tokens"]
    if top:
        name, value = top[0]
        raise BudgetError(f"{name}: {shown(value)} stands beside sampling_params; on /generate it belongs inside: "
                          '{"sampling_params": {"think_budget": ...}}')
    for params in _each_request(body.get("sampling_params")):
        given = given_in_sampling_params(params)
        if body.get("max_thinking_tokens") is not None:
            given.append(("max_thinking_tokens", body["max_thinking_tokens"]))
        most = params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        admitted = current().admit(given, most if isinstance(most, int) and not isinstance(most, bool) else None)
        if admitted is not None:
            check_carrier(params.get("custom_params"))
        if given and admitted is not None and admitted.limited and params.get("beam_width", 1) not in (None, 1):
            raise BudgetError(f"{given[0][0]}: beam search cannot be limited; accepted: beam_width 1")


def _each_request(params: Any) -> Iterator[Mapping[str, Any]]:
    yield from (p for p in (params if isinstance(params, list) else [params or {}]) if isinstance(p, Mapping))
