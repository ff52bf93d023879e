"""A server's steps by sglang's profiler: how long the device works and waits, and where the host waits for it.

    python benchmarks/gpu_serve_step.py DIR --model-path M [any flag of launch.py]

For batches of 1, 16 and 64: tokens a second without the profiler, with and without budgets, and then a trace of some
steps. DIR/steps.jsonl has a line for each, DIR/traces the traces (https://ui.perfetto.dev reads them).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import requests

BATCHES = (1, 16, 64)
NEW, STEPS = 192, 24
OURS = ("_mask_kernel", "_advance_kernel", "_walk_kernel", "_commit_kernel")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "hipStreamSynchronize",
         "hipEventSynchronize", "hipDeviceSynchronize")
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
Event = dict[str, Any]


def summary(events: Iterable[Event]) -> dict[str, Any]:
    """What a trace says: microseconds of the device's time and of our kernels', launches, and the host's waits."""
    events = [event for event in events if event.get("ph") == "X"]
    work = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in DEVICE_WORK)
    waits = [event for event in events if event["name"] in WAITS]
    ours = [event for event in events if event.get("cat") == "kernel" and event["name"] in OURS]
    launched = Counter(event["name"] for event in ours)
    return {
        "device_us": round(work[-1][1] - work[0][0], 1) if work else 0.0,
        "device_busy_us": round(sum(end - start for start, end in _united(work)), 1),
        "kernels": sum(event.get("cat") == "kernel" for event in events),
        "ours": {name: {"launches": count, "median_us": round(statistics.median(
            event["dur"] for event in ours if event["name"] == name), 2)} for name, count in launched.items()},
        "host_waits": {"count": len(waits), "us": round(sum(event["dur"] for event in waits), 1)},
    }


def _united(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Spans in order of their start, those that overlap as one."""
    start = end = None
    for first, last in spans:
        if end is None or start is None or first > end:
            if end is not None and start is not None:
                yield start, end
            start, end = first, last
        else:
            end = max(end, last)
    if end is not None and start is not None:
        yield start, end


def read(trace: Path) -> list[Event]:
    """Events of a trace as torch's profiler writes it."""
    with gzip.open(trace, "rt") if trace.suffix == ".gz" else trace.open() as file:
        return list(json.load(file)["traceEvents"])


def _bodies(batch: int, budget: int | None) -> list[dict[str, Any]]:
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    if budget is not None:
        params["think_budget"] = {"max_tokens": budget, "message": "", "answer_tokens": 0}
    text = "<|im_start|>user\nAdd {} and 25 and 38.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    return [{"text": text.format(i), "sampling_params": params} for i in range(batch)]


def measure(url: str, out: Path) -> Iterator[dict[str, Any]]:
    """Loads of one server, and a trace of each batch's steps, in the middle of a load whose rows all have budgets."""
    from sglang_ext.bench.batch import send

    generate = f"{url}/generate"
    for batch in BATCHES:
        for budget in (None, NEW - 16):
            send(generate, _bodies(batch, budget))
            seconds = statistics.median(send(generate, _bodies(batch, budget)).seconds for _ in range(3))
            yield {"batch": batch, "budget": budget, "tokens_per_second": round(batch * NEW / seconds, 1)}
        folder = out / "traces" / f"batch-{batch}"
        folder.mkdir(parents=True, exist_ok=True)
        requests.post(f"{url}/start_profile", timeout=60, json={
            "output_dir": str(folder.resolve()), "num_steps": STEPS, "activities": ["CPU", "GPU"]}).raise_for_status()
        send(generate, _bodies(batch, NEW - 16))
        yield {"batch": batch, "steps": STEPS, **summary(read(_written(folder)))}


def _written(folder: Path, seconds: float = 60) -> Path:
    """The trace, once it is whole."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = [path for path in folder.rglob("*.json*") if path.stat().st_size]
        if found and time.time() - found[0].stat().st_mtime > 3:
            return found[0]
        time.sleep(1)
    raise RuntimeError(f"no trace in {folder} after {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    options, flags = parser.parse_known_args()
    from sglang_ext.bench.servers import serving

    options.out.mkdir(parents=True, exist_ok=True)
    served = [*flags, "--reasoning-parser", "qwen3", "--disable-radix-cache", "--max-running-requests", "64"]
    with serving("ours", served, options.out / "server.log") as server, (options.out / "steps.jsonl").open("a") as file:
        for record in measure(server.url, options.out):
            file.write(json.dumps({"flags": flags, **record}) + "\n")
            file.flush()
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
