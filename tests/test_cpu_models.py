"""Whole models on the CPU: ids of the batched attention, of sglang's `torch_native`, and of transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import servers
import torch

VOCABULARY = 384
TOKENS = 16
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3}
WINDOW = 24


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, **SMALL))


def _gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(Gemma3TextConfig(
        num_hidden_layers=4, sliding_window=WINDOW, query_pre_attn_scalar=16, **SMALL,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]))


def _gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(
        num_hidden_layers=4, sliding_window=WINDOW, query_pre_attn_scalar=16, attn_logit_softcapping=2.0,
        final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh", attn_implementation="eager", **SMALL))


def _prompts() -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(3, VOCABULARY) for _ in range(chance.choice([4, 9, 20, 40, 90]))] for _ in range(20)]


def _save(folder: Path, make: Callable[[], Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = make().float().eval()
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return model


def _save_tokenizer(folder: Path) -> None:
    """Every id a word: sglang wants a tokenizer, the tests speak in ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w0",
                            unk_token="w0").save_pretrained(folder)


def _ids(model: Path, *backends: str) -> dict[str, dict[str, list[list[int]]]]:
    done = servers.run("tests/cpu_runner.py", str(model), "float32", json.dumps(_prompts()), str(TOKENS), *backends,
                       OMP_NUM_THREADS="1", timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[list[int]]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ids by model and backend; the models run side by side, each in a process."""
    both = ("torch_native", "torch_batched")
    makers = {"llama": (_llama, both), "gemma3": (_gemma3, both), "gemma2": (_gemma2, both[1:])}
    folder = tmp_path_factory.mktemp("models")
    models = {name: _save(folder / name, make) for name, (make, _) in makers.items()}
    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(_ids, folder / name, *backends) for name, (_, backends) in makers.items()}
        return {"folder": folder, "models": models, **{name: run.result() for name, run in runs.items()}}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_ids_equal_those_of_torch_native(found: dict[str, Any], name: str) -> None:
    """20 prompts of 4 to 90 ids, in one batch, alone, and with half of the shortest cached."""
    ids = found[name]
    assert ids["torch_batched"] == ids["torch_native"]
    assert ids["torch_batched"]["cached"] == ids["torch_batched"]["together"]
    assert len({tuple(row) for row in ids["torch_batched"]["together"]}) > 10, "the model says the same to everyone"


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma2"])
def test_ids_equal_those_of_transformers(found: dict[str, Any], name: str) -> None:
    """Gemma 2 caps its scores, which torch_native does not do."""
    expected = []
    for prompt in _prompts():
        out = found["models"][name].generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False,
                                             eos_token_id=None, pad_token_id=0)
        expected.append(out[0, len(prompt):].tolist())
    assert found[name]["torch_batched"]["together"] == expected


@pytest.mark.served
def test_ngram_speculation_serves_the_same_ids(found: dict[str, Any]) -> None:
    """The second time, the corpus knows the answers, so drafts are accepted."""
    flags = ("--dtype", "float32", "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6",
             "--skip-server-warmup")
    server = servers.launch("--model-path", str(found["folder"] / "llama"), *flags, OMP_NUM_THREADS="1")
    try:
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        bodies = [{"input_ids": prompt, "sampling_params": sampling} for prompt in _prompts()]
        for _ in range(2):
            answers = server.generate_all(bodies)
            assert [answer["output_ids"] for answer in answers] == found["llama"]["torch_batched"]["together"]
        assert sum(answer["meta_info"]["spec_verify_ct"] for answer in answers) < len(bodies) * TOKENS // 2
    finally:
        server.stop()


@pytest.mark.served
def test_the_graph_runner_serves_the_same_ids(found: dict[str, Any]) -> None:
    """A traced batch size that fits, and three requests padded to four."""
    flags = ("--dtype", "float32", "--enable-torch-compile", "--cuda-graph-bs-decode", "1", "4",
             "--skip-server-warmup")
    server = servers.launch("--model-path", str(found["folder"] / "llama"), *flags, OMP_NUM_THREADS="1")
    try:
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        expected = found["llama"]["torch_batched"]["together"]
        for count in (1, 3):
            bodies = [{"input_ids": prompt, "sampling_params": sampling} for prompt in _prompts()[:count]]
            answers = server.generate_all(bodies)
            assert [answer["output_ids"] for answer in answers] == expected[:count]
        assert "Capture target decode CPU graph end" in server.log.read_text(errors="replace")
    finally:
        server.stop()


REFUSALS = """
from types import SimpleNamespace
import sglang_ext, torch
from sglang_ext.cpu.attention import _refuse
layer = dict(is_cross_attention=False, logit_cap=0.0, logit_capping_method="tanh", xai_temperature_len=-1,
             use_irope=False)
runner = dict(page_size=1, use_mla_backend=False, kv_cache_dtype=torch.bfloat16,
              model_config=SimpleNamespace(attention_chunk_size=8, context_len=64))
for changed in ({}, {"page_size": 16}, {"use_mla_backend": True}, {"kv_cache_dtype": torch.float8_e5m2},
                {"is_cross_attention": True}, {"logit_cap": 30.0, "logit_capping_method": "rcp"},
                {"xai_temperature_len": 8}, {"use_irope": True}):
    of_layer = {k: v for k, v in changed.items() if k in layer}
    try:
        _refuse(SimpleNamespace(**{**runner, **{k: v for k, v in changed.items() if k in runner}}),
                [SimpleNamespace(**{**layer, **of_layer})])
        print("serves")
    except ValueError as error:
        print(error)
"""


def test_what_cannot_be_served_is_refused_by_name() -> None:
    done = servers.run("-c", REFUSALS, SGLANG_USE_CPU_ENGINE="1")
    assert done.returncode == 0, done.stderr[-2000:]
    serves, *refused = done.stdout.splitlines()
    assert serves == "serves"
    needed = ("a page size of 1 (given 16)", "latent attention", "cache in the model's dtype", "no cross attention",
              "tanh", "temperature by position", "chunked local attention")
    assert len(refused) == len(needed)
    for message, reason in zip(refused, needed, strict=True):
        assert reason in message
        assert "torch_native" in message
