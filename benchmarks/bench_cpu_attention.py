"""The CPU engine with `torch_batched` against sglang's `torch_native`, on one machine in one run.

    python benchmarks/bench_cpu_attention.py [--rounds 5] [--model PATH]

Two servers (and a third with NGRAM speculation) stay up side by side, idle ones asleep. With `torch_native` a server is
sglang as published; with `torch_batched` its weights are packed too. Measurements alternate between the servers, and
what counts is the median over the rounds of the ratio within a round, so that a machine that others use too disturbs
both sides alike. Before anything is timed, the first greedy ids must agree, but for near ties of bfloat16. Appends one
JSON object to benchmarks/results/cpu_attention.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from sglang_ext.bench.servers import free_port

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cpu_attention.jsonl"
START_SECONDS = 300
NATIVE, BATCHED, NGRAM = "torch_native", "torch_batched", "torch_batched+NGRAM"
DECODED = {1: 128, 16: 64, 64: 32}
"""Batch sizes, and tokens that each request decodes."""
PREFIX, NEW = 1000, 1000
CONTEXT, DRAFTS = 500, 8
FLAGS = {NATIVE: ["--attention-backend", "torch_native"], BATCHED: ["--attention-backend", "torch_batched"],
         NGRAM: ["--attention-backend", "torch_batched", "--speculative-algorithm", "NGRAM",
                 "--speculative-num-draft-tokens", str(DRAFTS)]}


def _log_path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"bench-{name}.log"


class Bench:
    """Servers and a source of prompts that no cache has seen.

    Attributes:
        start_seconds: by server, until its first answer; they start at once.
    """

    def __init__(self, model: str, flags: Mapping[str, Sequence[str]] = FLAGS) -> None:
        self._chance = random.Random(time.time_ns())
        self._ports = {name: free_port() for name in flags}
        self.start_seconds: dict[str, float] = {}
        common = ["--model-path", model, "--dtype", "bfloat16", "--max-total-tokens", "24000", "--log-level", "error"]
        launch = [sys.executable, str(ROOT / "launch.py"), *common]
        self._servers = {name: subprocess.Popen([*launch, "--port", str(port), *flags[name]],
                                                stdout=_log_path(name).open("wb"), stderr=subprocess.STDOUT)
                         for name, port in self._ports.items()}
        begin = time.monotonic()
        for name in flags:
            self._wait(name, begin)

    def _wait(self, name: str, begin: float) -> None:
        deadline = begin + START_SECONDS
        while True:
            try:
                self.generate(name, [self.ids(4)], 1)
                self.start_seconds[name] = time.monotonic() - begin
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline or self._servers[name].poll() is not None:
                    self.close()
                    raise RuntimeError(f"the server did not start, see {_log_path(name)}") from None
                time.sleep(1)

    def ids(self, count: int) -> list[int]:
        return [self._chance.randrange(100, 40000) for _ in range(count)]

    def generate(self, engine: str, prompts: list[list[int]], tokens: int) -> tuple[float, list[dict[str, Any]]]:
        """Seconds, and the answers."""
        body = {"input_ids": prompts,
                "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
        request = urllib.request.Request(f"http://127.0.0.1:{self._ports[engine]}/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as response:
            answers = json.load(response)
        return time.perf_counter() - start, answers

    def check(self) -> None:
        """Raises RuntimeError if the servers disagree on more than near ties of bfloat16 explain."""
        prompts = [self.ids(12) for _ in range(16)]
        first = {name: [a["output_ids"][0] for a in self.generate(name, prompts, 2)[1]] for name in FLAGS}
        for name in (BATCHED, NGRAM):
            same = sum(a == b for a, b in zip(first[NATIVE], first[name], strict=True))
            if same < 13:
                raise RuntimeError(f"{name} agrees with {NATIVE} on {same} of 16 first tokens")

    def decode_rate(self, engine: str, batch: int) -> float:
        """Tokens per second of decoding, all requests together, without the prefill."""
        prompts = [self.ids(32) for _ in range(batch)]
        short, _ = self.generate(engine, prompts, 1)
        prompts = [self.ids(32) for _ in range(batch)]
        long, _ = self.generate(engine, prompts, DECODED[batch] + 1)
        return batch * DECODED[batch] / (long - short)

    def prefill_seconds(self, engine: str) -> float:
        """A prefill of new tokens on a cached prefix."""
        prefix = self.ids(PREFIX)
        self.generate(engine, [prefix], 1)
        seconds, answers = self.generate(engine, [prefix + self.ids(NEW)], 1)
        cached = answers[0]["meta_info"]["cached_tokens"]
        if cached < PREFIX - 1:
            raise RuntimeError(f"only {cached} tokens were cached")
        return seconds

    def step_seconds(self, engine: str) -> float:
        """One decode step, or one verification, after a context."""
        prompt = self.ids(CONTEXT)
        short, _ = self.generate(engine, [prompt], 1)
        prompt = self.ids(CONTEXT)
        long, after = self.generate(engine, [prompt], 49)
        steps = after[0]["meta_info"].get("spec_verify_ct") or 48
        return (long - short) / steps

    def close(self) -> None:
        for server in self._servers.values():
            server.terminate()
        for server in self._servers.values():
            server.wait(60)


def measure(bench: Bench, rounds: int) -> dict[str, dict[str, list[float]]]:
    """What each round measured, by measurement and server; servers take turns within a round."""
    both = (NATIVE, BATCHED)
    plan: dict[str, tuple[Callable[[str], float], tuple[str, ...]]] = {
        f"decode_tokens_per_second_batch_{n}": (lambda e, n=n: bench.decode_rate(e, n), both) for n in DECODED}
    plan["prefill_seconds"] = (bench.prefill_seconds, both)
    plan["step_seconds"] = (bench.step_seconds, (NATIVE, BATCHED, NGRAM))
    found: dict[str, dict[str, list[float]]] = {}
    for name, (call, engines) in plan.items():
        for engine in engines:
            call(engine)  # pages, code and the draft corpus are warm
        runs: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(rounds):
            for engine in engines:
                runs[engine].append(call(engine))
        found[name] = runs
        print(name, {engine: round(statistics.median(values), 4) for engine, values in runs.items()}, flush=True)
    return found


def ratios(found: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """How many times faster; for the verification, how many times a plain step it costs. Medians over the rounds."""

    def median(name: str, over: str, under: str) -> float:
        pairs = zip(found[name][over], found[name][under], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 2)

    out = {name: median(name, BATCHED, NATIVE) for name in found if name.startswith("decode")}
    out["prefill"] = median("prefill_seconds", NATIVE, BATCHED)
    out[f"decode_batch_1_after_{CONTEXT}"] = median("step_seconds", NATIVE, BATCHED)
    out["verify_over_step"] = median("step_seconds", NGRAM, BATCHED)
    return out


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="default: the demo model, SmolLM2-135M")
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        from sglang_ext.demo.smollm2 import smollm2

        model = str(smollm2())
    load_before = os.getloadavg()[0]
    bench = Bench(model)
    try:
        bench.check()
        found = measure(bench, arguments.rounds)
    finally:
        bench.close()
    record = {"date": date.today().isoformat(), "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
              "threads": os.environ.get("OMP_NUM_THREADS", "one a core"),
              "model": Path(model).name, "dtype": "bfloat16", "rounds": arguments.rounds,
              "load_before": round(load_before, 2), "ratios": ratios(found), "measured": found}
    print(json.dumps(record["ratios"], indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as out:
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
