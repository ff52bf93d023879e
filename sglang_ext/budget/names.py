"""Names of fields by their words, and the switches of thinking that clients send. No engine is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

BOOLEANS = frozenset({"enable_thinking", "thinking", "think", "enable_reasoning", "reasoning"})
"""Names whose value is a boolean, 0 or `none`. Under some of them an object or an effort may stand as well."""
SWITCHES = BOOLEANS | {"thinking_mode", "reasoning_effort"}


def canonical(name: Any) -> str:
    """A name in small letters, its words joined by underscores."""
    return "_".join(words_of(name)) if isinstance(name, str) else ""


@lru_cache(maxsize=1024)
def words_of(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name[:200]))


def decoded(value: Any) -> Any:
    """A value of a place of strings: what the string says in JSON, or the string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_switches(source: Mapping[str, Any], where: str) -> Iterator[tuple[str, bool, bool]]:
    """Every switch of thinking: its name, whether it is on, and whether it is a boolean that templates read."""
    for name, value in source.items():
        flat = canonical(name)
        said = _boolean(value) if flat in BOOLEANS else None
        if said is not None:
            yield f"{where}{name}", said, flat in ("enable_thinking", "thinking")
        elif value == ("disabled" if flat == "thinking_mode" else "none") and flat in SWITCHES:
            yield f"{where}{name}", False, False
        elif flat in ("thinking", "reasoning") and isinstance(value, Mapping):
            yield from _inner_switches(value, f"{where}{name}.")


def _inner_switches(source: Mapping[str, Any], where: str) -> Iterator[tuple[str, bool, bool]]:
    """The switches inside `thinking` and `reasoning`."""
    for name, value in source.items():
        flat = canonical(name)
        said = _boolean(value) if flat in ("enabled", "enable") else None
        if said is not None:
            yield f"{where}{name}", said, False
        elif flat == "type" and isinstance(value, str):
            yield f"{where}{name}", value not in ("disabled", "none", "off"), False
        elif flat in ("effort", "reasoning_effort") and value == "none":
            yield f"{where}{name}", False, False


def _boolean(value: Any) -> bool | None:
    """A switch's value; None if it is none. 0 is off; another number is none."""
    if isinstance(value, str):
        said = value.strip().lower()
        return True if said in ("true", "on", "yes", "enabled") else False if said in (
            "false", "off", "no", "disabled") else None
    if isinstance(value, int | float) and value == 0:
        return False
    return value if isinstance(value, bool) else None
