"""From a target's model to a draft of its own: the recipe, and its steps in order."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .model import Plan, Shape
from .prompts import Prompt, PromptMaker
from .texts import EngineGenerator, Generator, Text, TransformersGenerator, read_texts, write_texts

GENERATORS: dict[str, Callable[[str, str, int], Generator]] = {
    "sglang": EngineGenerator, "transformers": TransformersGenerator}
_FIRST_SHARES = {"chat": 0.5, "code": 0.2, "numbers": 0.3}
_COPYING_SHARE = 0.375
_QUOTED_TEXTS = 256
"""Copying prompts quote the replies to this many first prompts, so that asking for more prompts only adds some."""


@dataclass(frozen=True)
class Options:
    """Everything that the result depends on."""

    target: str
    texts: str | None = None
    prompts: int = 2048
    reply_tokens: int = 128
    dtype: str = "bfloat16"
    generator: str = "sglang"
    seed: int = 0
    shape: Shape = field(default_factory=Shape)
    plan: Plan = field(default_factory=Plan)

    def of_the_texts(self) -> dict[str, Any]:
        """What the target's texts depend on, their number left out: more of them may be asked for later."""
        kept = ("target", "texts", "reply_tokens", "dtype", "generator", "seed")
        return {name: value for name, value in asdict(self).items() if name in kept}


def train_draft(options: Options, out: Path, work: Path) -> Path:
    """Write a draft for a target: `model.safetensors` in bfloat16, its configuration and its tokenizer.

    Args:
        options: the recipe.
        out: folder of the result; other files in it stay.
        work: folder of texts and training state, taken up where an earlier call left it.

    Returns:
        `out`.

    Raises:
        ValueError: the work folder is of another recipe, or an option is out of range.
    """
    import torch
    from transformers import AutoTokenizer

    from .data import Rows
    from .model import Training
    from .tokenizer import train_tokenizer

    work.mkdir(parents=True, exist_ok=True)
    _same_recipe(work / "recipe.json", options)
    target = AutoTokenizer.from_pretrained(options.target)
    texts = collect_texts(options, target, work)
    tokenizer = train_tokenizer(target, texts, options.shape.vocabulary)
    torch.manual_seed(options.seed)
    rows = Rows(target, tokenizer, texts, options.plan.length, options.seed)
    recipe = hashlib.sha256(repr((texts, options.shape, options.seed)).encode()).hexdigest()
    training = Training(options.shape.build(tokenizer), rows, options.plan, work / "training.pt", recipe)
    training.run()
    training.model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    last = training.losses[-50:]
    record = {**asdict(options), "target": Path(options.target).name, "texts_written": len(texts),
              "training_seconds": round(training.seconds),
              "steps": len(training.losses), "last_loss": round(sum(last) / len(last), 4)}
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    return out


def collect_texts(options: Options, tokenizer: Any, work: Path) -> list[Text]:
    """What the target writes; with the built-in prompts in two rounds, as the second quotes the first."""
    rounds = [("texts.jsonl", options.prompts)]
    if options.texts is None:
        copies = int(options.prompts * _COPYING_SHARE)
        rounds = [("texts.jsonl", options.prompts - copies), ("copies.jsonl", copies)]
    generator: Generator | None = None
    texts: list[Text] = []
    try:
        for number, (name, count) in enumerate(rounds):
            prompts = _prompts(options, count, texts[:_QUOTED_TEXTS] if number else None)
            written = read_texts(work / name)
            if len(written) < len(prompts):
                if generator is None:
                    make = GENERATORS[options.generator]
                    generator = make(options.target, options.dtype, options.reply_tokens)
                written = write_texts(work / name, prompts, tokenizer, generator, options.seed + number)
            texts += written[: len(prompts)]
    finally:
        if generator:
            generator.close()
    return texts


def _prompts(options: Options, count: int, quoted: Sequence[Text] | None) -> list[Prompt]:
    if options.texts is not None:
        lines = [line for line in Path(options.texts).read_text().splitlines() if line.strip()]
        if not lines:
            raise ValueError(f"texts: {options.texts} has no prompts; accepted is one prompt a line")
        return [Prompt("texts", "chat", line) for line in lines[:count]]
    if quoted is not None:
        maker = PromptMaker(options.seed + 1, passages=[text.reply for text in quoted])
        return [maker.make("copying") for _ in range(count)]
    maker, chance = PromptMaker(options.seed), random.Random(options.seed)
    kinds, shares = list(_FIRST_SHARES), list(_FIRST_SHARES.values())
    return [maker.make(chance.choices(kinds, shares)[0]) for _ in range(count)]


def _same_recipe(path: Path, options: Options) -> None:
    wanted = options.of_the_texts()
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=1) + "\n")
        return
    found = json.loads(path.read_text())
    different = [f"{name} {found.get(name)!r}, not {value!r}"
                 for name, value in wanted.items() if found.get(name) != value]
    if different:
        raise ValueError(f"{path.parent} holds texts of another recipe ({'; '.join(different)}): "
                         "repeat its options, or choose another --work")
