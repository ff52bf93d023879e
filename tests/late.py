"""Modules that only the worker imports that runs their tests: some take seconds."""

from __future__ import annotations

from typing import Any

import pytest


class Late:
    """A module that is imported when a test first uses it; the test is skipped where there is none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(pytest.importorskip(self._name), attribute)
