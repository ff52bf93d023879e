"""What a run leaves: `results.jsonl`, one JSON object a line, written as it is measured.

The first line (`"type": "run"`) says what was run on what; the last (`"type": "end"`) how it ended, and is missing if
the process was killed. Between them are the rows, each with a `type` of its command's own.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]

from . import BenchError

RESULTS = "results.jsonl"
PACKAGES = ("sglang-ext", "sglang", "torch", "triton", "transformers", "sglang-router", "matplotlib")


@dataclass
class Run:
    """A run that is being measured; rows go to its file at once."""

    folder: Path
    path: Path

    @classmethod
    def create(cls, folder: Path, command: str, argv: list[str], flags: dict[str, Any]) -> Self:
        """Make the folder and write the first line.

        Raises:
            BenchError: the folder has results already, or cannot be made.
        """
        path = folder / RESULTS
        if path.exists():
            raise BenchError(f"--out: {str(folder)!r} has the results of a run; accepted: a folder without {RESULTS}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"--out: {str(folder)!r}: {error.strerror}; accepted: a folder that can be made") from None
        run = cls(folder, path)
        run.add("run", command=command, argv=shlex.join(["python", "-m", "sglang_ext.bench", *argv]), flags=flags,
                date=now(), hardware=hardware(), versions=versions())
        return run

    def add(self, type: str, **row: Any) -> None:
        """Append a row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"type": type, **row}, default=str) + "\n")

    def server(self, name: str, command: str, facts: dict[str, Any]) -> None:
        """Note a server that is measured."""
        self.add("server", name=name, command=command, facts=facts)

    def log(self, name: str) -> Path:
        """File for a server's output."""
        return self.folder / f"{name}.log"


@dataclass
class Record:
    """A run as it was written."""

    run: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: str = "unfinished"

    def of(self, *types: str) -> list[dict[str, Any]]:
        """Rows of these types, in order."""
        return [row for row in self.rows if row["type"] in types]

    @property
    def servers(self) -> list[dict[str, Any]]:
        """The servers, each name once."""
        return list({row["name"]: row for row in self.of("server")}.values())


def read(folder: Path) -> Record:
    """Read a run's file; a last line that was cut off is left out.

    Raises:
        BenchError: there is none, or it does not begin as one.
    """
    path = folder / RESULTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise BenchError(f"{str(folder)!r} has no {RESULTS}; accepted: a folder that a run wrote") from None
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise BenchError(f"{path}: line {number + 1} is no JSON") from None
    if not rows or rows[0].get("type") != "run":
        raise BenchError(f"{path} does not begin with a line of type run; accepted: a file that a run wrote")
    ends = [row["state"] for row in rows if row["type"] == "end"]
    return Record(rows[0], [row for row in rows[1:] if row["type"] != "end"], ends[-1] if ends else "unfinished")


def now() -> str:
    """The time as a text, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in GiB, and GPUs."""
    return {"processor": cpu_name(), "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(psutil.virtual_memory().total / 2**30), "gpus": gpu_names(),
            "system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a figure depends on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name") and ": " in line]
    return names[0] if names else platform.machine()


def gpu_names() -> list[str]:
    """Names of NVIDIA GPUs, by the driver's own tool; empty where there is none."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
