"""A tiny Llama checkpoint whose next token is a function of the last one: every response is known beforehand.

Embeddings are unit vectors, attention and MLP write nothing, and the output matrix is the table of successors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import told_model as told
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN = 512
KEYS, RECALLS = 384, 432
"""Where the dimensions begin that no id has: of pieces to be remembered, and of what is recalled."""
EOS = told.EOS
TURN = "<|turn|>"
MERGES = ["< /", "t h", "th i", "thi n", "thin k", "> Ċ", "Ċ Ċ", "a n", "an s", "ans w", "answ e", "answe r",
          "< t", "</ t", "l o", "lo o", "loo p"]


def byte_level(text: str) -> str:
    """A text as byte-level BPE writes it."""
    return text.replace("\n", "Ċ").replace(" ", "Ġ")


@dataclass(frozen=True)
class Scripts:
    """Sequences of pieces; the model follows a script from any of its pieces on.

    Attributes:
        sequences: each piece is followed by the next; a piece that occurs twice keeps its first successor.
        special: pieces that are special tokens.
        added: pieces that are added tokens but not special, as Qwen3's markers are: decoding shows them.
        eos: ends a response.
        words: texts that the tokenizer writes as one piece each; those with a common beginning one behind the other.
        recalls: `(seen, last, next)`: where `seen` stands in the context, `last` is followed by `next`; of several that
            fit, the last one.
    """

    sequences: Sequence[Sequence[str]]
    special: Sequence[str] = ()
    added: Sequence[str] = ()
    eos: str = EOS
    words: Sequence[str] = ()
    recalls: Sequence[tuple[str, str, str]] = ()


def build_scripted_model(folder: Path, scripts: Scripts, template: str | None = None) -> Path:
    """Write checkpoint and tokenizer into `folder`."""
    tokenizer = _tokenizer(scripts)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    _write_weights(folder, vocabulary, scripts)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": HIDDEN, "hidden_size": HIDDEN, "intermediate_size": 80, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "eos_token_id": vocabulary[scripts.eos], "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": scripts.eos, "model_max_length": 2048}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _tokenizer(scripts: Scripts) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(alphabet)}
    words = [byte_level(word) for word in scripts.words]
    merges = list(dict.fromkeys(f"{w[:n]} {w[n]}" for w in words for n in range(1, len(w)))) if words else MERGES
    for merge in merges:
        vocabulary.setdefault(merge.replace(" ", ""), len(vocabulary))
    for piece in (p for sequence in scripts.sequences for p in sequence):
        if piece not in (scripts.eos, TURN, *scripts.special, *scripts.added):
            vocabulary.setdefault(byte_level(piece), len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in (scripts.eos, TURN, *scripts.special)])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in scripts.added])
    return tokenizer


def _write_weights(folder: Path, vocabulary: Mapping[str, int], scripts: Scripts) -> None:
    successor = {i: vocabulary[scripts.eos] for i in range(HIDDEN)}
    known: set[int] = set()
    for sequence in scripts.sequences:
        ids = [_id(vocabulary, p) for p in sequence]
        for a, b in pairwise(ids):
            if a not in known:
                successor[a] = b
                known.add(a)
    head = torch.zeros(HIDDEN, HIDDEN)
    for a, b in successor.items():
        head[b, a] = 1.0
    zeros = {
        "self_attn.q_proj": (512, HIDDEN), "self_attn.k_proj": (128, HIDDEN), "self_attn.v_proj": (128, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 512), "mlp.gate_proj": (80, HIDDEN), "mlp.up_proj": (80, HIDDEN),
        "mlp.down_proj": (HIDDEN, 80),
    }
    weights = {f"model.layers.0.{name}.weight": torch.zeros(shape) for name, shape in zeros.items()}
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        weights[f"{name}.weight"] = torch.ones(HIDDEN)
    weights["model.embed_tokens.weight"] = torch.eye(HIDDEN)
    weights["lm_head.weight"] = head
    _write_recalls(weights, vocabulary, scripts.recalls)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _id(vocabulary: Mapping[str, int], piece: str) -> int:
    return vocabulary[piece] if piece in vocabulary else vocabulary[byte_level(piece)]


def _write_recalls(weights: dict[str, torch.Tensor], vocabulary: Mapping[str, int],
                   recalls: Sequence[tuple[str, str, str]]) -> None:
    """Attention takes the mean of the context, whose share of a key the MLP multiplies with the last piece."""
    keys = {piece: n for n, piece in enumerate(dict.fromkeys(seen for seen, _, _ in recalls))}
    assert len(vocabulary) <= KEYS, "the vocabulary is too large"
    assert len(keys) <= RECALLS - KEYS, "too much to remember"
    assert len(recalls) <= HIDDEN - RECALLS, "too much to recall"
    if recalls:
        weights["lm_head.weight"][:, KEYS:] = 0
    layer = {name: weights[f"model.layers.0.{name}.weight"] for name in (
        "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
    for piece, n in keys.items():
        layer["self_attn.v_proj"][n, _id(vocabulary, piece)] = 1.0
        layer["self_attn.o_proj"][KEYS + n, n] = 1.0
    for n, (seen, last, following) in enumerate(recalls):
        layer["mlp.gate_proj"][n, _id(vocabulary, last)] = 10.0
        layer["mlp.up_proj"][n, KEYS + keys[seen]] = 1.0
        layer["mlp.down_proj"][RECALLS + n, n] = 4.0 ** sum(last == other for _, other, _ in recalls[:n])
        weights["lm_head.weight"][_id(vocabulary, following), RECALLS + n] = 1000.0


SCRIPTS = Scripts(
    [
        # thinks for ever
        ["loop", "lo", "loo", "loop"],
        # thinks three tokens, ends in three pieces, answers
        ["P1", "one", "two", "three", "</", "think", ">", "\n\n", "answer", EOS],
        # the end marker's last piece is merged with a line feed
        ["P2", "uno", "due", "tre", "</t", "hink", ">\n", "risposta", EOS],
        # opens a block by itself at the start of a line
        ["P3", "intro", "\n", "<t", "hin", "k>", "idea", "loop"],
        # mentions the start marker in the middle of a line: text, not a block
        ["P4", "the tag ", "<th", "ink", ">x", "is text", EOS],
        # wants to stop while thinking
        ["P5", "half", "thought", EOS],
        # after an end, writes the end marker again
        ["Q", ">q"],
    ]
)
TOLD_TOO = Scripts([*SCRIPTS.sequences, *told.SEQUENCES])
"""The scripts, and those that a prompt's last character chooses: one checkpoint serves both."""
