"""The command line: `python -m sglang_ext.bench COMMAND`; `report DIR` makes a report of what a run left."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from . import BenchError, Violated

COMMANDS = ("budget", "cut", "overhead", "uag", "double-query", "accuracy", "churn")
NEEDED = ("matplotlib", "jinja2", "scipy", "aiohttp")
USAGE, FAILED, INTERRUPTED = 2, 1, 130


def _module(command: str) -> Any:
    return importlib.import_module("." + command.replace("-", "_"), __package__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sglang_ext.bench", allow_abbrev=False,
                                     description="Serving benchmarks, each with a report to look at.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = _module(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.__doc__, allow_abbrev=False)
        sub.add_argument("--quick", action="store_true", help="a few minutes, for a first look")
        sub.add_argument("--out", type=Path, metavar="DIR", help="folder for results and report, without older results "
                         "(default: bench-results/COMMAND-TIME)")
        module.add_flags(sub)
    report = commands.add_parser("report", help="the report of a run, complete or not, from its results")
    report.add_argument("folder", type=Path, metavar="DIR", help="folder that a run wrote")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0; 1 if it failed or found the contract broken; 2 for a bad command line; 130 if it was interrupted. What was
        measured by then is reported.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _complain(f"{', '.join(missing)} not installed, so there could be no report: pip install "
                         "'sglang-ext[bench]'", USAGE)
    args = _parser().parse_args(argv)
    try:
        if args.command == "report":
            return _report(args.folder)
        return _measure(args, argv)
    except BenchError as error:
        return _complain(str(error), USAGE)


def _measure(args: argparse.Namespace, argv: list[str]) -> int:
    from .record import Run

    module = _module(args.command)
    for name, value in (module.QUICK if args.quick else module.FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    module.check(args)
    folder = args.out or Path("bench-results") / f"{args.command}-{datetime.now():%Y%m%d-%H%M%S}"
    flags = {name: value for name, value in vars(args).items() if name not in ("command", "out", "api_key")}
    run = Run.create(folder, args.command, _without_key(argv), flags)
    state, status = "complete", 0
    try:
        with _terminable():
            module.measure(args, run)
    except KeyboardInterrupt:
        state, status = "interrupted", INTERRUPTED
    except Violated as error:
        status = _complain(str(error), FAILED)
    except BenchError as error:
        state, status = "failed", _complain(str(error), FAILED)
    run.add("end", state=state)
    return _report(folder) or status


def _report(folder: Path) -> int:
    from . import record, report

    found = record.read(folder)
    command = found.run.get("command")
    if command not in COMMANDS:
        raise BenchError(f"{str(folder)!r} is of command {command!r}; accepted: {', '.join(COMMANDS)}")
    path = report.write(folder, found, _module(command).page(found))
    print(f"{found.state}: {path}", file=sys.stderr, flush=True)
    return 0


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: in an orderly way, servers first; in the background too, where a shell has
    SIGINT ignored."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _without_key(argv: list[str]) -> list[str]:
    """The command line without the API key's value, as it is written to a file."""
    out, hide = [], False
    for part in argv:
        out.append("..." if hide else "--api-key=..." if part.startswith("--api-key=") else part)
        hide = part == "--api-key"
    return out


def _complain(message: str, status: int) -> int:
    print(f"sglang_ext.bench: error: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
