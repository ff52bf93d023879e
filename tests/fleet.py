"""Two servers of one model behind sglang's own router."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import servers


@dataclass
class Fleet:
    """Workers that serve the same, and the router in front of them."""

    workers: list[servers.Server]
    router: servers.Server

    @property
    def direct(self) -> servers.Server:
        return self.workers[0]

    def stop(self) -> list[psutil.Process]:
        """End all; return processes of the workers that outlived it."""
        self.router.stop()
        return [process for worker in self.workers for process in worker.stop()]


def start_router(workers: Sequence[servers.Server]) -> servers.Server:
    """A cache-aware router that has found its workers. Its circuit breaker would take a worker that refuses ten
    requests in a row for a broken one."""
    port, metrics = servers.free_port(), servers.free_port()
    command = ["-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
               "--worker-urls", *(w.url for w in workers), "--policy", "cache_aware", "--prometheus-port", str(metrics),
               "--disable-circuit-breaker"]
    router = servers.start(command, port)
    deadline = time.monotonic() + 120  # it answers before it has looked at its workers
    body = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
    while router.post("/generate", body).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.5)
    return router


def start(*flags: str) -> Fleet:
    """Two servers of launch.py with these flags, behind a router."""
    with ThreadPoolExecutor(2) as pool:
        workers = list(pool.map(lambda _: servers.launch(*flags), range(2)))
    return Fleet(workers, start_router(workers))
