"""The speculative worker: drafts by a model of another tokenizer, verified by the engine's own sampler.

One round: what was confirmed is translated, the draft model writes, its text becomes chains of the target's ids, one
forward of the target looks at all of them, every position is sampled, and the prefix that agrees stands. Where nobody
drafts, a round is a plain decoding step.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import attention_backends, get_parallel, get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.spec_utils import record_stream_for_v2_verify

from ..config import Settings
from .draft_runner import DraftRunner
from .drafter import Drafter
from .lengths import FixedLengths, LengthControl
from .pair import Pair
from .proposer import Proposer
from .ranks import Ranks
from .text.draft_context import draft_context
from .text.translator import Translator
from .verify import Chains, UagVerifyInput, Verifier

logger = logging.getLogger(__name__)


def needs_fixed_width(device: Any) -> bool:
    """Whether every verification has to be of the configured width: graphs were captured for it, or the target's
    attention lays out its rows by it. FlashInfer and Triton lay them out by the batch's."""
    if torch.device(device).type != "cuda":
        return False
    by_batch = set(attention_backends()) <= {"flashinfer", "triton"}
    return not (by_batch and check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED))


class UagWorker(BaseSpecWorker):
    """sglang's speculative worker for `UAG`; see `BaseSpecWorker`."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        super().__init__()
        try:
            self._build(server_args, gpu_id, nccl_port, target_worker)
        except ValueError as error:  # sglang would print a traceback and kill the process that started this one
            print(f"sglang-ext: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None

    def _build(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        self.server_args, self._target_worker = server_args, target_worker
        self.width: int = get_spec().speculative_num_draft_tokens
        self.speculative_num_draft_tokens = self.width
        runner = target_worker.model_runner
        self.device = runner.device
        pair = Pair.load(target_worker.tokenizer, runner.model_config)
        translator = pair.translator()
        self._ranks = Ranks(get_parallel().tp_group)
        draft = DraftRunner(server_args, gpu_id, nccl_port, target_worker.random_seed, self._ranks.alone)
        draft.allocate(pair.pool_tokens(runner, draft), get_schedule().max_running_requests)
        self._draft, self._verifier = draft, Verifier(runner, self._ranks.agree)
        self._fixed_width = needs_fixed_width(self.device)
        self._proposer = self._first_ranks(translator) if self._ranks.first else None
        logger.info("UAG: %s", pair.summary(translator))

    def _first_ranks(self, translator: Translator) -> Proposer:
        """What drafts, which other ranks do not."""
        lengths = FixedLengths if Settings.from_environment().uag_lengths == "fixed" else LengthControl
        chunk = get_schedule().chunked_prefill_size or 0
        draft = translator.draft
        drafter = Drafter(partial(draft_context, translator), {*draft.eos, *draft.special}, self._draft,
                          lengths(self.width, fixed=self._fixed_width),
                          chunk if chunk > 0 else 8192)
        return Proposer(drafter, self.width, fixed_width=self._fixed_width,
                        overlap=not get_schedule().disable_overlap_schedule)

    @property
    def draft_worker(self) -> None:
        """None: the draft is no part of what sglang updates, backs up or measures as the target's."""
        return None

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The target's pools are there; the draft's were made before, so that they were out of the account."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self._target_worker.get_memory_pool()

    def init_attention_backends(self) -> None:
        self._draft.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        self._draft.init_cuda_graphs()

    def clear_cache_pool(self) -> None:
        """Forget every request; sglang calls this when none is left."""
        if self._proposer is not None:
            self._proposer.clear()
        if self._draft.idle:
            logger.info("UAG: draft pool empty")
        else:
            logger.error("UAG: draft pool leaks: %s", self._draft.usage)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        if self._proposer is not None:
            self._proposer.note_finished(rid)

    def forward_batch_generation(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None = None,
                                 pp_proxy_tensors: Any = None) -> GenerationBatchResult:
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        if self._proposer is not None:
            self._proposer.begin(batch)
        if batch.forward_mode.is_decode():
            return self._decode(batch, on_publish)
        return self._prefill(batch, on_publish)

    # Prefill

    def _prefill(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        result = self._target_worker.forward_batch_generation(batch)
        new_seq_lens = batch.seq_lens.clone()
        if on_publish is not None:
            on_publish(new_seq_lens)
        if self._proposer is not None:
            self._proposer.read_prompts(batch)
        n = len(batch.seq_lens)
        accept_tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        accept_tokens[:, 0] = result.next_token_ids
        accept_lens = torch.ones(n, dtype=torch.int32, device=self.device)
        return self._result(result, result.next_token_ids, accept_tokens, accept_lens, new_seq_lens, self.width)

    # Decode

    def _decode(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        own = self._proposer.chains(batch) if self._proposer is not None else None
        chains = self._ranks.chains(own, len(batch.reqs), self.width)
        width = self.width if self._fixed_width else max(map(len, chains))
        result = self._verify(batch, Chains.of(chains, width, self.device), chains, on_publish)
        if self._proposer is not None and torch.device(self.device).type == "cpu":
            self._proposer.measure()
        return result

    # Verification

    def _verify(self, batch: Any, chains: Chains, on_host: Sequence[Sequence[int]],
                on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        seq_lens, width, n = batch.seq_lens, chains.width, len(on_host)
        verify_input = self._verifier.input(batch, chains)
        batch.forward_mode, batch.input_ids = ForwardMode.TARGET_VERIFY, chains.input_ids
        batch.out_cache_loc = chains.slots(batch.req_to_token_pool.req_to_token, batch.req_pool_indices,
                                           verify_input.positions)
        batch.spec_info = verify_input
        result = self._target_worker.forward_batch_generation(batch, is_verify=True)
        sampled, accept_lens = self._verifier.sample(batch, result.logits_output, chains, on_host, verify_input)
        if chains.padded:
            sampled = sampled.clamp(min=0)
        new_seq_lens = seq_lens + accept_lens
        if batch.return_logprob:
            compute_spec_logprobs(batch, result.logits_output, sampled, chain_stride=width)
        if on_publish is not None:
            on_publish(new_seq_lens)
        batch.forward_mode = ForwardMode.DECODE
        tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        tokens[:, :width] = sampled.view(n, width)
        return self._result(result, sampled, tokens, accept_lens, new_seq_lens, width)

    def _result(self, forward: Any, next_token_ids: torch.Tensor, accept_tokens: torch.Tensor,
                accept_lens: torch.Tensor, new_seq_lens: torch.Tensor, width: int) -> GenerationBatchResult:
        relay = UagVerifyInput(draft_token_num=self.width, new_seq_lens=new_seq_lens,
                               accept_tokens=accept_tokens.flatten(), accept_lens=accept_lens)
        return GenerationBatchResult(
            logits_output=forward.logits_output, next_token_ids=next_token_ids,
            can_run_cuda_graph=forward.can_run_cuda_graph, accept_lens=accept_lens, new_seq_lens=new_seq_lens,
            next_draft_input=relay, speculative_num_draft_tokens=width)
