"""`--think-effort`: budgets for the values of `reasoning_effort`. Nothing here knows an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from .contract import UNLIMITED, BudgetError, Limits

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
"""Values of `reasoning_effort` that sglang accepts by name."""
FLAG = "--think-effort"
_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)%")
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Share:
    """A budget that is a part of the response's longest length.

    Attributes:
        percent: 0 to 100.
        ceiling: most tokens, for responses of any length.
    """

    percent: Fraction
    ceiling: int

    def of(self, max_new_tokens: int) -> int:
        """The budget of a response of at most `max_new_tokens`, in tokens, rounded down."""
        return min(int(max_new_tokens * self.percent / 100), self.ceiling)

    def __str__(self) -> str:
        return f"{float(self.percent):g}%"


def parse_efforts(text: str, limits: Limits) -> Mapping[str, int | Share]:
    """Read `low=1024,medium=25%,high=-1`.

    Args:
        text: entries of a name and a budget, separated by commas; empty for none.
        limits: a budget in tokens is within them; a percentage never comes to more than their ceiling.

    Raises:
        BudgetError: naming the entry, its value and what is accepted.
    """
    efforts: dict[str, int | Share] = {}
    for entry in text.split(",") if text.strip() else ():
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise BudgetError(f"{FLAG}: {entry.strip()!r} is no entry; accepted: NAME=BUDGET,..., for example "
                              "low=1024,medium=25%,high=-1")
        if name not in EFFORTS:
            raise BudgetError(f"{FLAG}: {name!r} is no effort; accepted: {', '.join(EFFORTS)}")
        if name in efforts:
            raise BudgetError(f"{FLAG}: {name} is given twice; accepted: each effort once")
        efforts[name] = _budget(name, value, limits)
    return MappingProxyType(efforts)


def _budget(name: str, text: str, limits: Limits) -> int | Share:
    percentage = _PERCENTAGE.fullmatch(text)
    if percentage and Fraction(percentage[1]) <= 100:
        return Share(Fraction(percentage[1]), limits.ceiling)
    if _INTEGER.fullmatch(text) and limits.lowest <= int(text) <= limits.ceiling:
        return int(text)
    unlimited = " (no limit)" if limits.lowest == UNLIMITED else ""
    raise BudgetError(f"{FLAG} {name}: {text!r} is no budget; accepted: an integer from {limits.lowest}{unlimited} to "
                      f"{limits.ceiling}, or a percentage of max_new_tokens from 0% to 100%")


def limits_something(efforts: Mapping[str, int | Share]) -> bool:
    """Whether an effort has a limit, which a server must be able to enforce."""
    return any(value != UNLIMITED for value in efforts.values())
