"""Whether a budget that a row claims was in force: the response itself has to say so.

A budget that was lost on its way, in a router or a misspelled field, leaves a response that looks like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import BenchError
from .options import UNLIMITED

OURS = "think_budget"
INSIDE = "in the server"
"""How the ways begin that leave a budget to the server, in rows of `double-query`."""


def why_not(row: Mapping[str, Any]) -> str | None:
    """Why a row's budget was not in force, as far as its response says; None where it was, or none is claimed.

    Args:
        row: of a results file: `query` of `double-query`, `response` of `budget`, `answer` of `accuracy`, `speed` of
            `overhead`. A failed request claims nothing.
    """
    budget = row.get("budget", UNLIMITED)
    if row.get("error") or budget == UNLIMITED:
        return None
    if row.get("type") == "query":
        return _of_report(budget, row.get("think")) if str(row.get("way")).startswith(INSIDE) else None
    if row.get("type") in ("response", "answer"):
        return None if row.get("source") == "server" and row["thought"] <= budget else _lost(budget, row.get("thought"))
    return None


def demand(budget: int, think: Mapping[str, Any] | None) -> None:
    """Raise BenchError unless a response's `think` object says that a budget was in force."""
    problem = _of_report(budget, think)
    if problem is not None and budget != UNLIMITED:
        raise BenchError(f"{problem}: it was lost on its way, or the server has no think budgets; accepted: a server "
                         "with the plugin, or --budget-field with a name that the server knows")


def _of_report(budget: int, think: Mapping[str, Any] | None) -> str | None:
    limit = (think or {}).get("budget", UNLIMITED)
    in_force = (think or {}).get("tokens", limit + 1) <= limit <= budget
    return None if in_force else _lost(budget, think)


def _lost(budget: int, said: Any) -> str:
    return f"a response does not say that its budget of {budget} was in force (it says {said})"
