"""Start real servers for tests and end them with everything they started."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 300


def free_port() -> int:
    """A port that nobody uses, below those that a system gives to outgoing connections: a server binds its port only
    when its model is loaded, and one of those may be gone by then."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of ours, and offline.

    One thread a process: two that share two cores with anything else wait for each other at every operator.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "SGLANG_EXT_"))}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **extra}


@dataclass
class Server:
    """A running server.

    Attributes:
        ended_by: signal that ends it.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    ended_by: int = signal.SIGTERM

    def post(self, path: str, body: dict[str, Any], timeout: float = 300) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=timeout)

    def generate(self, **body: Any) -> dict[str, Any]:
        """One `/generate` that must succeed."""
        response = self.post("/generate", body)
        assert response.status_code == 200, response.text
        return response.json()  # type: ignore[no-any-return]

    def generate_all(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Concurrent `/generate` calls, results in order."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.generate(**body), bodies))

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self, how: int | None = None, seconds: float = 40) -> list[psutil.Process]:
        """End the server with a signal; return processes that outlived it, which are ended too."""
        children = self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(self.ended_by if how is None else how)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        _, alive = psutil.wait_procs(children, timeout=5)
        for child in alive:
            child.kill()
        return alive


def start(command: Sequence[str], port: int, **extra: str) -> Server:
    """Start a server and wait until it answers.

    Raises:
        RuntimeError: it ended, or did not answer in time; the end of its log is in the message.
    """
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log", delete=False) as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment(**extra))
    server = Server(f"http://127.0.0.1:{port}", process, Path(log.name))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(server.url + "/health", timeout=5).status_code == 200:
                return server
        except requests.RequestException:
            pass
        time.sleep(0.3)
    server.stop()
    tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-30:])
    raise RuntimeError(f"server did not start: {' '.join(command)}\n{tail}")


POOL = "16384"
"""Tokens of a server's pool: the default would take gigabytes, and tests run beside each other."""


def launch(*flags: str, **extra: str) -> Server:
    """`launch.py` with flags, on a free port; without a stop message unless one is given, so that ends are short. It is
    stopped as by Ctrl-C: to SIGTERM sglang first looks for unfinished requests, every five seconds."""
    port = free_port()
    if "--think-message" not in flags:
        flags = ("--think-message", "", *flags)
    if "--max-total-tokens" not in flags:
        flags = ("--max-total-tokens", POOL, *flags)
    server = start([sys.executable, "launch.py", "--port", str(port), *flags], port, **extra)
    server.ended_by = signal.SIGINT
    return server


def stock(*flags: str, **extra: str) -> Server:
    """sglang as published, without the plugin, on the same CPU engine."""
    port = free_port()
    if "--max-total-tokens" not in flags:
        flags = ("--max-total-tokens", POOL, *flags)
    if "--sleep-on-idle" not in flags:
        flags = ("--sleep-on-idle", *flags)
    code = ("import sglang_ext, sys\nif __name__ == '__main__':\n"
            "    from sglang.launch_server import run_server\n"
            "    from sglang.srt.server_args import prepare_server_args\n"
            "    run_server(prepare_server_args(sys.argv[1:]))\n")
    script = Path(tempfile.mkdtemp()) / "stock.py"
    script.write_text(code)
    command = [sys.executable, str(script), "--port", str(port), "--device", "cpu", *flags]
    return start(command, port, SGLANG_PLUGINS="none", SGLANG_USE_CPU_ENGINE="1", **extra)


def run(*command: str, timeout: float = 120, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                          env=environment(**extra), check=False)
