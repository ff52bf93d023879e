"""Target and draft models for UAG that are made in a test: random ones, and scripted ones that draft what comes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from scripted_model import EOS, SCRIPTS, Scripts, build_scripted_model
from transformers import LlamaConfig, LlamaForCausalLM
from uag_tokenizers import byte_level

FRAGMENTS = frozenset(("</", "think", ">", "</t", "hink", ">\n", "<t", "hin", "k>", "<th", "ink", ">x", ">q", "\n"))
"""Pieces of markers: what a tokenizer makes of a marker's text depends on its merges alone."""

SPOKEN = replace(SCRIPTS, added=sorted({p for s in SCRIPTS.sequences for p in s} - FRAGMENTS - {EOS}))
"""The scripts with words that are tokens of their own: the tokenizer then writes most of a script as the model does,
and a draft that writes the same text is right. Of P2, P3 and P4 it still makes other tokens than the model."""

_CUTS = [
    ["looplo", "loo", "looplo"],
    ["p", "loloo"],
    ["P1", "onetwo", "three</", "t", "hink>", "\n\nans", "wer", EOS],
    ["P2", "unodue", "tre", "</think>", "\nrisposta", EOS],
    ["P3", "int", "ro", "\n<think>id", "ea", "looplo"],
    ["P4", "the ", "tag ", "<t", "hink>x", "is ", "text", EOS],
    ["P5", "halfth", "ought", EOS],
]
OTHER_CUTS = Scripts(_CUTS, added=sorted({p for s in _CUTS for p in s} - {"p", "t", "<t", EOS}))
"""What SPOKEN says, cut elsewhere: no word begins and ends where the target's do."""


def build_random_model(folder: Path, seed: int = 0, hidden: int = 64, vocabulary: int = 420, spread: float = 0.3,
                       positions: int = 2048) -> Path:
    """A random Llama of two layers with a byte-level BPE of its own, which writes ASCII: as a draft of any real model
    it is hopeless, but what it writes can be translated.

    Args:
        hidden: width; heads are of 16.
        vocabulary: entries of the tokenizer, at least 258.
        spread: standard deviation of the weights; what the model writes depends on its input the more the larger.
        positions: its context.
    """
    tokenizer: Any = byte_level(vocabulary)
    tokenizer.model_max_length = positions
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
            num_attention_heads=hidden // 16, max_position_embeddings=positions, initializer_range=spread,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|end|>"), bos_token_id=None))
    written = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    with torch.no_grad():
        model.lm_head.weight[[i for i, t in enumerate(written) if not t.isalnum() or not t.isascii()]] = 0
    model.save_pretrained(folder)
    return folder


def build_spoken_model(folder: Path) -> Path:
    """A scripted target whose text a draft can foresee."""
    return build_scripted_model(folder, SPOKEN)


def build_spoken_draft(folder: Path) -> Path:
    """A draft that writes what `build_spoken_model` writes, in other tokens."""
    return build_scripted_model(folder, OTHER_CUTS)


def pad_vocabulary(model: Path, folder: Path, entries: int) -> Path:
    """A copy of a Llama checkpoint with more rows of embeddings than its tokenizer has tokens, never chosen."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            rows = torch.zeros(entries, weights[name].shape[1], dtype=weights[name].dtype)
            rows[: len(weights[name])] = weights[name]
            weights[name] = rows
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": entries}))
    return folder
