"""What a machine with a GPU and sglang can tell in an hour: the served tests on it, every way of drafting, and the
serving benchmarks, in the order of what is learned from each.

    python benchmarks/gpu_serve.py [--model-path M] [--draft D] [--backends fa3 flashinfer triton] [--out DIR]
                                   [--minutes 60] [--only STEP ...] [--dry-run] [--device cpu]

Needs an installed sglang-ext with its extras `demo`, `bench` and `test` (`make check` makes the environment). Every
step is a process with a limit of its own; its output is in DIR/STEP.log, its result a line of DIR/steps.jsonl, written
when it ends. M is what the benchmarks serve in place of the project's small reasoner. --dry-run prints the plan, writes
it to DIR/plan.json, and runs nothing. --device cpu runs the same steps on a CPU, as a rehearsal: what they measure
says nothing there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("fa3", "flashinfer", "triton")
FLAGS_VARIABLE = "SGLANG_EXT_TEST_FLAGS"
REASONER, DRAFT = "sglang_ext/demo/models/reasoner", "sglang_ext/demo/models/smollm2-draft"
ORACLES = ("test_served_markers.py", "test_served_blocks.py", "test_served_ends.py", "test_results.py")
"""Tests whose model writes what is known beforehand, in bfloat16 too."""
PAIRS = {"none": (), "NGRAM": ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
         "UAG": ("--speculative-algorithm", "UAG", "--speculative-draft-model-path", "{draft}",
                 "--speculative-num-draft-tokens", "8"),
         "UAG-fixed": ("--speculative-algorithm", "UAG", "--speculative-draft-model-path", "{draft}",
                       "--speculative-num-draft-tokens", "8", "--uag-lengths", "fixed"),
         "STANDALONE": ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "{model}",
                        "--speculative-num-steps", "4", "--speculative-eagle-topk", "1",
                        "--speculative-num-draft-tokens", "5")}
"""Flags of each way to draft; with STANDALONE the model is its own draft."""


@dataclass(frozen=True)
class Step:
    """One process.

    Attributes:
        command: arguments of this Python.
        seconds: it may take.
        variables: of its environment, beside this one's.
    """

    name: str
    command: tuple[str, ...]
    seconds: int
    tells: str
    variables: dict[str, str] = field(default_factory=dict)


def tests(name: str, device: str, backend: str, files: tuple[str, ...], seconds: int, tells: str,
          *select: str) -> Step:
    """Served tests on the device, with this attention for every server."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *select,
               *(f"tests/{file}" for file in files))
    flags = f"--device {device} --dtype bfloat16 --attention-backend {backend}"
    return Step(name, command, seconds, tells, {FLAGS_VARIABLE: flags})


def plan(options: argparse.Namespace) -> list[Step]:
    """The steps, those first from which most is learned."""
    device = options.device
    rehearsal = ("--dry-run",) if device == "cpu" else ()
    backends = ["torch_native"] if device == "cpu" else options.backends
    steps = [Step("kernels", ("benchmarks/gpu_check.py", "--out", f"{options.out}/gpu_check.jsonl", "--minutes", "8",
                              *rehearsal), 540, "the kernels alone: equality, first launches, times, graphs, waits")]
    steps += [tests(f"served-{backend}", device, backend, ORACLES[:2 if at else None], 420,
                    f"budgets on {backend} against models whose every token is known")
              for at, backend in enumerate(backends)]
    main = backends[0]
    steps += [
        tests("ngram", device, main, ("test_served_speculation.py",), 300,
              "budgets in verifications of trees", "-k", "every_script or foresee"),
        tests("uag", device, main, ("test_uag_budget.py", "test_uag_sampling.py"), 420,
              "budgets in verifications of drafts of another tokenizer, and their distribution"),
    ]
    model, draft = options.model_path or REASONER, options.draft or DRAFT
    for way, flags in PAIRS.items():
        given = tuple(flag.format(draft=draft, model=model) for flag in flags)
        steps.append(Step(f"step-{way}", ("benchmarks/gpu_serve_step.py", f"{options.out}/step-{way}", "--model-path",
                                          model, "--device", device, "--attention-backend", main, *given), 240,
                          f"a step of {way}: host gaps and kernels, from sglang's profiler, at batch 1, 16 and 64"))
    bench = ("-m", "sglang_ext.bench")
    served = ("--model-path", options.model_path) if options.model_path else ("--demo", "reasoner")
    steps += [
        Step("overhead", (*bench, "overhead", *served, "--quick", "--batch", "64", "--out", f"{options.out}/overhead"),
             600, "what enforcing a budget costs a batch of 64, against sglang's own ways"),
        Step("budget", (*bench, "budget", *served, "--quick", "--out", f"{options.out}/budget"), 420,
             "latency, throughput and answers over budgets"),
        Step("uag-bench", (*bench, "uag", "--draft", draft, "--quick", "--ways", "plain,ngram,uag,uag-fixed", "--out",
                           f"{options.out}/uag"), 600, "speed with drafts of another tokenizer, none, and NGRAM"),
    ]
    return [step for step in steps if not options.only or step.name in options.only]


