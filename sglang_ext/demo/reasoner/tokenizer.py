"""The small reasoner's tokenizer: byte-level BPE over all 256 bytes, with Qwen3's special tokens.

Digits stand alone, so that numbers are read and written one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Final

from tokenizers import AddedToken, Tokenizer

from ...training import byte_level_bpe
from . import messages, tasks

VOCABULARY: Final = 768
CONTEXT: Final = 1024
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"
_CORPUS_TEXTS: Final = 20_000
_TEMPLATE: Final = "reasoner.jinja"


def build_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on questions, thinking and English stop messages.

    Returns:
        A tokenizer of `VOCABULARY` ids; special tokens come first, then the bytes, then the merges.
    """
    specials = [AddedToken(t, special=True) for t in (END_OF_TEXT, IM_START, IM_END, THINK, END_THINK)]
    tokenizer = byte_level_bpe(_corpus(seed), VOCABULARY, specials, digits=True)
    return _with_visible_markers(tokenizer)


def _with_visible_markers(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with markers that are not special, as in Qwen3: they are shown when a text is decoded without
    special tokens. A trainer makes every token that it is given special."""
    spec = json.loads(tokenizer.to_str())
    for token in spec["added_tokens"]:
        token["special"] = token["content"] not in (THINK, END_THINK)
    return Tokenizer.from_str(json.dumps(spec))


def _corpus(seed: int) -> Iterator[str]:
    rng = Random(seed)
    for _ in range(_CORPUS_TEXTS):
        question = tasks.make_question(rng, rng.choice(list(tasks.KINDS)), rng.randint(2, tasks.MOST_TERMS))
        yield question.text
        yield question.answer
        yield "\n\n"
        yield messages.english(rng)
        yield messages.QWEN
    yield from ("system\n", "user\n", "assistant\n")


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer, its settings and the chat template as transformers and sglang read them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": IM_END, "pad_token": END_OF_TEXT,
                "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    template = files("sglang_ext.demo").joinpath(_TEMPLATE).read_text()
    (folder / "chat_template.jinja").write_text(template)
