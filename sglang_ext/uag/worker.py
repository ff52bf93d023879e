"""The speculative worker: drafts of a model of another tokenizer or of the text, and their verification.

One step has four parts. `begin` forgets who has left. `propose` asks the sources of drafts, each request's the one that
promises most: a frozen `Draft`. `verify` is one forward of the target over all of them, in which every place is sampled
and the prefix that agrees stands. `finish` hands the result to the engine. Where nobody drafts, a step is a plain
decoding step.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
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

from ..config import MODEL, TEXT, Settings
from .draft import Draft, to_device
from .draft_runner import DraftRunner
from .drafter import Drafter
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .pair import Pair, free_memory, refuse_recurrent
from .proposer import Proposer
from .ranks import Ranks
from .relay import KnownLengths
from .sources import Sources
from .text.draft_context import draft_context
from .text.translator import Translator
from .text_source import TextSource
from .verify import UagVerifyInput, Verified, Verifier

logger = logging.getLogger(__name__)
Publish = Callable[[torch.Tensor], None]
"""sglang's: takes [n] int, the new lengths of the texts, as soon as they are known."""


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
        self._ranks = Ranks(get_parallel().tp_group)
        self._verifier = Verifier(runner, self._ranks.broadcast)
        self._fixed_width = needs_fixed_width(self.device)
        self._overlap = not get_schedule().disable_overlap_schedule
        self._draft: DraftRunner | None = None
        self._proposer: Proposer | None = None
        settings = Settings.from_environment()
        translator = None
        if MODEL in settings.drafted_from:
            translator = self._load_draft(server_args, gpu_id, nccl_port)
        else:
            refuse_recurrent("target", runner.model_config)
        if self._ranks.first:
            self._proposer = self._new_proposer(settings, translator)

    def _load_draft(self, server_args: Any, gpu_id: int, nccl_port: int) -> Translator | None:
        """The draft model, on the first rank alone, and what translates for it."""
        target, runner = self._target_worker, self._target_worker.model_runner
        if not self._ranks.first:
            free_memory(runner)
            return None
        pair = Pair.load(target.tokenizer, runner.model_config)
        translator = pair.translator()
        self._draft = draft = DraftRunner(server_args, gpu_id, nccl_port, target.random_seed, self._ranks.single_rank)
        draft.allocate(pair.pool_tokens(runner, draft, free_memory(runner)), get_schedule().max_running_requests)
        logger.info("UAG: %s", pair.summary(translator))
        return translator

    def _new_proposer(self, settings: Settings, translator: Translator | None) -> Proposer:
        make = FixedLengths if settings.uag_lengths == "fixed" else LengthControl
        lengths = make(self.width, fixed=self._fixed_width)
        drafter = text = None
        if self._draft is not None and translator is not None:
            chunk = get_schedule().chunked_prefill_size or 0
            silent = {*translator.draft.eos, *translator.draft.special}
            drafter = Drafter(partial(draft_context, translator), silent, self._draft, lengths,
                              chunk if chunk > 0 else 8192)
        if TEXT in settings.drafted_from:
            ends = self._target_worker.model_runner.model_config.hf_eos_token_id or ()
            text = TextSource(self.width - 1, shared=settings.uag_text == "all", ends=ends)
        return Proposer(Sources(lengths, drafter, text), self.width, fixed_width=self._fixed_width,
                        overlap=self._overlap)

    @property
    def draft_worker(self) -> None:
        """None: the draft is no part of what sglang updates, backs up or measures as the target's."""
        return None

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The target's pools are there; the draft's were made before, so that they were out of the account."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self._target_worker.get_memory_pool()
        self._known_lengths = KnownLengths.of(self.req_to_token_pool)

    def init_attention_backends(self) -> None:
        if self._draft is not None:
            self._draft.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        if self._draft is not None:
            self._draft.init_cuda_graphs()

    def clear_cache_pool(self) -> None:
        """Forget every request; sglang calls this when none is left."""
        if self._proposer is not None:
            self._proposer.clear()
        if self._draft is None:
            return
        if self._draft.pool.idle:
            logger.info("UAG: draft pool empty")
        else:
            logger.error("UAG: draft pool leaks: %s", self._draft.pool.usage)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        if self._proposer is not None:
            self._proposer.note_finished(rid)

    def forward_batch_generation(self, batch: Any, on_publish: Publish | None = None, pp_proxy_tensors: Any = None
                                 ) -> GenerationBatchResult:
        """One step: begin, propose, verify, finish. Of a prefill there is nothing to propose."""
        self._begin(batch)
        if not batch.forward_mode.is_decode():
            return self._prefill(batch, on_publish)
        draft = self._propose(batch)
        verified = self._verify(batch, draft, on_publish)
        return self._finish(batch, draft, verified)

    def _begin(self, batch: Any) -> None:
        """Keep the batch's tensors for this stream, and forget the requests that have left."""
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        if self._proposer is not None:
            self._proposer.begin(batch)

    def _propose(self, batch: Any) -> Draft:
        """The first rank's draft tokens, on every rank."""
        own = self._proposer.propose(batch) if self._proposer is not None else None
        chains = self._ranks.broadcast_chains(own, len(batch.reqs), self.width)
        if chains is None:
            return Draft.without(self._last_tokens(batch), self.width if self._fixed_width else 1)
        return Draft.of(chains, self.width if self._fixed_width else max(map(len, chains)), self.device)

    def _last_tokens(self, batch: Any) -> torch.Tensor:
        """[n] int, each request's last token: what the relay has on the device, where the host may not know it yet."""
        if not self._overlap:
            return to_device([req.output_ids[-1] for req in batch.reqs], self.device)
        relay = batch.spec_info
        rows = relay.accept_tokens.view(len(batch.reqs), -1)
        return rows.gather(1, relay.accept_lens.long()[:, None] - 1)[:, 0]

    def _verify(self, batch: Any, draft: Draft, on_publish: Publish | None) -> Verified:
        """One forward of the target over all places, and their samples."""
        seq_lens = batch.seq_lens
        verify_input = self._verifier.input(batch, draft)
        batch.forward_mode, batch.input_ids = ForwardMode.TARGET_VERIFY, draft.input_ids
        batch.out_cache_loc = draft.slots(batch.req_to_token_pool.req_to_token, batch.req_pool_indices,
                                          verify_input.positions)
        batch.spec_info = verify_input
        forward = self._target_worker.forward_batch_generation(batch, is_verify=True)
        sampled, accept_lens = self._verifier.sample(batch, forward.logits_output, draft, verify_input)
        if draft.padded:
            sampled = sampled.clamp(min=0)
        if batch.return_logprob:
            compute_spec_logprobs(batch, forward.logits_output, sampled, chain_stride=draft.width)
        verified = Verified(forward, sampled, accept_lens, seq_lens + accept_lens)
        if on_publish is not None:
            on_publish(verified.new_seq_lens)
        batch.forward_mode = ForwardMode.DECODE
        return verified

    def _finish(self, batch: Any, draft: Draft, verified: Verified) -> GenerationBatchResult:
        """What the engine takes into the requests, and what it relays to the next step."""
        n, width = draft.tokens.shape
        tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        tokens[:, :width] = verified.tokens.view(n, width)
        if self._overlap and draft.on_host is None:
            self._known_lengths.note(batch.req_pool_indices_cpu, batch.seq_lens_cpu + 1)
        elif self._overlap:
            self._known_lengths.forget(batch.req_pool_indices_cpu)
        if self._proposer is not None and torch.device(self.device).type == "cpu":
            self._proposer.measure(ended=True)
        return self._result(verified, tokens, width)

    def _prefill(self, batch: Any, on_publish: Publish | None) -> GenerationBatchResult:
        """The draft's prompts first: on a GPU their launch would wait behind the target's."""
        if self._proposer is not None:
            self._proposer.read_prompts(batch)
        if self._overlap:
            self._known_lengths.note(batch.req_pool_indices_cpu, batch.seq_lens_cpu)
        forward = self._target_worker.forward_batch_generation(batch)
        new_seq_lens = batch.seq_lens.clone()
        if on_publish is not None:
            on_publish(new_seq_lens)
        n = len(batch.seq_lens)
        tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        tokens[:, 0] = forward.next_token_ids
        one = torch.ones(n, dtype=torch.int32, device=self.device)
        return self._result(Verified(forward, forward.next_token_ids, one, new_seq_lens), tokens, self.width)

    def _result(self, verified: Verified, accept_tokens: torch.Tensor, width: int) -> GenerationBatchResult:
        """The engine's result of a step.

        Args:
            accept_tokens: [n, configured width] int32, what was confirmed first in each row.
            width: of the step.
        """
        forward, accept_lens = verified.forward, verified.accept_lens
        relay = UagVerifyInput(draft_token_num=self.width, new_seq_lens=verified.new_seq_lens,
                               accept_tokens=accept_tokens.flatten(), accept_lens=accept_lens)
        return GenerationBatchResult(
            logits_output=forward.logits_output, next_token_ids=verified.tokens,
            can_run_cuda_graph=forward.can_run_cuda_graph, accept_lens=accept_lens,
            new_seq_lens=verified.new_seq_lens, next_draft_input=relay, speculative_num_draft_tokens=width)
