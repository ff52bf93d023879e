"""Values of command line flags, checked where they are read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNLIMITED = -1
"""A budget that is none."""


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A reader of integers from `low` to `high`."""
    accepted = f"accepted: an integer from {low} {'up' if high is None else f'to {high}'}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer; {accepted}") from None
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{value} is out of range; {accepted}")
        return value

    return read


def positive(text: str) -> float:
    """A number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; accepted: a number above 0")
    return value


def wholes(low: int, high: int | None = None) -> Callable[[str], list[int]]:
    """A reader of integers with commas between them, each once."""
    one = whole(low, high)

    def read(text: str) -> list[int]:
        values = [one(part.strip()) for part in text.split(",")]
        if len(set(values)) != len(values):
            raise argparse.ArgumentTypeError(f"{text!r} has a value twice; accepted: each value once")
        return values

    return read


def tenants(text: str) -> dict[str, int]:
    """Budgets by the tenant's name: `free=16,pro=-1`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, budget = part.strip().partition("=")
        if not name or not equals or name in found:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted; accepted: NAME=BUDGET,..., each name once")
        found[name] = whole(UNLIMITED)(budget)
    return found


def choices(*known: str) -> Callable[[str], list[str]]:
    """A reader of names with commas between them, each of them known."""

    def read(text: str) -> list[str]:
        names = [part.strip() for part in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; accepted: {', '.join(known)}")
        return names

    return read


def body(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object; accepted: such as '{{\"top_p\": 0.9}}'")
    return value


def url(text: str) -> str:
    """A server's address, without a slash at its end."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; accepted: http://... or https://...")
    return text.rstrip("/")


def existing(text: str) -> Path:
    """A file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file; accepted: a file that is there")
    return path


def spelled(field: str, budget: int) -> dict[str, Any]:
    """A request's fields for a budget, in a server's own spelling.

    Args:
        field: its name; a dot goes one level down, as in `chat_template_kwargs.thinking_budget`.
        budget: tokens; `UNLIMITED` says so, too, as not every server has a default without a limit.
    """
    value: Any = budget
    for name in reversed(field.split(".")):
        value = {name: value}
    return dict(value)
