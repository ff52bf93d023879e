"""Parts of the CPU engine: products on plain and on packed weights, and decoding under torch.compile.

    python benchmarks/bench_cpu_parts.py products [--seconds 0.2]
    python benchmarks/bench_cpu_parts.py compiled [--rounds 3]

Products are of the shapes of SmolLM2-135M, one thread, its processor time. Compiled is sglang's CPU graph runner
against the same server without, alternating. Appends one JSON object to benchmarks/results/cpu_parts.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import torch
from bench_cpu_attention import BATCHED, FLAGS, RESULTS, Bench, cpu_model

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))
"""Outputs and inputs: queries, keys and values; output of attention; up and gate; down; head."""
ROWS = (1, 16, 64, 512)
COMPILED = BATCHED + " compiled"
GRAPHS = ["--enable-torch-compile", "--cuda-graph-bs-decode", "1"]


def products(seconds: float) -> dict[str, Any]:
    """Microseconds of a product by shape, rows, and layout of the weights."""
    from sglang_ext.cpu.packed import ROWS as PACKED_FOR

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs, dtype=torch.bfloat16)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=torch.bfloat16)
            plain = partial(torch.nn.functional.linear, x, weight)
            blocked = partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
            found[f"{outputs} x {inputs}, {rows} rows"] = {"plain": _median(plain, seconds),
                                                           "packed": _median(blocked, seconds)}
    return found


def _median(call: Callable[[], Any], seconds: float) -> float:
    """Median processor time of a call within about so many seconds, in microseconds."""
    call()
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 9:
        start = time.thread_time_ns()
        call()
        times.append((time.thread_time_ns() - start) / 1000)
    return round(statistics.median(times), 1)


def compiled(rounds: int) -> dict[str, Any]:
    """Seconds until the first answer, and tokens a second at batch 1; the ratio is the median of the rounds'."""
    from sglang_ext.demo.smollm2 import smollm2

    bench = Bench(str(smollm2()), {BATCHED: FLAGS[BATCHED], COMPILED: [*FLAGS[BATCHED], *GRAPHS]})
    try:
        for engine in (BATCHED, COMPILED):
            bench.decode_rate(engine, 1)
        rates = [{engine: bench.decode_rate(engine, 1) for engine in (BATCHED, COMPILED)} for _ in range(rounds)]
    finally:
        bench.close()
    return {"start_seconds": bench.start_seconds, "decode_tokens_per_second_batch_1": rates,
            "ratio": round(statistics.median(rate[COMPILED] / rate[BATCHED] for rate in rates), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("products", "compiled"))
    parser.add_argument("--seconds", type=float, default=0.2, help="for each product")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    measured = products(arguments.seconds) if arguments.part == "products" else compiled(arguments.rounds)
    record = {"date": date.today().isoformat(), "part": arguments.part, "cpu": cpu_model(), "load_before": load,
              "cores": len(os.sched_getaffinity(0)), "threads": os.environ.get("OMP_NUM_THREADS", "one a core"),
              "torch": torch.__version__, "measured": measured}
    print(json.dumps(measured, indent=1))
    with RESULTS.with_name("cpu_parts.jsonl").open("a") as out:
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