def run(step: Step, out: Path, seconds: float) -> dict[str, object]:
    """Run a step, and end it with its limit and all that it started."""
    start = time.monotonic()
    with (out / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *step.command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                                   env={**os.environ, "HF_HUB_OFFLINE": "1", **step.variables}, start_new_session=True)
        try:
            state: object = process.wait(seconds)
        except subprocess.TimeoutExpired:
            state = "cut"
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            process.kill()
    return {"step": step.name, "status": state, "seconds": round(time.monotonic() - start, 1)}


def device() -> dict[str, str]:
    """What the results are from."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        name = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        name = "no GPU that nvidia-smi knows"
    from importlib.metadata import version

    return {"device": name, **{package: version(package) for package in ("sglang", "sglang-ext", "torch", "triton")}}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model-path", metavar="M", help="folder of a reasoning model to measure (default: the "
                        "project's small reasoner)")
    parser.add_argument("--draft", metavar="D", help=f"folder of a draft model for M (default: {DRAFT})")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS),
                        help="attention of the served tests; the first one is everywhere else too")
    parser.add_argument("--out", type=Path, default=Path("bench-results/gpu"), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=60, help="for all steps together")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="steps of the plan")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--dry-run", action="store_true", help="print and write the plan, and run nothing")
    options = parser.parse_args(argv)
    known = [step.name for step in plan(argparse.Namespace(**{**vars(options), "only": None}))]
    for name in options.only or ():
        if name not in known:
            parser.error(f"--only: {name!r} is unknown; accepted: {', '.join(known)}")
    if options.model_path and not (Path(options.model_path) / "config.json").is_file():
        parser.error(f"--model-path: {options.model_path!r} has no config.json; accepted: the folder of a model")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    steps, about = plan(options), device()
    shown = [{"step": s.name, "seconds": s.seconds, "tells": s.tells, "variables": s.variables,
              "command": shlex.join(["python", *s.command])} for s in steps]
    (options.out / "plan.json").write_text(json.dumps({**about, "steps": shown}, indent=1) + "\n")
    for row in shown:
        named = "".join(f"{k}={shlex.quote(v)} " for k, v in row["variables"].items())  # type: ignore[attr-defined]
        print(f"# {row['step']}, at most {row['seconds']} s: {row['tells']}\n{named}{row['command']}", flush=True)
    if options.dry_run:
        return 0
    deadline, failed = time.monotonic() + options.minutes * 60, False
    for step in steps:
        left = min(step.seconds, deadline - time.monotonic())
        result = run(step, options.out, left) if left > 30 else {"step": step.name, "status": "left out", "seconds": 0}
        failed |= result["status"] != 0
        with (options.out / "steps.jsonl").open("a") as file:
            file.write(json.dumps({**about, **result}) + "\n")
        print(f"{step.name}: {result['status']} after {result['seconds']} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
