"""Start real servers for tests and end them with everything they started."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
import warm_python
from prometheus_client.parser import text_string_to_metric_families

from sglang_ext.bench.servers import Process, descendants, end, free_port, wait_until_it_answers

__all__ = ["FLOAT32", "ROOT", "SGLANG", "Server", "environment", "free_port", "launch", "run", "start", "stock"]

ROOT = Path(__file__).resolve().parent.parent
SGLANG = str(Path(sys.executable).with_name("sglang"))
FLOAT32 = ("--dtype", "float32", "--attention-backend", "torch_native")
POOL = "16384"
"""Tokens of a server's pool: the default would take gigabytes, and tests run beside each other."""
FLAGS_VARIABLE = "SGLANG_EXT_TEST_FLAGS"
"""Flags of this variable are added to those of every server that tests start, last: another dtype, device, backend."""
may_start = True
"""Whether a server may be started now: a test that is not marked as served runs where servers are not wanted."""
running: list[Server] = []
"""Servers that were started and not stopped yet."""
LOG_CHARACTERS = 4000


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of ours, and offline.

    One thread a process: two that share two cores with anything else wait for each other at every operator.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **extra}


@dataclass(eq=False)
class Server:
    """A running server.

    Attributes:
        ended_by: signal that ends it.
    """

    url: str
    process: Process
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

    def samples(self) -> list[Any]:
        """Our samples in one scrape of its metrics."""
        text = requests.get(self.url + "/metrics", timeout=60).text
        return [s for family in text_string_to_metric_families(text) for s in family.samples
                if s.name.startswith("sglang_ext:")]

    def metrics(self) -> Counter[str]:
        """Our numbers in one scrape; outcomes as `name{outcome}`, buckets left out."""
        numbers: Counter[str] = Counter()
        for sample in self.samples():
            if not sample.name.endswith("_bucket"):
                outcome = sample.labels.get("outcome")
                name = sample.name if outcome is None else f"{sample.name}{{{outcome}}}"
                numbers[name] += sample.value  # type: ignore[assignment]
        return numbers

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS:]

    def descendants(self) -> list[psutil.Process]:
        return descendants(self.process.pid)

    def stop(self, how: int | None = None, seconds: float = 40) -> list[psutil.Process]:
        """End the server with a signal; return processes that outlived it, which are ended too."""
        if self in running:
            running.remove(self)
        return end(self.process, self.ended_by if how is None else how, seconds)


def start(arguments: Sequence[str], port: int, cold: bool = False, **extra: str) -> Server:
    """Start `python ARGUMENTS` and wait until it answers.

    Args:
        cold: in a process that has imported nothing, as a user's does.

    Raises:
        RuntimeError: it ended, or did not answer in time; the end of its log is in the message.
    """
    if not may_start:
        raise RuntimeError("a test that starts a server is marked `served`")
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log", delete=False) as log:
        process = _python(arguments, environment(**extra), log, log, cold)
    server = Server(f"http://127.0.0.1:{port}", process, Path(log.name))
    try:
        wait_until_it_answers(process, port, server.log)
    except RuntimeError as error:
        server.stop()
        raise RuntimeError(f"server did not start: {shlex.join(arguments)}\n{error}") from None
    running.append(server)
    return server


def begin(*arguments: str, **extra: str) -> Process:
    """Start `python ARGUMENTS` and wait for nothing; what it writes is lost."""
    with open(os.devnull, "wb") as nothing:
        return _python(arguments, environment(**extra), nothing, nothing, cold=False)


def _python(arguments: Sequence[str], variables: dict[str, str], stdout: Any, stderr: Any, cold: bool,
            hooked: bool = False) -> Process:
    if not cold and warm_python.serves(variables):
        return warm_python.start(arguments, variables, stdout, stderr, hooked)
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=stdout, stderr=stderr, env=variables)


def _flags(flags: Sequence[str], **defaults: str) -> list[str]:
    """Flags of a server: defaults where they are not among them, and the environment's last."""
    named = {f"--{name.replace('_', '-')}": value for name, value in defaults.items()}
    missing = [part for name, value in named.items() if name not in flags for part in (name, value)]
    return [*missing, *flags, *shlex.split(os.environ.get(FLAGS_VARIABLE, ""))]


def launch(*flags: str, cold: bool = False, **extra: str) -> Server:
    """`launch.py` with flags, on a free port; without a stop message unless one is given, so that ends are short. It is
    stopped as by Ctrl-C: to SIGTERM sglang first looks for unfinished requests, every five seconds."""
    port = free_port()
    flags_ = _flags(flags, max_total_tokens=POOL, think_message="")
    server = start(["launch.py", "--port", str(port), *flags_], port, cold, **extra)
    server.ended_by = signal.SIGINT
    return server


def stock(*flags: str, **extra: str) -> Server:
    """sglang as published, without the plugin, on the same CPU engine."""
    port = free_port()
    flags_ = ["--sleep-on-idle", *_flags(flags, max_total_tokens=POOL, device="cpu")]
    return start(["-m", "sglang_ext.bench.start", "stock", "--port", str(port), *flags_], port, SGLANG_PLUGINS="none",
                 SGLANG_USE_CPU_ENGINE="1", **extra)


def run(*arguments: str, timeout: float = 240, cold: bool = False, hooked: bool = False,
        **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, a program that is expected to end by itself.

    Args:
        timeout: seconds.
        cold: as in `start`.
        hooked: in a process that has our hooks applied, where it is not cold; `launch.py` always is.
    """
    variables = environment(**extra)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = _python(arguments, variables, stdout, stderr, cold, hooked)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            end(process, signal.SIGKILL, 5)
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, stdout.read().decode(errors="replace"),
                                           stderr.read().decode(errors="replace"))
