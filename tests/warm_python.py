"""Python programs that start with sglang imported.

Most of the time that a server takes to start on a CPU goes into imports, in each of its processes. `WarmPython` has
imported sglang once and forks for each program. What differs from `python PROGRAM`: modules are there
already, and sglang's own processes are forked, not spawned.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

MAIN = Path(__file__).with_name("warm_python_main.py")
ROOT = MAIN.parent.parent
ADDRESS_VARIABLE = "SGLANG_EXT_TEST_WARM_PYTHON"
"""Where the process that forks listens; the workers of a test run find it here."""
KNOWN_VARIABLES = {"SGLANG_USE_CPU_ENGINE", "SGLANG_PLUGINS", "SGLANG_TEST_RETRACT", "SGLANG_TEST_RETRACT_INTERVAL"}
"""sglang's variables that mean the same to a program that finds sglang imported."""


def serves(environment: Mapping[str, str]) -> bool:
    """Whether a program with these variables can find sglang imported. A process that has met a GPU cannot be forked,
    and most of sglang's variables are read when it is imported."""
    from sglang_ext.cpu import gpu_available

    theirs = {v for v in environment if v.startswith("SGLANG_") and not v.startswith("SGLANG_EXT_")}
    return ADDRESS_VARIABLE in os.environ and not gpu_available() and theirs <= KNOWN_VARIABLES


class Program:
    """A program that was forked, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        data = b""
        while len(data) < 8:
            part = self._told.recv(8 - len(data))
            if not part:
                raise RuntimeError("the process that forks programs is gone")
            data += part
        return int(struct.unpack("q", data)[0])

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("program", timeout or 0) from None
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """The process that forks, for all workers of a test run. It imports sglang when a worker first asks for a program,
    and it ends, with all programs, at `end`, or when the process that made it ends."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
        os.environ[ADDRESS_VARIABLE] = str(folder / "address")
        variables = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, str(MAIN), str(folder / "address")], cwd=ROOT,
                                            stdin=subprocess.PIPE, stdout=log, stderr=log,
                                            env={**variables, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@cache
def _connection(hooked: bool) -> socket.socket:
    """This process's connection to the one that forks, before our hooks are applied or after."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    deadline = time.monotonic() + 60
    while True:
        try:
            connection.connect(os.environ[ADDRESS_VARIABLE] + (".hooked" if hooked else ""))
            return connection
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def start(arguments: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes],
          hooked: bool = False) -> Program:
    """Start `python ARGUMENTS` in the project's folder: `[-W FILTER] (FILE | -m MODULE | -c CODE) ...`.

    Args:
        hooked: in a process that has our hooks applied. `launch.py` is, as it would apply them itself, unless its
            plugins are chosen.
    """
    hooked = hooked or (arguments[0] == "launch.py" and "SGLANG_PLUGINS" not in environment)
    told, its = socket.socketpair()
    message = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
    with its:
        socket.send_fds(_connection(hooked), [message], [stdout.fileno(), stderr.fileno(), its.fileno()])
    try:
        return Program(told)
    except RuntimeError:
        log = Path(os.environ[ADDRESS_VARIABLE]).with_name("log")
        raise RuntimeError(log.read_text(errors="replace")[-4000:]) from None
