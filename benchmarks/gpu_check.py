"""What the first minutes on a GPU can tell about the kernels, in the order of what is learned from each.

    python benchmarks/gpu_check.py [--out FILE] [--minutes 14] [--only PART ...] [--dry-run]

Needs torch, Triton, numpy, pytest and hypothesis; no sglang, no network, no installation. Each part is a process of its
own with a limit of its own. It appends its results to the file as it has them, each a line of JSON with the device's
name, so that little is lost with a machine. The script ends with a table, and with status 1 if a part failed.

--dry-run does on the CPU, in small, all that needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "gpu_check.jsonl"
Record = dict[str, Any]


class Part(NamedTuple):
    """One process of the check.

    Attributes:
        function: of `gpu_parts`, which yields records.
        seconds: it may take.
    """

    function: str
    seconds: int
    tells: str


PARTS = {
    "device": Part("device", 40, "the device, and its ceilings: bytes a second, a launch"),
    "first": Part("first", 70, "what the first launches take, and that no later one compiles"),
    "reference": Part("reference", 200, "the kernels equal their reference"),
    "times": Part("times", 220, "device and host time of each operation, against other designs"),
    "graph": Part("graph", 40, "steps replayed from a CUDA graph while limits change"),
    "waits": Part("waits", 40, "no helper of a step waits for the device"),
    "round": Part("uag_round", 80, "what a UAG round computes besides its models"),
}


class Ended(NamedTuple):
    """How a part went: `done`, `failed` or `cut`, after so many seconds."""

    state: str
    seconds: float


def stand_alone() -> None:
    """Make the project importable where it is not installed: `kernels` and `patches` are packages of `sglang_ext`."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    import sglang_ext
    import sglang_ext.budget

    for package, name, folder in ((sglang_ext.budget, "kernels", ROOT / "kernels" / "budget"),
                                  (sglang_ext, "patches", ROOT / "patches")):
        _import_from(f"{package.__name__}.{name}", folder)


def _import_from(name: str, folder: Path) -> None:
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if find_spec(name) is not None:
        return
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)
    spec.loader.exec_module(module)


def append(out: Path, record: Record) -> None:
    """Add a line, so that it is there even if the machine is gone a moment later."""
    with out.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _in_process(name: str, out: Path, dry: bool) -> None:
    """Run a part here: a process of its own, and of its own group, so that it can be ended with all it started."""
    os.setsid()
    stand_alone()
    import gpu_parts

    where = "cpu" if dry else "cuda"
    about = gpu_parts.about(where)
    function: Callable[[str, bool], Iterator[Record]] = getattr(gpu_parts, PARTS[name].function)
    for record in function(where, dry):
        append(out, {"part": name, **about, **record})
        print(f"  {name}: {json.dumps(record)}", flush=True)


def run(name: str, out: Path, seconds: float, dry: bool = False) -> Ended:
    """Run a part in a process that is ended with its limit. This process never touches the GPU: it is forked."""
    process = get_context("fork").Process(target=_in_process, args=(name, out, dry))
    start = time.monotonic()
    process.start()
    process.join(seconds)
    state = "cut" if process.is_alive() else "done" if process.exitcode == 0 else "failed"
    if process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:  # ended before it had a group of its own
            process.kill()
    process.join()
    return Ended(state, round(time.monotonic() - start, 1))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="results are appended to it")
    parser.add_argument("--minutes", type=float, default=14, help="for all parts together")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"of {', '.join(PARTS)}")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, in small")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    deadline, ended = time.monotonic() + options.minutes * 60, dict[str, Ended]()
    if options.dry_run:
        import triton  # noqa: F401
    for name in (name for name in PARTS if name in options.only):
        left = min(PARTS[name].seconds, deadline - time.monotonic())
        print(f"{name}: {PARTS[name].tells}; at most {max(left, 0):.0f} s", flush=True)
        worth_it = left >= min(5, PARTS[name].seconds)
        ended[name] = run(name, options.out, left, options.dry_run) if worth_it else Ended("left out", 0.0)
        append(options.out, {"part": name, "ended": ended[name].state, "seconds": ended[name].seconds})
    print("\n| part | ended | seconds |")
    for name, (state, seconds) in ended.items():
        print(f"| {name} | {state} | {seconds} |")
    return int(any(state != "done" for state, _ in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
