"""What a budget costs a batch: everybody budgeted against nobody, and sglang's own processor against nobody.

    python benchmarks/bench_budget_overhead.py [--batch 16] [--new 128] [--budget 64] [--rounds 7] [--native]

Two servers of the demo model in bfloat16 run side by side, ours and sglang as published; the kinds of load alternate,
and the figure is the ratio of each to the unbudgeted load on the same server, round by round. Every budgeted response
is checked before its time counts. With --native our server has sglang's own attention too, and a further figure is what
the plugin costs requests without a budget. Appends to benchmarks/results/budget_overhead.jsonl. For every way of sglang
and a model with markers of its own: `python -m sglang_ext.bench overhead`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import servers
from tqdm import tqdm
from transformers import AutoTokenizer

from sglang_ext.bench.processor import Markers, processor_text
from sglang_ext.bench.record import cpu_name
from sglang_ext.bench.stats import spread
from sglang_ext.demo.smollm2 import smollm2

RESULTS = Path(__file__).parent / "results" / "budget_overhead.jsonl"
COMMON = ("--dtype", "bfloat16", "--max-total-tokens", "16384", "--disable-radix-cache", "--sleep-on-idle")


MARKERS = Markers(start=3, end=4, line_break=198)
"""sglang's processor knows markers that are one id. The demo model has none that fits, so it watches two ids that the
model's text does not hold."""


def bodies(args: argparse.Namespace, kind: str, processor: str) -> list[dict[str, Any]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": args.new, "ignore_eos": True}
    if kind == "budget":
        params["think_budget"] = args.budget
    if kind == "processor":
        params["custom_params"] = {"thinking_budget": args.budget}
    made = []
    for i in range(args.batch):
        text = tokenizer.apply_chat_template([{"role": "user", "content": f"Tell me story number {i} about a fox."}],
                                             tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text) + ([3] if kind.startswith("processor") else [])
        made.append({"input_ids": prompt, "sampling_params": params})
        if kind == "processor":
            made[-1]["custom_logit_processor"] = processor
    return made


def tokens_per_second(server: servers.Server, requests: list[dict[str, Any]], kind: str,
                      args: argparse.Namespace) -> float:
    begin = time.perf_counter()
    results = server.generate_all(requests)
    seconds = time.perf_counter() - begin
    for result in results:
        if kind == "budget":
            assert result["meta_info"]["think"]["tokens"] == args.budget, result["meta_info"]
        if kind == "processor":
            assert 4 in result["output_ids"][: args.budget + 8]  # late by the steps that overlap
    return sum(len(r["output_ids"]) for r in results) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new", type=int, default=128, help="tokens of each response")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--native", action="store_true", help="sglang's own CPU attention on our server too")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended
    processor = processor_text(MARKERS)
    backend = ("--attention-backend", "torch_native")
    ours = servers.launch(*COMMON, *(backend if args.native else ()))
    try:
        stock = servers.stock("--model-path", str(smollm2()), "--enable-custom-logit-processor", *COMMON, *backend)
        try:
            speeds = measure(args, ours, stock, processor)
        finally:
            stock.stop()
    finally:
        ours.stop()
    report(args, speeds)


def measure(args: argparse.Namespace, ours: servers.Server, stock: servers.Server,
            processor: str) -> dict[str, list[float]]:
    loads = {"nobody": ours, "budget": ours, "processor off": stock, "processor": stock}
    requests = {kind: bodies(args, kind, processor) for kind in loads}
    speeds: dict[str, list[float]] = {kind: [] for kind in loads}
    for done in tqdm(range(args.rounds + 1), desc="rounds, the first to warm up"):
        order = list(loads) if done % 2 else ["budget", "nobody", "processor", "processor off"]
        for kind in order:
            speed = tokens_per_second(loads[kind], requests[kind], kind, args)
            if done:
                speeds[kind].append(speed)
    return speeds


def report(args: argparse.Namespace, speeds: dict[str, list[float]]) -> None:
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "processor": cpu_name(), "cores": len(os.sched_getaffinity(0)),
        "batch": args.batch, "new": args.new, "budget": args.budget, "rounds": args.rounds, "native": args.native,
        "tokens_per_second": {kind: round(statistics.median(values), 1) for kind, values in speeds.items()},
    }
    pairs = [("budget", "nobody"), ("processor", "processor off")]
    if args.native:
        pairs.append(("nobody", "processor off"))
    for kind, base in pairs:
        ratios = spread([a / b for a, b in zip(speeds[kind], speeds[base], strict=True)])
        name = "plugin ratio" if kind == "nobody" else f"{kind} ratio"
        record[name] = {key: round(ratios[key], 3) for key in ("median", "least", "most")}
    print(json.dumps(record, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
