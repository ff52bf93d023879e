"""`uag`: drafts of another tokenizer and of the text against no speculation, NGRAM, and transformers' assisted
generation."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from ..uag.train.prompts import KINDS, PromptMaker
from . import BenchError, common, servers
from .batch import send
from .models import Served, resolve
from .options import choices, whole, wholes
from .record import Run
from .uag_page import HF, HF_ASSISTED, HF_PLAIN, PLAIN, REPORT, UAG, page

__all__ = ["FULL", "HELP", "QUICK", "add_flags", "check", "measure", "page"]

HELP = "draft pairs against no speculation, NGRAM and transformers' assisted generation"
QUICK = {"batches": [1, 4], "repeats": 1, "new": 48}
FULL = {"batches": [1, 4, 8, 16], "repeats": 2, "new": 128}
NGRAM, FIXED, MODEL_ALONE, TEXT_ALONE = "ngram", "uag-fixed", "uag-draft", "uag-text"
PAIRED = {UAG: [], MODEL_ALONE: ["--uag-sources", "draft"], FIXED: ["--uag-lengths", "fixed"]}
"""Ways with a draft model, and their flags."""
WAYS = (PLAIN, NGRAM, UAG, MODEL_ALONE, TEXT_ALONE, FIXED, HF)
COUNTING = "counting"
"""Kind of prompt: a list of numbers that goes on, as plain text. What small drafts foresee best."""
DRAWS = 50
"""Most tries for a prompt that was not there before."""
LEAST = 4
"""Least prompts of each kind in a load that counts."""
Prompts = dict[tuple[int, int], list[tuple[str, str]]]
"""Kind and text of the prompts of a load, by its batch size and repeat: as many of each kind as go into a batch, or
a few batches if they are small."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser, demo="smollm2")
    parser.add_argument("--draft", action="append", default=[], metavar="D",
                        help="folder of a draft model; may be given more than once, each is a pair with the model")
    parser.add_argument("--ways", type=choices(*WAYS), metavar="W,W,...", default=list(WAYS),
                        help=f"what is measured; {UAG} drafts from the model and from the text, {MODEL_ALONE} and "
                             f"{TEXT_ALONE} from one of them, {FIXED} as much as it may, always (default: "
                             f"{','.join(WAYS)})")
    parser.add_argument("--draft-tokens", type=whole(2), default=8, metavar="K",
                        help="positions of a verification (default: %(default)s)")
    parser.add_argument("--batches", type=wholes(1), metavar="N,N,...", help="requests at a time (default: 1 to 16)")
    parser.add_argument("--new", type=whole(2), metavar="N", help="tokens of a response (128; quick: 48)")
    parser.add_argument("--repeats", type=whole(1), metavar="N",
                        help="servers of each kind, in turn, with a load of each size after one to warm up (2; quick: "
                             "1)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the prompts (default: %(default)s)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    if {*PAIRED, HF} & set(args.ways) and not args.draft and not args.url:
        raise BenchError(f"--draft: none is given; accepted with --ways {','.join(args.ways)}: the folder of a draft "
                         f"model. Without one: --ways {PLAIN},{NGRAM},{TEXT_ALONE}")
    for draft in args.draft:
        if not (Path(draft) / "config.json").is_file():
            raise BenchError(f"--draft: {draft!r} has no config.json; accepted: the folder of a model")


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every row to `record`.

    Raises:
        BenchError: a server failed.
    """
    if args.url:
        record.server("server", "", servers.facts(args.url))
        _batches(args, record, args.url, "server", _prompts(args, None), range(args.repeats + 1))
        return
    served = resolve(args.demo, args.model_path, args.server_flags)
    prompts = _prompts(args, served)
    for repeat in range(1, args.repeats + 1):  # each on a server of its own: two starts of one server differ
        for name, flags in plan(args).items():
            log = record.log(f"{name.replace(' ', '-')}-{repeat}")
            with servers.serving("ours", [*served.flags, *flags], log) as server:
                record.server(name, server.command, servers.facts(server.url))
                _batches(args, record, server.url, name, prompts, (0, repeat))
    if HF in args.ways:
        _transformers(args, record, served, prompts)


def plan(args: argparse.Namespace) -> dict[str, list[str]]:
    """Flags of each server, by the name of what it does."""
    width = ["--speculative-num-draft-tokens", str(args.draft_tokens)]
    out: dict[str, list[str]] = {PLAIN: []} if PLAIN in args.ways else {}
    if NGRAM in args.ways:
        out[NGRAM] = ["--speculative-algorithm", "NGRAM", *width]
    if TEXT_ALONE in args.ways:
        out[TEXT_ALONE] = ["--speculative-algorithm", "UAG", "--uag-sources", "text", *width]
    for way, flags in PAIRED.items():
        if way in args.ways:
            out |= {_pair(way, draft): ["--speculative-algorithm", "UAG", "--speculative-draft-model-path", draft,
                                        *width, *flags] for draft in args.draft}
    return out


def _pair(way: str, draft: str) -> str:
    return f"{way} {Path(draft).name}"


def _prompts(args: argparse.Namespace, served: Served | None) -> Prompts:
    """Kind and text of the prompts of every load, in the model's template where its tokenizer is at hand.

    No load has a prompt of another, as NGRAM learns from every response.
    """
    tokenizer = None
    if served is not None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(served.path)
    maker, chance, seen = PromptMaker(args.seed, held_out=True), random.Random(args.seed), set()

    def made(kind: str) -> tuple[str, str]:
        """A prompt, and what is sent."""
        if kind == COUNTING:
            text = counting(chance)
            return text, text
        prompt = maker.make(kind)
        return prompt.text, prompt.render(tokenizer) if tokenizer else prompt.text

    def fresh(kind: str) -> str:
        for _ in range(DRAWS):
            text, sent = made(kind)
            if text not in seen:
                break
        seen.add(text)
        return sent

    def load(size: int, repeat: int) -> list[tuple[str, str]]:
        each = -(-LEAST // size) * size if repeat else size
        return [(kind, fresh(kind)) for kind in (*KINDS, COUNTING) for _ in range(each)]

    return {(size, repeat): load(size, repeat) for size in args.batches for repeat in range(args.repeats + 1)}


def counting(chance: random.Random) -> str:
    """The start of a list of numbers, each one more than the last."""
    first, name = chance.randint(1, 400), chance.choice(("Numbers", "Pages", "Rows", "Count", "Lines"))
    return f"{name}: " + " ".join(f"{first + i}," for i in range(10))


def _batches(args: argparse.Namespace, record: Run, url: str, way: str, prompts: Prompts,
             repeats: Sequence[int]) -> None:
    """Batches of each kind of prompt, for every size in each of these repeats; repeat 0 warms up."""
    params = {"temperature": 0, "max_new_tokens": args.new, "ignore_eos": True}
    loads = [(size, repeat) for repeat in repeats for size in args.batches]
    for size, repeat in tqdm(loads, desc=f"{way}, repeat {repeats[-1]}", unit="load"):
        asked = prompts[size, repeat]
        for first in range(0, len(asked), size):
            part = asked[first : first + size]
            done = send(url + "/generate", [{"text": text, "sampling_params": params} for _, text in part])
            if repeat:
                record.add("batch", way=way, size=size, repeat=repeat, seconds=done.seconds,
                           responses=[_response(kind, text, reply) for (kind, text), reply
                                      in zip(part, done.responses, strict=True)])


def _response(kind: str, prompt: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    meta = reply["meta_info"]
    spec = {name: value for name, value in meta.items() if name.startswith("spec_")}
    return {"kind": kind, "prompt": prompt, "text": reply["text"], "tokens": meta["completion_tokens"], **spec,
            **({REPORT: meta[REPORT]} if REPORT in meta else {})}


def _transformers(args: argparse.Namespace, record: Run, served: Served, prompts: Prompts) -> None:
    """One prompt at a time: assisted generation with another tokenizer takes no more."""
    from .assisted import Assisted

    size = min(args.batches)
    for name, draft in ((HF_PLAIN, None), *((_pair(HF_ASSISTED, d), d) for d in args.draft)):
        model = Assisted.load(str(served.path), draft, args.draft_tokens)
        asked = [(repeat, *prompt) for repeat in range(args.repeats + 1) for prompt in prompts[size, repeat][::size]]
        for repeat, kind, text in tqdm(asked, desc=name, unit="prompt"):
            made = model.generate(text, args.new)
            if repeat:
                record.add("batch", way=name, size=1, repeat=repeat, seconds=made.seconds, responses=[
                    {"kind": kind, "prompt": text, "text": made.text, "tokens": made.tokens,
                     "spec_verify_ct": made.forwards if draft else None}])
