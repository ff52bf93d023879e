"""Train a small draft model, with a tokenizer of its own, on what a target writes.

    python -m sglang_ext.uag.train --target T --out DIR [--texts FILE] [--prompts N] [--steps N] [--seed N]

The target continues prompts (a file's lines, or built-in ones), a byte-level tokenizer is learned from that, and a
Llama of two layers is trained on it. Interrupt it whenever you like: the same command goes on where it was. Its state
lies in DIR-work, which can be removed once DIR is there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .draft import GENERATORS, Options, train_draft
from .model import Plan, Shape


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: accepted are integers from 1")
    return value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    options, shape, plan = Options(target=""), Shape(), Plan()
    parser = argparse.ArgumentParser(prog="python -m sglang_ext.uag.train", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", required=True, help="folder or name of the target model")
    add("--out", required=True, type=Path, help="folder of the draft")
    add("--work", type=Path, help="folder of the state between starts (default: OUT-work)")
    add("--texts", help="file of prompts, one a line (default: built-in prompts)")
    add("--prompts", type=_positive, default=options.prompts, help="most prompts to continue (default: %(default)s)")
    add("--reply-tokens", type=_positive, default=options.reply_tokens, help="tokens of a reply (default: %(default)s)")
    add("--generator", choices=sorted(GENERATORS), default=options.generator,
        help="sglang is fast, transformers repeats itself to the bit (default: %(default)s)")
    add("--dtype", choices=["bfloat16", "float16", "float32"], default=options.dtype, help="of the target")
    add("--seed", type=int, default=options.seed)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_positive, help="length of the training in steps")
    length.add_argument("--minutes", type=float, default=plan.minutes,
                        help="length of the training in time (default: %(default)s)")
    add("--batch", type=_positive, default=plan.batch, help="rows of 1,024 tokens a step (default: %(default)s)")
    add("--drills", type=_positive, default=plan.drills,
        help="first steps that practise copying alone (default: %(default)s)")
    for name in ("vocabulary", "hidden", "feed-forward", "layers", "heads"):
        add(f"--{name}", type=_positive, default=getattr(shape, name.replace("-", "_")), help="default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    a = parse(argv)
    shape = Shape(a.vocabulary, a.hidden, a.feed_forward, a.layers, a.heads)
    plan = Plan(steps=a.steps or 0, minutes=a.minutes, batch=a.batch, drills=a.drills)
    options = Options(a.target, a.texts, a.prompts, a.reply_tokens, a.dtype, a.generator, a.seed, shape, plan)
    work = a.work or a.out.with_name(a.out.name + "-work")
    try:
        print(train_draft(options, a.out, work))
    except ValueError as error:
        print(f"train_draft: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"train_draft: interrupted; the same command goes on from {work}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
