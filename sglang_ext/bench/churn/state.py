"""A server before and after a run: its requests, its pool, its memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import requests

from .. import BenchError

HERE = ("127.0.0.1", "localhost", "::1")
SETTLING_SECONDS = 60
MIB = 1 << 20


@dataclass(frozen=True)
class State:
    """What a server says of itself, and what its processes hold.

    Attributes:
        requests: running and waiting, on all ranks.
        used_tokens: of its pools, without what only its prefix cache holds.
        capacity: tokens of each rank's pool.
        memory_mib: resident memory of its processes; None where it runs elsewhere.
    """

    requests: int
    used_tokens: int
    capacity: tuple[int, ...]
    memory_mib: int | None

    @property
    def idle(self) -> bool:
        return not self.requests and not self.used_tokens


def info(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The server's `/server_info`.

    Raises:
        BenchError: it does not answer.
    """
    return _get(url, "/server_info", headers)


def state(url: str, headers: Mapping[str, str]) -> State:
    """The server's state now.

    Raises:
        BenchError: it does not answer.
    """
    loads = _get(url, "/v1/loads", headers)["loads"]
    return State(sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads),
                 sum(load["num_used_tokens"] for load in loads),
                 tuple(load["max_total_num_tokens"] for load in loads), _memory(url))


def settled(url: str, headers: Mapping[str, str]) -> State:
    """The server's state once it is idle, or after `SETTLING_SECONDS`."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while not (found := state(url, headers)).idle and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def faults(before: State, after: State) -> Iterator[str]:
    """What a run left behind."""
    if after.requests:
        yield f"idle: {after.requests} requests are left"
    if after.used_tokens > before.used_tokens:
        yield f"pool: {after.used_tokens} tokens are in use, {before.used_tokens} before"
    if after.capacity != before.capacity:
        yield f"pool: of {after.capacity} tokens, {before.capacity} before"


def _get(url: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        response = requests.get(url + path, headers=dict(headers), timeout=60)
        response.raise_for_status()
        return dict(response.json())
    except (requests.RequestException, ValueError) as error:
        raise BenchError(f"{url}{path} is not answered ({type(error).__name__}: {error})") from None


def _memory(url: str) -> int | None:
    """Resident memory in MiB of the process that listens there, and of all that it started."""
    address = urlsplit(url)
    if address.hostname not in HERE:
        return None
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == address.port
                   for c in process.net_connections("tcp")):
                family = [process, *process.children(recursive=True)]
                return sum(p.memory_info().rss for p in family) // MIB
    return None
