"""The program behind `warm_python.WarmPython`: it imports sglang once, then forks for each Python program it is asked
for.

`warm_python_main.py ADDRESS`: it listens on two Unix sockets, ADDRESS and ADDRESS.hooked, and imports when somebody
connects. Programs asked for at the second one find this package's hooks applied, too. Each message is a JSON object
`{"arguments", "environment"}` with three file descriptors: the program's stdout and stderr, and a socket on which the
program's pid and, at its end, its return code as `subprocess.Popen` has it are told, each in eight bytes. The end of a
connection ends its programs, and the end of stdin ends all.

sglang spawns its processes. Here they are forked too, so that they need not import anything either.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import multiprocessing.context
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
import types
import warnings
from contextlib import suppress
from typing import Any, NoReturn

import psutil
import uvicorn._subprocess

MESSAGE_BYTES = 1 << 20
REREAD = {"SGLANG_TEST_RETRACT": "TEST_RETRACT", "SGLANG_TEST_RETRACT_INTERVAL": "TEST_RETRACT_INTERVAL"}
"""Variables that the scheduler's module reads when it is imported, with the names it gives them."""

IMPORTED = (
    "sglang_ext.serve",  # before sglang: it stands in for the CUDA library
    "sglang.srt.entrypoints.anthropic.serving",
    "sglang.srt.entrypoints.openai.serving_chat",
    "sglang.srt.entrypoints.openai.serving_responses",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.managers.detokenizer_manager",
)


def import_sglang() -> None:
    """Import what a server's processes import. The HTTP server is left out: it binds its routes to the request models
    as it finds them."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("sglang.srt.models.registry").ModelRegistry.get_supported_archs()


class _Programs:
    """The programs that run, with their connections and the sockets on which their ends are told."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[socket.socket, socket.socket]] = {}

    def start(self, connection: socket.socket) -> tuple[dict[str, Any], int, int] | None:
        """Fork for the next request of a connection; in the new process, return what it is to run."""
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
        if not message:
            self.end(connection)
            raise EOFError
        told = socket.socket(fileno=files[2])
        pid = os.fork()
        if pid == 0:
            told.close()
            return json.loads(message), files[0], files[1]
        os.close(files[0])
        os.close(files[1])
        self.running[pid] = connection, told
        told.sendall(struct.pack("q", pid))
        return None

    def reap(self) -> None:
        """Tell who asked for them that programs have ended."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _, told = self.running.pop(pid)
                with suppress(OSError), told:
                    told.sendall(struct.pack("q", os.waitstatus_to_exitcode(status)))

    def end(self, connection: socket.socket | None = None) -> None:
        """Kill the programs of a connection, or all, with what they started."""
        for pid, (theirs, _) in self.running.items():
            if connection is None or theirs is connection:
                with suppress(psutil.Error):
                    for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
                        process.kill()


def apply_hooks() -> None:
    """Do what a process of ours does first: look for each hooked name in every module that is imported."""
    importlib.import_module("sglang.srt.plugins").load_plugins()
    importlib.import_module("sglang.srt.entrypoints.http_server")


def serve(listening: socket.socket) -> tuple[dict[str, Any], int, int] | None:
    """Fork for each request; in a program's process, return what it is to run."""
    programs, connections = _Programs(), list[socket.socket]()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([listening, woken, sys.stdin, *connections], [], [])
        if sys.stdin in ready:
            programs.end()
            return None
        if woken in ready:
            woken.recv(4096)
            programs.reap()
        if listening in ready:
            connections.append(listening.accept()[0])
        for connection in [c for c in connections if c in ready]:
            try:
                program = programs.start(connection)
            except EOFError:
                connections.remove(connection)
                continue
            if program is not None:
                for other in (listening, woken, wake, *connections, *(t for _, t in programs.running.values())):
                    other.close()
                return program


def run_program(arguments: list[str], environment: dict[str, str], stdout: int, stderr: int) -> None:
    """Run `python ARGUMENTS` in this process: `[-W FILTER] (FILE | -m MODULE | -c CODE) ...`."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in ((1, stdout), (2, stderr)):
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.path[1:1] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    _reread()
    _fork_instead_of_spawning()
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    kind, *rest = arguments
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def run_to_its_end(arguments: list[str], environment: dict[str, str], stdout: int, stderr: int) -> NoReturn:
    """Run a program and end its process as Python does, but without taking all modules apart, which takes a second."""
    status: Any = None
    try:
        run_program(arguments, environment, stdout, stderr)
    except SystemExit as ended:
        status = ended.code
    except Exception:
        traceback.print_exc()
        status = 1
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit((status or 0) & 0xFF)


def _reread() -> None:
    from sglang.srt.environ import envs
    from sglang.srt.managers import scheduler

    for variable, name in REREAD.items():
        setattr(scheduler, name, getattr(envs, variable).get())


def _fork_instead_of_spawning() -> None:
    def keep(*_: Any, **__: Any) -> None:
        """sglang asks for spawned processes when it starts."""

    multiprocessing.set_start_method("fork", force=True)
    uvicorn._subprocess.spawn = multiprocessing.get_context("fork")  # type: ignore[assignment]
    multiprocessing.set_start_method = keep  # type: ignore[assignment]
    multiprocessing.context.DefaultContext.set_start_method = keep  # type: ignore[method-assign]


def listen(address: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen()
    return listening


def main(address: str) -> None:
    plain, hooked = listen(address), listen(address + ".hooked")
    if sys.stdin in select.select([plain, hooked, sys.stdin], [], [])[0]:
        return
    import_sglang()
    if os.fork():
        hooked.close()
    else:
        plain.close()
        apply_hooks()
    gc.freeze()
    program = serve(plain if hooked.fileno() < 0 else hooked)
    if program is None:
        os._exit(0)
    asked, stdout, stderr = program
    run_to_its_end(asked["arguments"], asked["environment"], stdout, stderr)


if __name__ == "__main__":
    main(sys.argv[1])
