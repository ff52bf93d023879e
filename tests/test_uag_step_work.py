"""A step of UAG without drafts costs the host hardly more than a step without speculation."""

from __future__ import annotations

from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from draft_standin import EOS, StandInContext, StandInRunner
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from step_counter import Operators

from sglang_ext.uag import worker as worker_module
from sglang_ext.uag.drafter import Drafter
from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.proposer import Proposer
from sglang_ext.uag.ranks import Ranks
from sglang_ext.uag.relay import KnownLengths, UagFutureMap
from sglang_ext.uag.sources import Sources
from sglang_ext.uag.speed_up import Planned
from sglang_ext.uag.text_source import TextSource
from sglang_ext.uag.verify import UagVerifyInput, Verifier
from sglang_ext.uag.worker import UagWorker

WIDTH, VOCAB, SLOTS, PROMPT = 5, 40, 8, 3
SGLANGS_STEP, OURS = 291, 318
"""Operators that a step dispatches from one batch to the next, without speculation and with UAG, for one request of a
model of two layers on the CPU with overlap scheduling (`step_counter` in a server). With more layers both have more."""
IN_THE_STEP = 36
"""Those of ours that the step below dispatches outside the model."""


class NoDrafts(FixedLengths):
    off = True

    def plan_sources(self, requests: Any, batch: int | None = None) -> list[Planned]:
        return [Planned()] * len(requests)


def greedy_sampler(output: Any, *_: Any) -> torch.Tensor:
    return output.next_token_logits.argmax(-1)


class Served:
    """A worker with a target that writes id 7, and a batch that decodes with overlap scheduling."""

    def __init__(self, n: int) -> None:
        self.n, self.length = n, PROMPT + 1
        pool = SimpleNamespace(req_to_token=torch.arange(SLOTS * 512, dtype=torch.int32).view(SLOTS, 512),
                               req_generation=torch.zeros(SLOTS))
        algorithm: Any = SimpleNamespace(is_none=lambda: False, is_some=lambda: True, is_ngram=lambda: True)
        self.relay = UagFutureMap(torch.device("cpu"), algorithm, pool, needs_cpu_seq_lens=True)
        self.worker, self.pool = self._worker(pool), pool
        params = SimpleNamespace(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, min_new_tokens=0,
                                 max_new_tokens=400)
        self.reqs = [SimpleNamespace(
            rid=str(i), origin_input_ids=array("q", [1] * PROMPT), origin_input_ids_unpadded=[1] * PROMPT,
            output_ids=array("q"), sampling_params=params, custom_logit_processor=None, input_embeds=None,
            multimodal_inputs=None, finished=lambda: False, think=None) for i in range(n)]
        self.slots = torch.arange(n)
        self.info = SamplingBatchInfo(
            temperatures=torch.ones(n, 1), top_ps=torch.ones(n), top_ks=torch.ones(n, dtype=torch.int32),
            min_ps=torch.zeros(n), is_all_greedy=True, is_any_greedy=True, need_top_p_sampling=False,
            need_top_k_sampling=False, need_min_p_sampling=False, vocab_size=VOCAB, device="cpu")
        one = torch.ones(n, dtype=torch.int32)
        self.relay.publish(self.slots, torch.full((n,), PROMPT))
        self.handed = UagVerifyInput(
            draft_token_num=WIDTH, accept_tokens=torch.full((n * WIDTH,), 7, dtype=torch.int32), accept_lens=one,
            new_seq_lens=torch.full((n,), PROMPT))

    def _worker(self, pool: Any) -> UagWorker:
        runner = SimpleNamespace(device="cpu", sampler=greedy_sampler)
        worker = UagWorker.__new__(UagWorker)
        worker.width, worker.device = WIDTH, "cpu"
        worker._ranks = Ranks(SimpleNamespace(world_size=1, rank_in_group=0))
        worker._verifier = Verifier(runner, worker._ranks.broadcast)
        worker._fixed_width, worker._overlap = False, True
        lengths = NoDrafts(WIDTH)
        drafter = Drafter(StandInContext, {EOS}, StandInRunner(), lengths, 64, True)
        sources = Sources(lengths, drafter, TextSource(WIDTH - 1, shared=True))
        worker._proposer = Proposer(sources, WIDTH, fixed_width=False, overlap=True)
        worker._known_lengths = KnownLengths.of(pool)
        worker._target_worker = SimpleNamespace(forward_batch_generation=self._forward)
        return worker

    def _forward(self, batch: Any, is_verify: bool) -> Any:
        """The target's forward, which is not counted."""
        assert is_verify
        assert batch.input_ids.tolist() == [7] * self.n
        logits = torch.nn.functional.one_hot(torch.full((self.n,), 7), VOCAB).float()
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits), can_run_cuda_graph=False)

    def step(self) -> Operators:
        """One step, from the lengths that the relay has to those that it is given, and the operators in it."""
        self.handed.future_indices = self.slots
        batch = SimpleNamespace(
            reqs=self.reqs, seq_lens=None, seq_lens_cpu=None, seq_lens_sum=None, req_pool_indices=self.slots,
            req_pool_indices_cpu=self.slots, req_to_token_pool=self.pool, spec_info=self.handed, input_ids=None,
            out_cache_loc=None, forward_mode=ForwardMode.DECODE, sampling_info=self.info, has_grammar=False,
            return_logprob=False)
        model = self.worker._target_worker.forward_batch_generation
        with Operators() as operators:
            self.worker._target_worker.forward_batch_generation = operators.model(model)
            self.relay.resolve_seq_lens_cpu(batch)
            assert batch.seq_lens_sum == self.n * (self.length - 1)
            result = self.worker.forward_batch_generation(batch, partial(self.relay.publish, self.slots))
        self.worker._target_worker.forward_batch_generation = model
        assert result.accept_lens.tolist() == [1] * self.n
        assert result.next_draft_input.accept_tokens.view(self.n, WIDTH)[:, 0].tolist() == [7] * self.n
        self.handed, self.length = result.next_draft_input, self.length + 1
        for req in self.reqs:
            req.output_ids.append(7)
        return operators


@pytest.mark.parametrize("n", [1, 4, 8])
def test_a_step_without_drafts_dispatches_few_operators(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those outside this step, at most a tenth more than sglang's own step; as many for every batch and text."""
    monkeypatch.setattr(worker_module, "record_stream_for_v2_verify", lambda *args: None)
    served = Served(n)
    counts = [len(served.step().outside) for _ in range(12)]
    assert len(set(counts[2:])) == 1
    assert OURS - IN_THE_STEP + counts[-1] <= 1.1 * SGLANGS_STEP, served.step().outside
