"""Servers of a benchmark: started on a free port of 127.0.0.1, ended with everything they started."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil  # type: ignore[import-untyped]
import requests
from tqdm import tqdm  # type: ignore[import-untyped]

from ..cli import has_flag
from ..cpu.machine import usable_cores
from . import BenchError

START_SECONDS = 600
STOP_SECONDS = 15
CHILD_SECONDS = 5
PORTS = (20000, 32000)
TAKEN = b"address already in use"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
CPU_FLAGS = {"--device": "cpu", "--attention-backend": "torch_native", "--max-total-tokens": "16384"}
"""What sglang as published needs on a machine without a GPU, and a pool that leaves memory to others."""
Kind = Literal["ours", "stock"]


class Process(Protocol):
    """The part of `subprocess.Popen` that a server needs."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: its address, without a path.
        command: the command line that a reader can repeat; empty for one that ran already.
        process: None for one that ran already.
    """

    url: str
    command: str = ""
    process: subprocess.Popen[bytes] | None = None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM, so that no server is forgotten between two lines; they arrive at the end."""
    held: list[int] = []
    previous = {number: signal.signal(number, lambda n, _: held.append(n)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


@contextmanager
def serving(kind: Kind, flags: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server of the small or any other model, for the time of a `with`.

    Args:
        kind: `ours` is launch.py, `stock` is sglang as published.
        flags: of sglang's command line and ours; host and port are added.
        log: file for its output.
        environment: variables beside this process's own.

    Raises:
        BenchError: it ended, or did not answer in time.
    """
    on_cpu = kind == "stock" and not _gpu()
    if on_cpu:
        missing = [part for name, value in CPU_FLAGS.items() if not has_flag(flags, name) for part in (name, value)]
        flags = [*flags, *missing, *(() if has_flag(flags, "--sleep-on-idle") else ("--sleep-on-idle",))]
    extra = {"SGLANG_PLUGINS": "none"} if kind == "stock" else {}
    if on_cpu:
        extra["SGLANG_USE_CPU_ENGINE"] = "1"
    shown = ("launch.py" if kind == "ours" else "-m sglang.launch_server") + " " + shlex.join(map(_short, flags))
    with process([sys.executable, "-m", "sglang_ext.bench.start", kind, *flags], log, f"python {shown}",
                 {**extra, **(environment or {})}) as server:
        yield server


@contextmanager
def process(command: Sequence[str], log: Path, shown: str, environment: dict[str, str] | None = None
            ) -> Iterator[Server]:
    """Start a program that serves HTTP on the host and port it is given, and end it with its children.

    Raises:
        BenchError: it ended, or did not answer in time.
    """
    tqdm.write(f"Starting {shown}", file=sys.stderr)
    server = None
    try:
        port = free_port()
        with undisturbed(), log.open("ab") as output:
            # A session of its own: Ctrl-C in a terminal goes to this process alone, which then ends the server.
            popen = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=output,
                                     stderr=subprocess.STDOUT, env=_environment(environment or {}),
                                     start_new_session=True)
            server = Server(f"http://127.0.0.1:{port}", shown, popen)
        try:
            wait_until_it_answers(popen, port, log)
        except RuntimeError as error:
            raise BenchError(f"the server did not start: {shown}\n{error}\nAll of its output: {log}") from None
        yield server
    finally:
        with undisturbed():
            if server is not None:
                stop(server)


def stop(server: Server) -> None:
    """End a server of ours and all its descendants; those that do not end by themselves are killed."""
    if server.process is not None:
        end(server.process, signal.SIGTERM, STOP_SECONDS)


def end(process: Process, how: int, seconds: float) -> list[psutil.Process]:
    """End a process by a signal; return its descendants that outlived it, which are killed.

    Args:
        seconds: time that the process has to end by itself.
    """
    children = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=CHILD_SECONDS)
    for child in alive:
        child.kill()
    return list(alive)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now, below those that a system gives to outgoing connections: a server binds
    its port only when its model is loaded, and one of those may be gone by then."""
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def answers(url: str, path: str, timeout: float = 5) -> bool:
    """Whether a GET is answered with status 200."""
    try:
        return requests.get(url + path, timeout=timeout).status_code == requests.codes.ok
    except requests.RequestException:
        return False


def facts(url: str) -> dict[str, Any]:
    """What a server says of itself, as far as it bears on a figure; empty where it says nothing."""
    wanted = ("version", "device", "dtype", "attention_backend", "kv_cache_dtype", "tp_size", "dp_size",
              "max_running_requests", "max_total_tokens", "disable_radix_cache", "disable_overlap_schedule",
              "reasoning_parser", "speculative_algorithm", "speculative_num_draft_tokens", "think_budget")
    for path in ("/server_info", "/version"):
        try:
            response = requests.get(url + path, timeout=10)
            body = response.json() if response.ok else {}
        except (requests.RequestException, ValueError):
            continue
        if isinstance(body, dict) and body:
            return {name: body[name] for name in wanted if body.get(name) is not None}
    return {}


def flush_cache(url: str) -> None:
    """Empty the prefix cache, where a server offers that, so that the same questions are as new to every load."""
    with suppress(requests.RequestException):
        requests.post(url + "/flush_cache", json={}, timeout=60)


def model_name(url: str) -> str:
    """Name of the first model that a server serves.

    Raises:
        BenchError: it does not answer, or not as OpenAI's API does.
    """
    try:
        response = requests.get(url + "/v1/models", timeout=30)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        raise BenchError(f"--url: {url!r} does not answer /v1/models as an OpenAI-compatible server does "
                         f"({type(error).__name__}); accepted: the address of one, without /v1") from None


def wait_until_it_answers(process: Process, port: int, log: Path) -> None:
    """Wait until a server's process answers `/health` on its port.

    Raises:
        RuntimeError: it ended, another has its port, or it did not answer in time; with the end of its output.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None and TAKEN not in log.read_bytes():
        if answers(f"http://127.0.0.1:{port}", "/health") and _listens(process.pid, port):
            return
        time.sleep(0.3)
    raise RuntimeError("\n".join(log.read_text(errors="replace").splitlines()[-30:]))


def _environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's own, without settings of another server, and with one core left to whoever sends the load."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    kept.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() - 1)))
    return {**kept, "PYTHONUNBUFFERED": "1", **extra}


def _short(flag: str) -> str:
    """A model's folder by its name alone: where it lies on this machine means nothing elsewhere."""
    return Path(flag).name if Path(flag).is_absolute() else flag


def _gpu() -> bool:
    from ..cpu import gpu_available

    return gpu_available()


def _listens(pid: int, port: int) -> bool:
    """Whether it is this process or one that it started that listens on a port: another's answers are not measured."""
    for process in [psutil.Process(pid), *descendants(pid)]:
        with suppress(psutil.Error):
            if any(c.laddr.port == port and c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp")):
                return True
    return False


def descendants(pid: int) -> list[psutil.Process]:
    """All processes that a process started, and those that these started."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
