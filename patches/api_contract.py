"""`/generate`: a think budget in `sampling_params`, or in `custom_labels`, which a router passes on.

sglang checks the raw body against a generated schema that refuses unknown sampling parameters and ignores unknown keys
beside them. The budget is checked here, before a stream has begun, and the schema is shown a body without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from sglang_ext.budget.contract import BudgetError, shown
from sglang_ext.budget.service import current
from sglang_ext.budget.spelling import PROCESSOR, WRAPPER, Wish, in_parameters, read, without

from .budget_fields import NO_THINKING, check_carrier, refuse_beams
from .tokenizer_manager import DEFAULT_NEW_TOKENS, LABELS

OWN = "max_thinking_tokens"
"""sglang's own field beside `sampling_params`."""


def generate_contract_error(original: Callable[..., Any], body: Any) -> str | None:
    if not isinstance(body, Mapping):
        return original(body)
    try:
        _check(body)
    except BudgetError as error:
        return str(error)
    params = body.get("sampling_params")
    if isinstance(params, Mapping):
        body = {**body, "sampling_params": without(params)}
    elif isinstance(params, list):
        body = {**body, "sampling_params": [without(p) if isinstance(p, Mapping) else p for p in params]}
    return original(body)


def _check(body: Mapping[str, Any]) -> None:
    beside = read({name: value for name, value in body.items() if name not in ("sampling_params", LABELS)}, _fields())
    labels = read({LABELS: body.get(LABELS)})
    _refuse_beside(beside, body)
    _raise_error(labels)
    for params in _each_request(body.get("sampling_params")):
        _raise_error(read({**params, PROCESSOR: body.get(PROCESSOR)}, _parameters()))
        both = Wish((*in_parameters(params), *labels.budgets, *beside.budgets), labels.off)
        given = both.given(current().limits, templated=False)
        if both.off is not None and not both.budgets:
            given = [(both.off, NO_THINKING)] if current().automaton is not None else []
        most = params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        admitted = current().admit(given, most if isinstance(most, int) and not isinstance(most, bool) else None)
        if admitted is not None:
            check_carrier(params.get("custom_params"))
        if given and admitted is not None and admitted.limited:
            refuse_beams(given[0][0], params.get("beam_width"))


def _refuse_beside(beside: Wish, body: Mapping[str, Any]) -> None:
    """Raise BudgetError for what stands beside the sampling parameters, where nothing reads it."""
    belongs = '; on /generate it belongs inside: {"sampling_params": {"think_budget": ...}}'
    _raise_error(beside)
    for name, value in beside.budgets:
        if name != OWN:
            raise BudgetError(f"{name}: {shown(value)} stands beside sampling_params{belongs}")
    if beside.off is not None:
        raise BudgetError(f"{beside.off}: no chat template writes a prompt of /generate; accepted: a budget of 0"
                          f"{belongs}")
    if body.get(WRAPPER):
        raise BudgetError(f"{WRAPPER}: {shown(body[WRAPPER])} is an argument of client libraries, and no field; "
                          "accepted: its contents, in the request itself")


def _raise_error(wish: Wish) -> None:
    if wish.error is not None:
        raise BudgetError(wish.error)


@cache
def _fields() -> frozenset[str]:
    """Fields of sglang's own request."""
    from dataclasses import fields

    from sglang.srt.managers.io_struct import GenerateReqInput

    return frozenset(f.name for f in fields(GenerateReqInput))


@cache
def _parameters() -> frozenset[str]:
    """sglang's own sampling parameters."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    return frozenset(SamplingParams.__struct_fields__)


def _each_request(params: Any) -> Iterator[Mapping[str, Any]]:
    yield from (p for p in (params if isinstance(params, list) else [params or {}]) if isinstance(p, Mapping))
