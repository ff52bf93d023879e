"""The request's think budget: its fields, its spellings, its errors. Nothing here knows an engine.

The canonical field is `think_budget`, an integer or an object. Other servers' names (`spelling`) mean the same; every
value given is checked, and two that differ are an error: nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
AUTO = None
"""As `answer_tokens`: a part of the response, where a limit of thinking is set."""
AUTO_SHARE, AUTO_MOST = 8, 512
"""That part is one in so many of the response's tokens, at least 1 and at most so many."""

LONGEST = 86_400
"""Longest `seconds`: a day."""
ARRIVAL, FIRST_TOKEN = "arrival", "first_token"
"""From when `seconds` count: from the request's arrival, its wait in the queue included, or from its first token."""


class BudgetError(ValueError):
    """A think budget that is not accepted; the message names field, value and what is accepted."""


@dataclass(frozen=True)
class ThinkBudget:
    """A checked budget; the fields' names are the keys of the object form. Counts are in tokens.

    `message` None means the server's default message; `answer_tokens` AUTO, a part of the response (`reserve`);
    `seconds` None, no deadline.
    """

    max_tokens: int = UNLIMITED
    min_tokens: int = 0
    grace_tokens: int = 0
    message: str | None = None
    answer_tokens: int | None = 0
    loops: bool = False
    seconds: float | None = None
    since: str = ARRIVAL

    @property
    def limited(self) -> bool:
        """Whether this budget can change a response at all; without it, thinking is only reported."""
        return (self.max_tokens != UNLIMITED or self.min_tokens > 0 or bool(self.answer_tokens) or self.loops
                or self.seconds is not None)

    def reserve(self, max_new_tokens: int | None, closing: int) -> int:
        """How many tokens of a response are kept for the answer.

        Args:
            max_new_tokens: of the response; None if it is not known.
            closing: fewest tokens that end the thinking. A response that is no longer holds no answer.
        """
        if self.answer_tokens is not AUTO:
            return self.answer_tokens
        if max_new_tokens is None or max_new_tokens <= closing or self.max_tokens == UNLIMITED:
            return 0
        return min(AUTO_MOST, max(1, max_new_tokens // AUTO_SHARE))

    def to_dict(self) -> dict[str, Any]:
        """The object form, defaults included; `parse` reads it back to an equal budget, given the same defaults."""
        given = {name: value for name, value in asdict(self).items() if value is not None or name == "seconds"}
        if self.seconds is None:
            del given["since"]
        return given


@dataclass(frozen=True)
class Limits:
    """What the server's operator sets."""

    default: ThinkBudget | None = None  # for requests that say nothing
    ceiling: int = CEILING  # --think-budget-max
    allow_unlimited: bool = True  # whether a request may ask for no limit
    message: str = ""  # --think-message, for requests that name none

    @property
    def lowest(self) -> int:
        """Smallest `max_tokens` a request may ask for."""
        return UNLIMITED if self.allow_unlimited else 0


def parse(value: Any, limits: Limits, field: str = FIELD) -> ThinkBudget:
    """Check one value of a budget field.

    Args:
        value: an integer or an object. A `ThinkBudget` was checked before: it is returned as it is.
        limits: the server's ceiling, and its defaults for keys that an object leaves out.
        field: name under which the client gave it, for messages.

    Raises:
        BudgetError: naming the field, the value and what is accepted.
    """
    if isinstance(value, ThinkBudget):
        return value
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


def keys() -> list[str]:
    """The keys of the object form."""
    return [f.name for f in fields(ThinkBudget)]


def _shrunk(default: int, most: int) -> int:
    """A server default that a smaller explicit budget cuts; explicit values are never changed."""
    return default if most == UNLIMITED else min(default, most)


def _parse_object(value: Mapping[Any, Any], base: ThinkBudget, limits: Limits, field: str) -> ThinkBudget:
    known = keys()
    for key in value:
        if key not in known:
            raise BudgetError(f"{field}: unknown key {shown(key)}; accepted keys: {', '.join(known)}")
    given: dict[str, Any] = {}
    for key, part in value.items():
        if key in _OTHERS:
            given[key] = _OTHERS[key](part, f"{field}.{key}")
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
    if "since" in given and given.get("seconds", base.seconds) is None:
        raise BudgetError(f"{field}.since: {shown(given['since'])} has no seconds that count from there; accepted: "
                          "seconds beside it, or leave it out")
    return replace(base, **given)


def _tokens(value: Any, field: str, lowest: int, highest: int, extra: str = "") -> int:
    accepted = f"accepted: an integer from {lowest}{' (no limit)' if lowest == UNLIMITED else ''} to {highest}{extra}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; {accepted}")
    if not lowest <= value <= highest:
        raise BudgetError(f"{field}: {value} is out of range; {accepted}")
    return value


def check_message(value: Any, field: str) -> str:
    """Raises BudgetError if this is no text that can be a stop message, whatever the model."""
    if not isinstance(value, str):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; accepted: a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BudgetError(f"{field}: is not valid Unicode text (a lone surrogate)") from None
    if size > MESSAGE_BYTES:
        raise BudgetError(f"{field}: {size} bytes is too long; accepted: at most {MESSAGE_BYTES} bytes")
    return value


def _switch(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; accepted: true or false")
    return value


def _seconds(value: Any, field: str) -> float | None:
    accepted = f"accepted: a number from 0 to {LONGEST}, or null (no deadline)"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BudgetError(f"{field}: {shown(value)} is of type {_type_name(value)}; {accepted}")
    if not 0 <= value <= LONGEST:  # nor is NaN
        raise BudgetError(f"{field}: {shown(value)} is out of range; {accepted}")
    return float(value)


def _since(value: Any, field: str) -> str:
    if not isinstance(value, str) or value not in (ARRIVAL, FIRST_TOKEN):
        raise BudgetError(f'{field}: {shown(value)} is not accepted; accepted: "{ARRIVAL}", "{FIRST_TOKEN}"')
    return str(value)


_OTHERS: Mapping[str, Callable[[Any, str], Any]] = {"message": check_message, "loops": _switch, "seconds": _seconds,
                                                    "since": _since}
"""Keys that are no count of tokens, and what checks them."""


def shown(value: Any) -> str:
    """A value as the client wrote it, in JSON, cut if it is long; a checked budget in its object form."""
    value = value.to_dict() if isinstance(value, ThinkBudget) else value
    text = json.dumps(value, default=repr, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(value: Any) -> str:
    """The JSON name of a value's type, which is what a client sees."""
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
             dict: "object"}
    return names.get(type(value), type(value).__name__)


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
