"""Whether a server ends the loops of a model, and nothing else: greedy thoughts without a limit, with loops and not.

    python benchmarks/loops_found.py [--prompts 100] [--new 900] [--batch 64] [--url U]

Each prompt opens a thinking block of the demo model, which is no reasoner and soon goes round in circles. It is asked
twice: to think on, and to end loops (`{"loops": true}`). A plain detector looks at the ids of both. A loop has to be
ended within two cycles of being one, and a thought that is none has to go on. Prints a line of JSON; status 1 says that
a thought broke the rule. Ids of the two need not be the same: rows of a batch differ in their last bits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from sglang_ext.bench import servers
from sglang_ext.bench.batch import send
from sglang_ext.budget.loops import LEAST, LONGEST, TIMES
from sglang_ext.demo.smollm2 import smollm2

ASKS = ("What is {}?", "Explain {} to a child.", "Write a short story about {}.", "List ten facts about {}.",
        "Why do people care about {}?", "How would you teach {} in one lesson?", "Compare {} with its opposite.",
        "Write a poem about {}.", "What would a world without {} be like?", "Plan a day around {}.")
THINGS = ("the sea", "arithmetic", "bread", "a clock", "music", "the moon", "a bicycle", "winter", "trust", "a map")


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


def bodies(count: int, new: int) -> list[dict[str, Any]]:
    """Pairs of requests: on without end, and with loops ended."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    questions = [ask.format(thing) for thing in THINGS for ask in ASKS][:count]
    made = []
    for question in questions:
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                             add_generation_prompt=True) + "<think>\n"
        for loops in (False, True):
            budget = {"max_tokens": -1, "message": "", "answer_tokens": 0, "loops": loops}
            made.append({"input_ids": tokenizer.encode(text), "sampling_params": {
                "temperature": 0, "max_new_tokens": new, "ignore_eos": True, "think_budget": budget}})
    return made


def judged(response: dict[str, Any], ends: bool) -> str:
    """What became of one thought."""
    think = response["meta_info"]["think"]
    loop = first_loop(response["output_ids"][: think["tokens"]])
    if think["outcome"] == "loop":
        if not ends or loop is None:
            return "WRONG: ended without a loop"
        late = think["tokens"] - loop[0]
        return "ended" if late <= 2 * loop[1] else f"WRONG: ended {late} ids late, cycle {loop[1]}"
    if loop is not None and ends and think["outcome"] == "open":
        return "WRONG: a loop that goes on" if think["tokens"] - loop[0] > 2 * loop[1] else "a loop at the very end"
    return f"{think['outcome']}, {'a loop' if loop else 'no loop'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new", type=int, default=900)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--url")
    args = parser.parse_args()
    asked, responses = bodies(args.prompts, args.new), []

    def run(url: str) -> None:
        for at in range(0, len(asked), args.batch):
            responses.extend(send(f"{url}/generate", asked[at : at + args.batch]).responses)

    if args.url:
        run(args.url)
    else:
        flags = ["--max-total-tokens", str(args.batch * (args.new + 100))]
        with (tempfile.TemporaryDirectory() as folder,
              servers.serving("ours", flags, Path(folder) / "server.log") as ours):
            run(ours.url)
    free, ended = (Counter(judged(r, ends) for r in responses[ends::2]) for ends in (False, True))
    print(json.dumps({"prompts": args.prompts, "new": args.new, "without": free, "with": ended}))
    return int(any(name.startswith("WRONG") for name in [*free, *ended]))


if __name__ == "__main__":
    sys.exit(main())
