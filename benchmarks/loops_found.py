"""Whether a server ends the loops of a model, and nothing else: greedy thoughts without a limit, with loops and not.

    python benchmarks/loops_found.py free thoughts.jsonl [--prompts 100] [--new 700] [--batch 50] [--url U]
    python benchmarks/loops_found.py ended thoughts.jsonl [the same]
    python benchmarks/loops_found.py judge thoughts.jsonl

Each prompt opens a thinking block of the demo model, which is no reasoner and soon goes round in circles. `free` lets
it think on, `ended` asks the same with `{"loops": true}`. Both append a line of JSON for each thought, and leave out
those that the file has: they may be stopped and go on. `judge` needs no server. A plain detector, which shares no code
with the server's watch, looks at the ids of each thought, to their end:

- a thought that goes on is judged by the watch too, token by token as a server does: both find the same;
- a thought whose loops are to be ended is ended within two cycles of the id that makes it a loop, and only then.

It prints a line of JSON; status 1 says that a thought broke the rule. The two thoughts of a prompt need not be the same
ids: rows of a batch may differ in their last bits.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import requests
from transformers import AutoTokenizer

from sglang_ext.bench import servers
from sglang_ext.budget.loops import LEAST, LONGEST, TIMES, LoopWatch
from sglang_ext.demo.smollm2 import smollm2

ASKS = ("What is {}?", "Explain {} to a child.", "Write a short story about {}.", "List ten facts about {}.",
        "Why do people care about {}?", "How would you teach {} in one lesson?", "Compare {} with its opposite.",
        "Write a poem about {}.", "What would a world without {} be like?", "Plan a day around {}.")
THINGS = ("the sea", "arithmetic", "bread", "a clock", "music", "the moon", "a bicycle", "winter", "trust", "a map")
SECONDS = 3600
"""Most seconds of a response."""


def body(tokenizer: Any, question: str, new: int, loops: bool) -> dict[str, Any]:
    """A request whose prompt leaves a thinking block open."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                         add_generation_prompt=True) + "<think>\n"
    budget = {"max_tokens": -1, "message": "", "answer_tokens": 0, "loops": loops}
    return {"input_ids": tokenizer.encode(text), "stream": True, "sampling_params": {
        "temperature": 0, "max_new_tokens": new, "ignore_eos": True, "think_budget": budget}}


def thought(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ids of a response's thinking and how it ended. The answer is not waited for."""
    ids: list[int] = []
    with requests.post(f"{url}/generate", json=request, stream=True, timeout=SECONDS) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "meta_info" not in chunk:
                raise RuntimeError(f"{url}: {chunk}")
            meta = chunk["meta_info"]
            new = meta["completion_tokens"] - len(ids)
            ids += chunk["output_ids"][-new:] if new else []
            think = meta["think"]
            if think["outcome"] != "open":
                break
    return {"ids": ids[: think["tokens"]], "outcome": think["outcome"]}


def ask(args: argparse.Namespace, url: str) -> None:
    """Ask the prompts that the file does not have yet, and append what comes of each."""
    tokenizer, loops = AutoTokenizer.from_pretrained(smollm2()), args.what == "ended"
    known = thoughts(args.file)[loops]
    questions = [a.format(thing) for thing in THINGS for a in ASKS][: args.prompts]
    bodies = {q: body(tokenizer, q, args.new, loops) for q in questions if q not in known}
    pool = ThreadPoolExecutor(args.batch)
    try:
        asked = {pool.submit(thought, url, request): question for question, request in bodies.items()}
        for done in as_completed(asked):
            with args.file.open("a") as file:
                file.write(json.dumps({"question": asked[done], "loops": loops, **done.result()}) + "\n")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a run that is stopped waits for nothing


def thoughts(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file has by question: those that go on, and those whose loops are to be ended."""
    free: dict[str, Any] = {}
    ended: dict[str, Any] = {}
    for line in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        (ended if line["loops"] else free)[line["question"]] = line
    return free, ended


def first_loop(ids: Sequence[int]) -> tuple[int, int] | None:
    """Length of the shortest beginning that is a loop, and its cycle."""
    found: tuple[int, int] | None = None
    for cycle in range(1, LONGEST + 1):
        run, needed = 0, max(TIMES * cycle, LEAST) - cycle
        for place in range(cycle, len(ids)):
            run = run + 1 if ids[place] == ids[place - cycle] else 0
            if run >= needed:
                found = min(found or (place + 1, cycle), (place + 1, cycle))
                break
    return found


def watched(ids: Sequence[int]) -> int | None:
    """Length at which a server's watch finds a loop, with a token a step."""
    watch = LoopWatch()
    watch.enter(0)
    return next((length for length in range(1, len(ids) + 1) if watch.found(ids, length)), None)


def judged_free(ids: Sequence[int]) -> str:
    """A thought that nothing ended, by the watch."""
    loop, found = first_loop(ids), watched(ids)
    if found != (loop[0] if loop is not None else None):
        return f"WRONG: the watch finds {found}, the detector {loop}"
    return "no loop" if loop is None else "a loop"


def judged_ended(ids: Sequence[int], outcome: str) -> str:
    """A thought whose loops are to be ended."""
    loop = first_loop(ids)
    if loop is None:
        return "WRONG: ended without a loop" if outcome == "loop" else f"{outcome}, no loop"
    late, cycle = len(ids) - loop[0], loop[1]
    if late > 2 * cycle:
        return f"WRONG: {outcome} {late} ids late, cycle {cycle}"
    return "ended" if outcome == "loop" else f"{outcome}, as the response is over within two cycles"


def judge(file: Path) -> int:
    """Print what became of the thoughts of a file."""
    free, ended = thoughts(file)
    of_free = Counter(judged_free(line["ids"]) for line in free.values())
    of_ended = Counter(judged_ended(line["ids"], line["outcome"]) for line in ended.values())
    loops = [(len(line["ids"]), first_loop(line["ids"])) for line in ended.values()]
    late = Counter(length - loop[0] for length, loop in loops if loop is not None)
    cycles = sorted(loop[1] for _, loop in loops if loop is not None)
    same = sum(line["ids"] == free[q]["ids"][: len(line["ids"])] for q, line in ended.items() if q in free)
    print(json.dumps({"thoughts that go on": of_free, "thoughts whose loops are ended": of_ended,
                      "ended thoughts that begin the other": same, "ids after the one that makes a loop": late,
                      "cycles": cycles}))
    return int(any(name.startswith("WRONG") for name in [*of_free, *of_ended]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("free", "ended", "judge"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new", type=int, default=700)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--url")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends the run ends the server
    if args.what == "judge":
        return judge(args.file)
    if args.url:
        ask(args, args.url)
        return 0
    flags = ["--max-total-tokens", str(args.batch * (args.new + 100)), "--stream-interval", "16"]
    with (tempfile.TemporaryDirectory() as folder,
          servers.serving("ours", flags, Path(folder) / "server.log") as ours):
        ask(args, ours.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
