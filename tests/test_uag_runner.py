"""The draft's own runner: how its pool is sized, and how requests take and give back its slots."""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import servers
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from uag_models import build_random_model

from sglang_ext.uag import draft_runner
from sglang_ext.uag.draft_pool import DraftPool
from sglang_ext.uag.draft_runner import DraftRunner
from sglang_ext.uag.pair import draft_attention

DRAFT_BYTES = 2 * 2 * 2 * 16 * 4  # of keys and values of a token: 2 layers of 2 heads of 16 in float32
TARGET_BYTES = 2 * 2 * 4 * 16 * 4


def pool_of(tokens: int, width: int, page: int = 1, context: int = 1000, rows: int = 4) -> DraftPool:
    """A pool with sglang's allocator, and a table of `width` positions."""
    kinds = {"dtype": torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
    allocator = (TokenToKVPoolAllocator(tokens, **kinds) if page == 1
                 else PagedTokenToKVPoolAllocator(tokens, page_size=page, **kinds))
    return DraftPool(allocator, torch.zeros(rows + 1, width, dtype=torch.int32), page, tokens, rows, context)


def reserved(pool: DraftPool, length: int) -> bool:
    row = pool.open()
    assert row is not None
    return pool.reserve(row, length)


@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_row_can_be_as_long_as_the_context(page: int) -> None:
    pool = pool_of(tokens=512, width=104, page=page, context=100)
    row = pool.open()
    assert row is not None
    assert all(pool.reserve(row, length) for length in range(1, 101))
    assert not pool.reserve(row, 101)
    slots = pool.table[row.index, :100].tolist()
    assert len(set(slots)) == 100
    assert all(b - a == 1 for a, b in pairwise(slots) if b % page)
    pool.close(row)
    assert pool.idle


@pytest.mark.parametrize(("page", "tokens"), [(1, 70), (16, 80)])
def test_a_nearly_full_pool_gives_what_is_needed(page: int, tokens: int) -> None:
    pool = pool_of(tokens, width=200, page=page)
    assert reserved(pool, 64)
    assert reserved(pool, 6)
    assert not reserved(pool, 1 + tokens - 64 - (6 if page == 1 else page))


def test_a_row_grows_in_blocks() -> None:
    pool = pool_of(tokens=512, width=200)
    row = pool.open()
    assert row is not None
    assert pool.reserve(row, 1)
    assert row.slots == 64
    assert pool.reserve(row, 65)
    assert row.slots == 128


@pytest.mark.parametrize("page", [1, 16])
def test_no_slot_has_two_owners_and_none_is_lost(page: int) -> None:
    pool, draw = pool_of(tokens=320, width=132, page=page, context=130), random.Random(page)
    rows: list[Any] = []
    refused = 0
    for _ in range(2000):
        if rows and draw.random() < 0.2:
            pool.close(rows.pop(draw.randrange(len(rows))))
        elif (row := pool.open()) is not None:
            rows.append(row)
        for row in rows:
            refused += not pool.reserve(row, min(row.slots + draw.randrange(40), 130))
        held = [slot for row in rows for slot in pool.table[row.index, : row.slots].tolist()]
        assert len(set(held)) == len(held)
        pages = len({slot // page for slot in held})
        assert pages * page + pool._allocator.available_size() == 320
    assert refused
    for row in rows:
        pool.close(row)
    assert pool.idle


def test_the_draft_is_served_with_a_backend_that_fits() -> None:
    assert draft_attention(None, "fa3", latent=False) == draft_attention(None, "fa3", latent=True) == "fa3"
    assert draft_attention(None, "torch_batched", latent=False) == "torch_batched"
    assert draft_attention(None, "flashmla", latent=True) == "flashmla"
    assert draft_attention("flashinfer", "flashmla", latent=False) == "flashinfer"


@pytest.mark.parametrize(("target", "latent"), [("flashmla", False), ("trtllm_mla", False), ("trtllm_mha", True),
                                                ("dsa", True), ("dsa", False)])
def test_a_backend_of_another_attention_is_replaced(target: str, latent: bool,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    assert draft_attention(None, target, latent=latent) == "triton"
    assert target in caplog.text
    assert "--speculative-draft-attention-backend" in caplog.text


def test_a_named_backend_that_cannot_serve_the_draft_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--speculative-draft-attention-backend flashmla.*accepted: triton"):
        draft_attention("flashmla", "flashmla", latent=False)


@pytest.mark.parametrize(("named", "quantization"), [(True, "fp8"), (False, None)])
def test_the_draft_is_quantized_where_the_operator_says_so(named: bool, quantization: str | None,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """sglang fills in the target's `--quantization` for a draft that none was named for."""
    given = SimpleNamespace(
        speculative_draft_model_path="d", speculative_draft_model_revision=None, trust_remote_code=False, dtype="auto",
        model_impl="auto", sampling_defaults="model", speculative_draft_model_quantization="fp8",
        _speculative_draft_quantization_explicitly_set=named)
    monkeypatch.setattr(draft_runner, "resolving_view", lambda server_args: given)
    monkeypatch.setattr(draft_runner, "ModelConfig", lambda **settings: settings)
    assert draft_runner._model_config(None)["quantization"] == quantization


def main(target: str, draft: str, *flags: str) -> None:
    """Load both models as a server does, and print what the draft's pool is given."""
    import sglang_ext.cpu

    sglang_ext.cpu.register_attention()
    from sglang.benchmark import one_batch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    from sglang_ext.uag.pair import Pair, free_memory

    load_plugins()
    args = prepare_server_args([
        "--model-path", target, "--dtype", "float32", "--device", "cpu", "--attention-backend", "torch_native",
        "--max-running-requests", "100000", "--speculative-algorithm", "UAG", "--speculative-draft-model-path", draft,
        *flags])
    args.resolve_once()
    publish(args, role="scheduler",
            ranks=SpawnRanks(world_rank=one_batch.spawn_world_rank(args, tp_rank=0, pp_rank=0), gpu_id=0))
    one_batch._init_process_global_configs()
    port = PortArgs.init_new(args).nccl_port
    bootstrap.init_parallel_runtime(server_args=args, device="cpu", dist_port=port)
    bootstrap.init_layer_runtime(model_config=ModelConfig.from_server_args(args))
    worker = TpModelWorker(server_args=args, gpu_id=0, nccl_port=port)
    pair, runner = Pair.load(worker.tokenizer, worker.model_runner.model_config), DraftRunner(args, 0, port, 1)
    memory = psutil.virtual_memory()
    psutil.virtual_memory = lambda: memory  # what else runs on this machine must not change between two looks
    tokens, model = pair.pool_tokens(worker.model_runner, runner, free_memory(worker.model_runner)), worker.model_runner
    free = model.kv_cache_configurator._profile_available_bytes(model.pre_model_load_memory) if not flags else 0
    runner.allocate(min(tokens, 128), 3)
    print(json.dumps({"tokens": tokens, "ratio": pair.draft_tokens_per_target_token, "free": free,
                      "pool": runner.pool.tokens, "rows": runner.pool.rows, "idle": runner.pool.idle,
                      "context": runner.context_len}))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folders = [tmp_path_factory.mktemp(name) for name in ("target", "draft")]
    build_random_model(folders[0])
    build_random_model(folders[1], hidden=32, vocabulary=300)
    return list(map(str, folders))


def loaded(models: list[str], *flags: str) -> tuple[dict[str, Any], str]:
    done = servers.run("tests/test_uag_runner.py", *models, *flags, timeout=200, PYTHONPATH="tests",
                       SGLANG_USE_CPU_ENGINE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_both_pools_share_what_is_free(models: list[str]) -> None:
    """As much text in the draft's pool as in the target's, in all of what is free when both models are loaded."""
    found, log = loaded(models)
    text = found["tokens"] / (1.1 * found["ratio"])
    assert found["tokens"] * DRAFT_BYTES + text * TARGET_BYTES == pytest.approx(found["free"], rel=0.05)
    assert found["ratio"] > 1.05
    assert (found["pool"], found["rows"], found["idle"], found["context"]) == (128, 3, True, 2048)
    assert "hardly anything will be drafted" in log


def test_the_pool_follows_a_given_size(models: list[str]) -> None:
    found, _ = loaded(models, "--max-total-tokens", "4096")
    assert found["tokens"] == int(4096 * 1.1 * found["ratio"])


if __name__ == "__main__":
    main(*map(str, map(Path, sys.argv[1:3])), *sys.argv[3:])
