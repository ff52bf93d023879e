"""Servers of a benchmark end with all that they started, and no other's answers are taken for theirs."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from sglang_ext.bench import BenchError, servers

PROGRAM = """
import http.server, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
print("ready", flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
"""A server with a child that takes no notice of SIGTERM."""


def command(*flags: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *flags]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STOP_SECONDS", 2)
    monkeypatch.setattr(servers, "CHILD_SECONDS", 1)


@pytest.mark.parametrize("flags", [[], ["--stubborn"]])
def test_a_server_ends_with_its_children(flags: list[str], tmp_path: Path) -> None:
    with servers.process(command(*flags), tmp_path / "log", "shown") as server:
        assert server.process is not None
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert len(family) == 2
        assert servers.answers(server.url, "/health")
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert (tmp_path / "log").read_text().startswith("ready\n")


def test_an_interrupt_ends_it_too(tmp_path: Path) -> None:
    family: list[psutil.Process] = []

    def use() -> None:
        with servers.process(command(), tmp_path / "log", "shown") as server:
            assert server.process is not None
            family.extend([psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()])
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not psutil.wait_procs(family, timeout=5)[1]


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with (pytest.raises(BenchError, match=r"did not start: shown\nno such model\n.*log"),
          servers.process(failing, tmp_path / "log", "shown")):
        pass


def test_another_server_on_its_port_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port was taken between the choice and the start: the other answers, ours says so and hangs."""
    hung = [sys.executable, "-c", "import time; print('address already in use', flush=True); time.sleep(600)"]
    with servers.process(command(), tmp_path / "other", "other") as other:
        monkeypatch.setattr(servers, "free_port", lambda: int(other.url.rpartition(":")[2]))
        with pytest.raises(BenchError, match="address already in use"), servers.process(hung, tmp_path / "log", "ours"):
            pass


def test_ports_are_free_and_not_of_outgoing_connections() -> None:
    port = servers.free_port()
    assert 20000 <= port < 32000
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))


@pytest.mark.parametrize(("flag", "expected"), [("/a/b/model", "model"), ("--dtype", "--dtype"), ("a/b", "a/b")])
def test_a_folder_of_this_machine_is_not_shown(flag: str, expected: str) -> None:
    assert servers._short(flag) == expected
