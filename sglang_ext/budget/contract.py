"""The request's think budget: its fields, its spellings, its errors. Nothing here knows an engine.

The canonical field is `think_budget`, an integer or an object. Other servers' names mean the same; every value given
is checked, and two that differ are an error: nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

FIELD = "think_budget"
UNLIMITED = -1
CEILING = 2**31 - 2
"""Largest number of tokens any field takes: counters on the device are 32 bits wide."""
STOP_MESSAGE = ("\n\nConsidering the limited time by the user, I have to give the solution based on the thinking "
                "directly now.\n")
"""Default stop message: the sentence that Qwen published with Qwen3 for this purpose, in lines of its own."""
MESSAGE_BYTES = 4096
"""Longest stop message, in bytes of UTF-8."""

ALIASES = ("thinking_budget", "thinking_token_budget", "max_thinking_tokens")
"""Flat names other servers have for the same integer: Qwen's API; vLLM and TensorRT-LLM; sglang and NIM."""
NESTED = (("reasoning", "max_tokens"), ("thinking", "budget_tokens"))
"""Names inside an object: OpenRouter's and Anthropic's."""


class BudgetError(ValueError):
    """A think budget that is not accepted; the message names field, value and what is accepted."""


@dataclass(frozen=True)
class ThinkBudget:
    """A checked budget; the fields' names are the keys of the object form. Counts are in tokens.

    `message` None means the server's default message.
    """

    max_tokens: int = UNLIMITED
    min_tokens: int = 0
    grace_tokens: int = 0
    message: str | None = None
    answer_tokens: int = 0

    @property
    def limited(self) -> bool:
        """Whether this budget can change a response at all; without it, thinking is only reported."""
        return self.max_tokens != UNLIMITED or self.min_tokens > 0 or self.answer_tokens > 0

    def to_dict(self) -> dict[str, Any]:
        """The object form, defaults included; `parse` reads it back to an equal budget."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Limits:
    """What the server's operator sets."""

    default: ThinkBudget | None = None  # for requests that say nothing
    ceiling: int = CEILING  # --think-budget-max
    allow_unlimited: bool = True  # whether a request may ask for no limit

    @property
    def lowest(self) -> int:
        """Smallest `max_tokens` a request may ask for."""
        return UNLIMITED if self.allow_unlimited else 0


def parse(value: Any, limits: Limits, field: str = FIELD) -> ThinkBudget:
    """Check one value of a budget field.

    Args:
        value: an integer or an object.
        limits: the server's ceiling, and its defaults for keys that an object leaves out.
        field: name under which the client gave it, for messages.

    Raises:
        BudgetError: naming the field, the value and what is accepted.
    """
    base = limits.default or ThinkBudget()
    if isinstance(value, Mapping):
        budget = _parse_object(value, base, limits, field)
    else:
        most = _tokens(value, field, limits.lowest, limits.ceiling, extra=" or an object")
        budget = replace(base, max_tokens=most, grace_tokens=_shrunk(base.grace_tokens, most),
                         min_tokens=_shrunk(base.min_tokens, most))
    if budget.max_tokens != UNLIMITED:
        for key in ("min_tokens", "grace_tokens"):
            part = getattr(budget, key)
            if part > budget.max_tokens:
                raise BudgetError(f"{field}.{key}: {part} is above max_tokens {budget.max_tokens}; "
                                  f"accepted: 0 to {budget.max_tokens}")
    return budget


def _shrunk(default: int, most: int) -> int:
    """A server default that a smaller explicit budget cuts; explicit values are never changed."""
    return default if most == UNLIMITED else min(default, most)


def _parse_object(value: Mapping[Any, Any], base: ThinkBudget, limits: Limits, field: str) -> ThinkBudget:
    known = [f.name for f in fields(ThinkBudget)]
    for key in value:
        if key not in known:
            raise BudgetError(f"{field}: unknown key {shown(key)}; accepted keys: {', '.join(known)}")
    given: dict[str, Any] = {}
    for key, part in value.items():
        if key == "message":
            given[key] = _message(part, f"{field}.{key}")
        else:
            lowest = limits.lowest if key == "max_tokens" else 0
            highest = limits.ceiling if key == "max_tokens" else CEILING
            given[key] = _tokens(part, f"{field}.{key}", lowest, highest)
    most = given.get("max_tokens", base.max_tokens)
    if most == UNLIMITED and given.get("grace_tokens"):
        raise BudgetError(f"{field}.grace_tokens: {given['grace_tokens']} has no limit to be within; accepted: 0, or a "
                          "max_tokens of 0 or more beside it")
    for key in ("min_tokens", "grace_tokens"):
        given.setdefault(key, _shrunk(getattr(base, key), most))
    return replace(base, **given)


def _tokens(value: Any, field: str, lowest: int, highest: int, extra: str = "") -> int:
    accepted = f"accepted: an integer from {lowest}{' (no limit)' if lowest == UNLIMITED else ''} to {highest}{extra}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; {accepted}")
    if not lowest <= value <= highest:
        raise BudgetError(f"{field}: {value} is out of range; {accepted}")
    return value


def _message(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; accepted: a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BudgetError(f"{field}: is not valid Unicode text (a lone surrogate)") from None
    if size > MESSAGE_BYTES:
        raise BudgetError(f"{field}: {size} bytes is too long; accepted: at most {MESSAGE_BYTES} bytes")
    return value


def shown(value: Any) -> str:
    """A value as the client wrote it, in JSON, cut if it is long."""
    text = json.dumps(value, default=repr, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(value: Any) -> str:
    """The JSON name of a value's type, which is what a client sees."""
    names = {type(None): "null", bool: "boolean", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def spellings(source: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every budget that a set of request parameters gives, with the name it has there. A null is not a value.

    Args:
        source: the parameters.
        where: prefix that tells a reader of an error where they stand, for example `custom_params.`.
    """
    for name in (FIELD, *ALIASES):
        if source.get(name) is not None:
            yield where + name, source[name]
    for outer, inner in NESTED:
        nested = source.get(outer)
        if isinstance(nested, Mapping) and nested.get(inner) is not None:
            yield f"{where}{outer}.{inner}", nested[inner]


def one_of(given: list[tuple[str, Any]], limits: Limits) -> ThinkBudget | None:
    """The budget that all spellings of one request agree on; None if there is none.

    Raises:
        BudgetError: a value is not accepted, or two spellings differ.
    """
    parsed = [(name, value, parse(value, limits, name)) for name, value in given]
    for name, value, budget in parsed[1:]:
        if budget != parsed[0][2]:
            first, first_value, _ = parsed[0]
            raise BudgetError(f"{first} and {name} differ: {shown(first_value)} and {shown(value)}; "
                              "accepted: one of them, or equal values")
    return parsed[0][2] if parsed else None
