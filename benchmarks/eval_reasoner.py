"""How right the small reasoner is under think budgets, through our server.

    python benchmarks/eval_reasoner.py [--each 60] [--model-path DIR] [--batch 64]

Starts `launch.py --demo reasoner`, asks the same questions with every budget and every stop message over
/v1/chat/completions, greedy, and appends one line to benchmarks/results/reasoner_eval.jsonl. Ends with status 1 if one
of the checks that it prints does not hold.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import servers
from tqdm import tqdm

from sglang_ext.bench.record import cpu_name
from sglang_ext.bench.workload import chance, questions
from sglang_ext.demo.reasoner.messages import QWEN
from sglang_ext.demo.reasoner.tasks import KINDS, SERIAL, Question

RESULTS = Path(__file__).parent / "results" / "reasoner_eval.jsonl"
BUDGETS = (0, 8, 16, 24, 32, 48, 64, 80, 96, 128)
MESSAGES = {"empty": "", "qwen": QWEN,
            "unseen": "Oh dear, the kettle boils over! Whatever you came up with will do; out with it, please."}
RISING = 6
"""Least number of budgets over which accuracy has to rise."""
FULL = -1
MAX_TOKENS = 256
"""Most tokens of a response, several times what an answer and the longest thinking take."""


@dataclass(frozen=True)
class Reply:
    """What came back: whether it is right, how thinking ended and after how many tokens, whether the response ended."""

    kind: str
    right: bool
    outcome: str
    tokens: int
    ended: bool


def ask(server: servers.Server, question: Question, budget: int, message: str) -> Reply:
    response = server.post("/v1/chat/completions", {
        "model": "reasoner", "messages": [{"role": "user", "content": question.text}], "temperature": 0,
        "max_tokens": MAX_TOKENS, "think_budget": {"max_tokens": budget, "message": message}, "return_meta_info": True})
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    content, think = choice["message"]["content"] or "", choice["meta_info"]["think"]
    ended = choice["finish_reason"] == "stop" and "think>" not in content and bool(content.strip())
    return Reply(question.kind, content.strip() == question.answer, think["outcome"], think["tokens"], ended)


def summary(replies: Sequence[Reply]) -> dict[str, Any]:
    """Accuracy by kind and over the serial kinds, outcomes, and how many responses did not end as they should."""
    def accuracy(kinds: Sequence[str]) -> float:
        return round(statistics.mean(r.right for r in replies if r.kind in kinds), 3)

    return {"serial": accuracy(SERIAL), "by_kind": {kind: accuracy([kind]) for kind in KINDS},
            "outcomes": dict(Counter(r.outcome for r in replies)), "not_ended": sum(not r.ended for r in replies),
            "tokens": round(statistics.mean(r.tokens for r in replies), 1)}


def lengths(replies: Sequence[Reply]) -> dict[str, list[float]]:
    """Least, mean and most tokens of a thinking that nobody cut, by kind."""
    tokens = {kind: [r.tokens for r in replies if r.kind == kind] for kind in KINDS}
    return {kind: [min(t), round(statistics.mean(t), 1), max(t)] for kind, t in tokens.items()}


def steps(accuracies: Sequence[float], chance: float) -> int:
    """At how many budgets, above chance, accuracy is higher than at the one before; 0 if it falls anywhere there."""
    above = [a for a in accuracies if a > chance + 0.05]
    if any(a > b + 0.01 for a, b in pairwise(above)):
        return 0
    return sum(a < b for a, b in pairwise([chance, *above]))


def checks(record: dict[str, Any]) -> dict[str, bool]:
    """What the model has to live up to, for every stop message."""
    runs = [[run for run in record["runs"] if run["message"] == message] for message in MESSAGES]
    between = [[run["serial"] for run in of_message if run["budget"]] for of_message in runs]
    longest = max(most for _, _, most in record["natural_tokens"].values())
    enough = [run["outcomes"].keys() == {"natural"} for of_message in runs for run in of_message
              if run["budget"] >= longest]
    return {
        "full thinking above 0.95": record["full"]["serial"] > 0.95,
        "no thinking within 0.05 of chance": all(r[0]["serial"] < record["chance"] + 0.05 for r in runs),
        f"rising over {RISING} budgets or more": all(steps(serial, record["chance"]) >= RISING for serial in between),
        "hard thoughts five times easy ones": longest >= 5 * min(least for least, _, _ in
                                                                 record["natural_tokens"].values()),
        "natural at or above the natural length": bool(enough) and all(enough),
        "at most 2 % do not end": all(run["not_ended"] <= 0.02 * record["questions"] for r in runs for run in r),
    }


def measure(server: servers.Server, each: int, batch: int) -> dict[str, Any]:
    asked = questions(each)
    plan = [("empty", FULL), *((message, budget) for message in MESSAGES for budget in BUDGETS)]
    record: dict[str, Any] = {"questions": len(asked), "chance": chance(asked), "runs": []}
    with ThreadPoolExecutor(batch) as pool:
        for message, budget in tqdm(plan, desc="messages and budgets"):
            replies = list(pool.map(lambda q, b=budget, m=message: ask(server, q, b, MESSAGES[m]), asked))
            if budget == FULL:
                record |= {"natural_tokens": lengths(replies), "full": summary(replies)}
            else:
                record["runs"].append({"message": message, "budget": budget, **summary(replies)})
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=60, help="questions of each kind with thinking")
    parser.add_argument("--batch", type=int, default=64, help="requests at a time")
    parser.add_argument("--model-path", help="another model of the same kind, such as one just trained")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended
    model = ("--model-path", args.model_path, "--reasoning-parser", "qwen3", "--served-model-name", "reasoner")
    server = servers.launch(*(model if args.model_path else ("--demo", "reasoner")))
    try:
        measured = measure(server, args.each, args.batch)
    finally:
        server.stop()
    record = {"date": datetime.date.today().isoformat(), "processor": cpu_name(), "cores": len(os.sched_getaffinity(0)),
              "model": args.model_path or "reasoner", **measured}
    record["checks"] = checks(record)
    print(json.dumps(record, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return 0 if all(record["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
