"""How many of a draft's tokens a target accepts under greedy verification, by kind of prompt.

    python benchmarks/draft_acceptance.py [--target T] [--draft D] [--prompts 12] [--tokens 64] [--replies FILE]

The target continues prompts that no training saw. Along each reply the draft then plays its part of every round, see
`sglang_ext/uag/offline_acceptance.py`. Appends one JSON object to benchmarks/results/draft_acceptance.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_ext.uag.offline_acceptance import Played, Tally, play
from sglang_ext.uag.text.specials import SpecialMap
from sglang_ext.uag.text.translator import Translator
from sglang_ext.uag.text.vocabulary import Vocabulary
from sglang_ext.uag.train.prompts import KINDS, Prompt, PromptMaker

RESULTS = Path(__file__).resolve().parent / "results" / "draft_acceptance.jsonl"
WIDTHS = (4, 8)
PASSAGES = [
    "The ferry left at half past six with only eleven passengers on board. Nobody noticed that the smallest of "
    "them had no ticket. She sat by the rail and counted the gulls until the harbour was out of sight.",
    "Please bring two copies of the signed form to room 214 before Thursday. The office closes at noon. If the "
    "door is locked, leave them with Mrs. Halloran at the front desk.",
    "Lentils should be rinsed in cold water first. Fry the onion slowly, add cumin and a little smoked paprika, "
    "then pour in the stock. After twenty minutes stir in the spinach and some lemon juice.",
    "Tenants may keep one cat or two small birds. Dogs need written permission. Bicycles belong in the cellar, "
    "not in the hallway. Quiet hours are from ten in the evening to six in the morning.",
    "Our granddaughter's school moved into the old tannery last spring. The walls still smell of leather when it "
    "rains. The pupils have painted the chimney orange, and a stork has taken it for its own.",
    "Before the update, the printer answered within a second. Now it waits, blinks twice and prints an empty "
    "page. We replaced the cable and the toner; neither helped. The log shows error 0x61011bed.",
]
"""Written for this file; copying prompts quote them and records of the prompt maker."""


@dataclass(frozen=True)
class Reply:
    """A held-out prompt as the target reads it, and the ids of its greedy continuation, the end token included."""

    kind: str
    prompt: str
    ids: list[int]


def replies(target_path: str, count: int, tokens: int, seed: int) -> list[Reply]:
    """The target's greedy continuations of `count` held-out prompts of every kind."""
    tokenizer = AutoTokenizer.from_pretrained(target_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.bfloat16).eval()
    maker = PromptMaker(seed, held_out=True, passages=PASSAGES)
    prompts = [(kind, held_out(maker, kind).render(tokenizer)) for kind in KINDS for _ in range(count)]
    inputs = tokenizer([prompt for _, prompt in prompts], return_tensors="pt", padding=True, add_special_tokens=False,
                       return_token_type_ids=False)
    print(f"the target writes {len(prompts)} replies", flush=True)
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    out = []
    for (kind, prompt), new in zip(prompts, ids[:, inputs["input_ids"].shape[1]:].tolist(), strict=True):
        stop = new.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in new else len(new)
        out.append(Reply(kind, prompt, new[:stop]))
    return out


def held_out(maker: PromptMaker, kind: str) -> Prompt:
    """A prompt; of the copying kind only those that ask for the passage itself, not for a summary or a translation."""
    prompt = maker.make(kind)
    if kind == "copying" and prompt.style != "plain":
        return Prompt(kind, prompt.style, maker.echo()[0])
    return prompt


def measure(model: Any, target: Any, translator: Translator, answers: Sequence[Reply], width: int) -> dict[str, Tally]:
    """Tallies by kind of the rounds of all replies."""
    texts = [Played(target(a.prompt, add_special_tokens=False)["input_ids"], a.ids) for a in answers]
    tallies = {kind: Tally() for kind in KINDS}
    with tqdm(total=sum(len(a.ids) for a in answers), desc=f"draft of {width}", unit="tok") as bar:
        for answer, tally in zip(answers, play(model, translator, texts, width, bar.update), strict=True):
            tallies[answer.kind].add(tally)
    return tallies


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the demo model, SmolLM2-135M")
    parser.add_argument("--draft", required=True, help="folder that `python -m sglang_ext.uag.train` wrote")
    parser.add_argument("--prompts", type=int, default=12, help="of each kind (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of a reply (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replies", type=Path, help="file that keeps the target's replies from run to run")
    parser.add_argument("--note", default="", help="kept with the result")
    arguments = parser.parse_args()
    from sglang_ext.demo.smollm2 import smollm2

    target_path, draft_path = arguments.target or str(smollm2()), arguments.draft
    if arguments.replies and arguments.replies.exists():
        answers = [Reply(**reply) for reply in json.loads(arguments.replies.read_text())]
    else:
        answers = replies(target_path, arguments.prompts, arguments.tokens, arguments.seed)
        if arguments.replies:
            arguments.replies.write_text(json.dumps([asdict(answer) for answer in answers]))
    model = AutoModelForCausalLM.from_pretrained(draft_path, dtype=torch.bfloat16).eval()
    target = AutoTokenizer.from_pretrained(target_path)
    ours, theirs = Vocabulary.of(target), Vocabulary.of(AutoTokenizer.from_pretrained(draft_path))
    translator = Translator(ours, theirs, SpecialMap.of(ours, theirs))
    widths = {str(k): {kind: t.summary() for kind, t in measure(model, target, translator, answers, k).items()}
              for k in WIDTHS}
    record = {"date": date.today().isoformat(), "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
              "command": " ".join(["python", *sys.argv]), "note": arguments.note, "target": Path(target_path).name,
              "draft": Path(draft_path).name, "draft_parameters": model.num_parameters(), "dtype": "bfloat16",
              "prompts_of_a_kind": arguments.prompts, "reply_tokens": arguments.tokens, "seed": arguments.seed,
              "by_width": widths}
    for width, kinds in widths.items():
        for kind, found in kinds.items():
            print(f"K={width} {kind:8} acceptance {found['acceptance']:.1%}  tokens a round "
                  f"{found['tokens_per_round']:.2f}  draft steps a round {found['draft_steps_per_round']:.2f}")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as out:
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
