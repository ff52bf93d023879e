"""Names by their words, and what strings say. No engine is imported."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any


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
