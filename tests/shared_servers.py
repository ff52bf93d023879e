"""Servers that the tests of a group share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import servers

_started: list[SharedServer] = []


class SharedServer:
    """A server that starts when a test first uses it; it ends with its group. Otherwise it is a `servers.Server`.

    Args:
        group: the group of tests that use it.
        start: starts it.
    """

    def __init__(self, group: str, start: Callable[[], servers.Server]) -> None:
        self.group, self._start = group, start
        self._server: servers.Server | None = None
        self._starting = threading.Lock()
        _started.append(self)

    def __getattr__(self, name: str) -> Any:
        with self._starting:  # a test may begin with many threads
            if self._server is None:
                self._server = self._start()
        return getattr(self._server, name)

    def end(self) -> None:
        server, self._server = self._server, None
        assert server is None or not server.stop()


def end_all_but(group: str | None) -> None:
    """End the servers of all other groups."""
    for server in _started:
        if server.group != group:
            server.end()
