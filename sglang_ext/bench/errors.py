"""The error that ends a benchmark with a message instead of a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class BenchError(Exception):
    """Something that the user can mend: a value, a server, a missing package."""


class Violated(BenchError):
    """A whole run found what must not be."""


def alone(load: Coroutine[Any, Any, float]) -> float:
    """Run a load to its end; where its tasks cannot go on, the first one's error is raised by itself."""
    try:
        return asyncio.run(load)
    except BaseExceptionGroup as group:
        stopped = group.subgroup(BenchError)
        if stopped is None:
            raise
        raise stopped.exceptions[0] from None
