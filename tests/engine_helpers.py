"""Helpers of a UAG step that need sglang, ready to be called on a device, as those of `step_helpers`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from step_helpers import VOCAB, WIDTH, Call, N, ids

from sglang_ext.uag.decode_loop import greedy
from sglang_ext.uag.draft import Draft
from sglang_ext.uag.draft_pool import DraftPool, DraftRow
from sglang_ext.uag.draft_runner import DraftRunner
from sglang_ext.uag.verify import sample

STEPS = 3


def pool_on(device: str) -> DraftPool:
    allocator = SimpleNamespace(alloc=lambda size: torch.arange(size, device=device), free=lambda slots: None)
    return DraftPool(allocator, ids(device, N + 1, 99, dtype=torch.int32), 1, 999, N, 99)


def runner_on(device: str) -> DraftRunner:
    """The draft's runner; its model writes zeros."""
    def forward(batch: Any) -> Any:
        logits = torch.zeros(batch.batch_size, VOCAB, device=device)
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))

    runner = DraftRunner.__new__(DraftRunner)
    model: Any = SimpleNamespace(forward=forward, model_config=SimpleNamespace(model_is_mrope=False),
                                 kv_index_translator=SimpleNamespace(bind_own_plan=lambda batch: None))
    runner.runner, runner.device, runner.vocab_size, runner.pool = model, device, VOCAB, pool_on(device)
    runner._single_rank = nullcontext
    return runner


def drafting(device: str) -> Call:
    """The draft reads, and writes some tokens; they are waited for behind this."""
    runner = runner_on(device)
    rows = [DraftRow(i + 1, [1] * i, 50) for i in range(N)]

    def call() -> None:
        tokens, _ = greedy(runner.extend(rows, [[1] * (i + 1) for i in range(N)]))
        inputs = runner.decode_inputs(rows, STEPS)
        for step in range(STEPS):
            tokens, _ = greedy(runner.decode_step(inputs, step, tokens[: N - step]))

    return call


def slots(device: str) -> Call:
    """A request takes slots in the draft's pool, and gives them back."""
    pool = pool_on(device)

    def call() -> None:
        row = pool.open()
        assert row is not None
        assert pool.reserve(row, 70)
        pool.close(row)

    return call


def sampling(device: str, width: int) -> Call:
    """Every place is sampled as its request wants it; sglang's own sampler is not looked at."""
    chains = [[1] * (1 + i % width) for i in range(N)]
    draft, logits = Draft.of(chains, width, device), torch.zeros(N * width, VOCAB, device=device)
    info = SamplingBatchInfo(
        temperatures=torch.ones(N, 1, device=device), top_ps=torch.ones(N, device=device),
        top_ks=ids(device, N, dtype=torch.int32), min_ps=torch.zeros(N, device=device), is_all_greedy=False,
        is_any_greedy=False, need_top_p_sampling=True, need_top_k_sampling=True, need_min_p_sampling=True,
        vocab_size=VOCAB, device=device, logit_bias=torch.zeros(N, VOCAB, device=device))

    def sampler(output: Any, *_: Any) -> torch.Tensor:
        return output.next_token_logits.argmax(-1)

    positions = draft.positions(ids(device, N))
    return lambda: draft.accept(sample(sampler, info, SimpleNamespace(next_token_logits=logits), draft, positions,
                                       lambda logits: None, False))


HELPERS: dict[str, Callable[[str], Call]] = {
    "drafting": drafting,
    "slots of a draft": slots,
    "sampling of drafts": lambda device: sampling(device, WIDTH),
    "sampling without drafts": lambda device: sampling(device, 1),
}
