"""Weights in oneDNN's layout: the same results, whatever is done to the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import servers
import torch

needs_bfloat16 = pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                                    reason="oneDNN has no bfloat16 products on this processor")

LAYER = """
import json
from types import SimpleNamespace
import sglang_ext, torch
from torch.nn.functional import linear
from sglang_ext.cpu import packed
from sglang_ext.cpu.packed import PackedHeadMethod, PackedLinearMethod, pack_weights

torch.manual_seed(0)
found = {}
for method in (PackedLinearMethod(), PackedHeadMethod()):
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(70, 33, dtype=torch.bfloat16), requires_grad=False)
    bias = torch.randn(70, dtype=torch.bfloat16)
    inputs = {shape: torch.randn(*shape, dtype=torch.bfloat16)[..., :33] for shape in
              ((1, 33), (5, 33), (5, 40), (0, 33), (200, 33), (2, 3, 33))}  # (5, 40) is strided

    def equal():
        plain = [(x, linear(x, layer.weight), linear(x, layer.weight, bias)) for x in inputs.values()]
        return all(torch.allclose(method.apply(layer, x), a, rtol=0.01, atol=0.02)
                   and torch.allclose(method.apply(layer, x, bias), b, rtol=0.01, atol=0.02) for x, a, b in plain)

    steps = {"unpacked": equal()}
    method.process_weights_after_loading(layer)
    steps["packed"], steps["copy"] = equal(), method._copy is not None
    layer.weight.data.copy_(torch.randn(70, 33))
    steps["stale"] = equal()
    method.process_weights_after_loading(layer)
    steps["again"] = equal()
    method.restore_weights_before_loading(layer)
    layer.weight.data.copy_(torch.randn(70, 33))
    steps["loading"] = equal()
    method.process_weights_after_loading(layer)
    layer.weight = torch.nn.Parameter(torch.randn(70, 33, dtype=torch.bfloat16), requires_grad=False)
    steps["replaced"] = equal()
    layer.weight.data = layer.weight.data.float()
    steps["float32"] = torch.equal(method.apply(layer, torch.ones(2, 33)), linear(torch.ones(2, 33), layer.weight))
    found[type(method).__name__] = steps
layers = [torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16) for _ in range(3)]
packed._candidates = lambda runner: [(layer, PackedLinearMethod()) for layer in layers]
packed._budget = lambda runner: 2 * layers[0].weight.nbytes + 1
runner = SimpleNamespace(server_args=SimpleNamespace(enable_lora=False))
found["bytes"] = pack_weights(runner)
found["fitting"] = [hasattr(layer, "quant_method") for layer in layers]
found["lora"] = pack_weights(SimpleNamespace(server_args=SimpleNamespace(enable_lora=True)))
print(json.dumps(found))
"""


@needs_bfloat16
def test_a_packed_layer_is_equal_to_a_plain_one() -> None:
    """But for the order of sums: rows none, one and many, strided, with and without bias."""
    done = servers.run("-c", LAYER, SGLANG_USE_CPU_ENGINE="1", timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {"unpacked": True, "packed": True, "copy": True, "stale": False, "again": True, "loading": True,
                "replaced": True, "float32": True}
    assert found.pop("PackedLinearMethod") == found.pop("PackedHeadMethod") == expected
    assert found == {"bytes": 2 * 8 * 8 * 2, "fitting": [True, True, False], "lora": 0}, "memory for two of three"


MODEL = """
import json, sys
sys.path.insert(0, "tests")
from cpu_runner import CpuRunner
import torch
from safetensors.torch import load_file
from sglang_ext.cpu import packed

first, second, dtype, *flags = sys.argv[1:]
runner = CpuRunner(first, dtype, *flags)
model = runner.runner.model
prompts = [[5, 6, 7, 8, 9], [300, 200, 100]]

def layers():
    return [layer for layer in model.modules() if isinstance(getattr(layer, "quant_method", None), packed._Packed)]

def state():
    copies = [layer.quant_method._copy for layer in layers()]
    if all(copy is None for copy in copies):
        return "originals"
    same = all(torch.equal(copy.to_dense(), layer.weight) for copy, layer in zip(copies, layers(), strict=True))
    return "copies" if same else "stale copies"

def served():
    return [state(), runner.greedy(prompts, 8)]

names = [type(layer.quant_method).__name__ for layer in layers()]
out = {"linear": names.count("PackedLinearMethod"), "head": names.count("PackedHeadMethod"),
       "again": packed.pack_weights(runner.runner)}
if names:
    updater = runner.runner.weight_updater
    out["first"] = served()
    assert updater.update_weights_from_disk(second, "auto")[0]
    out["from_disk"] = served()
    tensors = list(load_file(first + "/model.safetensors").items())
    updater.begin_weight_update()
    updater.update_weights_from_tensor(tensors[:3])
    out["half_way"] = served()
    updater.update_weights_from_tensor(tensors[3:])
    updater.end_weight_update(run_post_load=True)
    out["from_tensor"] = served()
    packed.free_memory = lambda: 0
    out["budget_without_memory"] = packed._budget(runner.runner)
print(json.dumps(out))
"""


def _run(first: Path, second: Path, *flags: str) -> dict[str, Any]:
    done = servers.run("-c", MODEL, str(first), str(second), *flags, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of a kind whose head is the embedding, and one with a head of its own; bfloat16."""
    from test_cpu_models import SMALL, _save
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("packed")
    for seed, name in enumerate(("tied", "tied_too", "untied")):
        config = LlamaConfig(num_hidden_layers=2, tie_word_embeddings=name != "untied", **SMALL)
        _save(folder / name, lambda config=config: LlamaForCausalLM(config), seed).bfloat16().save_pretrained(
            folder / name)
    return {name: folder / name for name in ("tied", "tied_too", "untied")}


@needs_bfloat16
def test_packed_weights_follow_updates(models: dict[str, Path]) -> None:
    """From disk and from tensors, and between them, with an embedding that is also the head."""
    found = _run(models["tied"], models["tied_too"], "bfloat16")
    assert (found["linear"], found["head"]) == (8, 1)
    assert found["again"] == 0, "packed twice"
    assert found["first"] == found["from_tensor"]
    assert found["first"][0] == found["from_disk"][0] == "copies"
    assert found["first"][1] != found["from_disk"][1]
    assert found["half_way"][0] == "originals"
    assert found["budget_without_memory"] == 0


@needs_bfloat16
def test_a_head_of_its_own_is_packed(models: dict[str, Path]) -> None:
    found = _run(models["untied"], models["untied"], "bfloat16")
    assert (found["linear"], found["head"]) == (8, 1)
    assert found["first"][0] == "copies"


def test_float32_stays_as_it_is(models: dict[str, Path]) -> None:
    assert _run(models["tied"], models["tied"], "float32") == {"linear": 0, "head": 0, "again": 0}
