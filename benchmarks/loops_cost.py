"""What the watch for loops costs a batch: a server's tokens a second with it, by those without it.

    python benchmarks/loops_cost.py [--demo reasoner] [--batch 64] [--new 900] [--rounds 6] [--url U]

All requests of a batch think for `--new` tokens and are drawn, so that they are no loops: the watch looks again and
again and finds none. The same batch is asked with `{"loops": true}` and without in turn, on one server, and the order
changes each time. Prints the ratio of each round, and their median, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_ext.bench import servers
from sglang_ext.bench.batch import send
from sglang_ext.serve import DEMOS


def body(new: int, loops: bool) -> dict[str, Any]:
    budget = {"max_tokens": -1, "min_tokens": new, "answer_tokens": 0, "loops": loops}
    return {"text": "<think>\n", "sampling_params": {
        "temperature": 2.0, "max_new_tokens": new, "ignore_eos": True, "think_budget": budget}}


def seconds(url: str, args: argparse.Namespace, loops: bool) -> float:
    """Time of one batch.

    Raises:
        RuntimeError: a thought ended before its time, so that the batch is not as long as the other.
    """
    done = send(f"{url}/generate", [body(args.new, loops)] * args.batch)
    thought = {response["meta_info"]["think"]["tokens"] for response in done.responses}
    if thought != {args.new}:
        raise RuntimeError(f"thoughts of {sorted(thought)} tokens instead of {args.new}")
    return done.seconds


def measure(url: str, args: argparse.Namespace) -> None:
    seconds(url, args, loops=True)
    ratios = []
    for number in range(args.rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        took = {loops: seconds(url, args, loops) for loops in order}
        ratios.append(round(took[False] / took[True], 4))
    print(json.dumps({"batch": args.batch, "new": args.new, "ratios": ratios, "median": statistics.median(ratios)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", choices=sorted(DEMOS), default="reasoner")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--new", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--url")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends the run ends the server
    if args.url:
        measure(args.url, args)
        return 0
    flags = ["--demo", args.demo, "--max-total-tokens", str(args.batch * (args.new + 20))]
    with (tempfile.TemporaryDirectory() as folder,
          servers.serving("ours", flags, Path(folder) / "server.log") as ours):
        measure(ours.url, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
