"""A chat server for tests of the benchmark's client: it streams what it is told and notes what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Sequence[Any]]
"""Status, and chunks: objects are sent as events, numbers are seconds to wait. Where no stream is asked for, the first
chunk is the answer."""


@dataclass
class Peer:
    """Where it is, what it was asked, and how many requests it had at a time at most."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def delta(**values: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values}]}


def stop(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


@contextmanager
def peer(answer: Callable[[dict[str, Any]], Reply]) -> Iterator[Peer]:
    """A server on a free port; `answer` makes a reply of a request's body."""
    found = Peer("")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "told"}]} if self.path == "/v1/models" else {}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with found.lock:
                found.bodies.append(body)
                found.headers.append(dict(self.headers))
                found.now += 1
                found.most = max(found.most, found.now)
            status, chunks = answer(body)
            if not body.get("stream"):
                self._send(status, json.dumps(chunks[0]).encode())
                chunks = ()
            else:
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
            for chunk in chunks:
                if isinstance(chunk, int | float):
                    time.sleep(chunk)
                    continue
                data = chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()
                self.wfile.write(b"data: " + data + b"\n\n")
                self.wfile.flush()
            with found.lock:
                found.now -= 1

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
