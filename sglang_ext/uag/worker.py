"""The speculative worker: drafts by a model of another tokenizer, verified by the engine's own sampler.

One round: what was confirmed is translated, the draft model writes, its text becomes chains of the target's ids, one
forward of the target looks at all of them, every position is sampled, and the prefix that agrees stands. Where nobody
drafts, a round is a plain decoding step.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import attention_backends, get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.spec_utils import record_stream_for_v2_verify

from ..config import Settings
from .draft_runner import DraftRunner
from .drafting import Counts, Drafting
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .pair import Pair
from .rounds import Drafter
from .turns import Turn, ids_between, may_draft, unprocessed
from .verifier import UagVerifyInput, Verifier
from .verify import Chains

logger = logging.getLogger(__name__)
FORGOTTEN_AFTER = 64
"""Rounds after which a request that is in no batch, one that ended in its prefill say, loses its place."""


class _Running(NamedTuple):
    """A step of the target that was launched."""

    kind: Literal["plain", "verify"]
    batch: int
    width: int
    start: float
    began: float  # its round
    requests: list[Counts]


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
        self._overlap = not get_schedule().disable_overlap_schedule
        runner = target_worker.model_runner
        self.device = runner.device
        pair = Pair.load(target_worker.tokenizer, runner.model_config)
        translator = pair.translator()
        draft = DraftRunner(server_args, gpu_id, nccl_port, target_worker.random_seed)
        draft.allocate(pair.pool_tokens(runner, draft.runner), get_schedule().max_running_requests)
        chunk = get_schedule().chunked_prefill_size or 0
        self._draft, self._verifier = draft, Verifier(runner)
        lengths = FixedLengths if Settings.from_environment().uag_lengths == "fixed" else LengthControl
        self._fixed_width = needs_fixed_width(self.device)
        self._drafter = Drafter(translator, draft, lengths(self.width, fixed=self._fixed_width),
                                chunk if chunk > 0 else 8192)
        self._running: _Running | None = None
        self._round_number = 0
        self._left: list[str] = []  # requests that ended since the last forward
        self._seen: dict[str, tuple[int, Any]] = {}  # the last round in which a request was here, and the request
        logger.info("UAG: %s", pair.summary(translator))

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
        self._forget({*self._drafter.rids, *self._left})
        self._left.clear()
        if self._draft.idle:
            logger.info("UAG: draft pool empty")
        else:
            logger.error("UAG: draft pool leaks: %s", self._draft.usage)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        self._left.append(rid)

    def forward_batch_generation(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None = None,
                                 pp_proxy_tensors: Any = None) -> GenerationBatchResult:
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        self._round_number += 1
        self._forget_absent(batch)
        if batch.forward_mode.is_decode():
            return self._decode(batch, on_publish)
        return self._prefill(batch, on_publish)

    def _forget_absent(self, batch: Any) -> None:
        """Forget who has left: sglang tells of those that end while they decode, not of those that end in their prefill
        or are aborted while they wait."""
        here = {req.rid for req in batch.reqs}
        self._forget([*self._left, *(
            rid for rid, (seen, req) in self._seen.items()
            if rid not in here and (req.finished() or self._round_number - seen > FORGOTTEN_AFTER))])
        self._left.clear()

    def _forget(self, rids: Any) -> None:
        rids = list(rids)
        self._drafter.close(rids)
        for rid in rids:
            self._seen.pop(rid, None)

    # Prefill

    def _prefill(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        self._running = None  # the next round waits for this forward too
        result = self._target_worker.forward_batch_generation(batch)
        new_seq_lens = batch.seq_lens.clone()
        if on_publish is not None:
            on_publish(new_seq_lens)
        if batch.forward_mode.is_extend():
            self._read_prompts(batch)
        n = len(batch.seq_lens)
        accept_tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        accept_tokens[:, 0] = result.next_token_ids
        accept_lens = torch.ones(n, dtype=torch.int32, device=self.device)
        return self._result(result, result.next_token_ids, accept_tokens, accept_lens, new_seq_lens, self.width)

    def _read_prompts(self, batch: Any) -> None:
        draftings = []
        for req in batch.reqs:
            if not may_draft(req):
                continue
            if req.sampling_params.max_new_tokens <= 1:  # nothing will be drafted: the prompt need not be read
                req.uag = Counts()
                continue
            drafting = self._drafting(req)
            drafting.refused()  # what was in flight when the request was retracted is not known
            drafting.confirm(ids_between(req, req.output_ids, drafting.taken, req.extend_end))
            draftings.append(drafting)
        self._drafter.prefill(draftings)

    def _drafting(self, req: Any) -> Drafting:
        self._seen[req.rid] = self._round_number, req
        drafting = self._drafter.drafting(req.rid)
        req.uag = drafting.counts = getattr(req, "uag", drafting.counts)  # they outlive a place lost by retraction
        return drafting

    # Decode

    def _decode(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        late = unprocessed(batch) if self._overlap else [()] * len(batch.reqs)
        self._measure()
        began = time.perf_counter()
        turns = self._turns(batch, late)
        chains = self._chains(turns)
        width = self.width if self._fixed_width else max(map(len, chains))
        counts = [turn.drafting.counts for turn in turns if turn.drafting is not None]
        kind: Literal["plain", "verify"] = "plain" if max(map(len, chains)) == 1 else "verify"
        self._running = _Running(kind, len(chains), width, time.perf_counter(), began, counts)
        result = self._verify(batch, Chains.of(chains, width, self.device), chains, on_publish)
        if torch.device(self.device).type == "cpu":
            self._measure()
        return result

    def _measure(self) -> None:
        """Note how long the last step took, once it has ended: on the CPU right away, on a GPU when the next round has
        its tokens."""
        if self._running is not None:
            kind, batch, width, start, began, requests = self._running
            now = time.perf_counter()
            self._drafter.control.timed(kind, batch, width, now - start)
            for counts in requests:
                counts.draft_seconds += self._drafter.seconds
                counts.target_seconds += now - start
                counts.round_seconds += now - began
            self._running = None

    def _turns(self, batch: Any, unprocessed: Sequence[Sequence[int]]) -> list[Turn]:
        """Take in what was confirmed since the last round."""
        turns = []
        for req, late in zip(batch.reqs, unprocessed, strict=True):
            turn = Turn.of(req, late, self.width)
            if may_draft(req):
                turn.drafting = self._confirm(req, turn.output)
            turns.append(turn)
        return turns

    def _confirm(self, req: Any, output: Sequence[int]) -> Drafting:
        prompt = req.origin_input_ids_unpadded
        drafting = self._drafting(req)
        if drafting.taken > len(prompt) + len(output):  # retraction dropped tokens that were in flight
            self._forget([req.rid])
            drafting = self._drafting(req)
        new = ids_between(req, output, drafting.taken, len(prompt) + len(output))
        drafting.confirm(new)
        self._drafter.observe(drafting, max(len(new) - 1, 0))
        return drafting

    def _chains(self, turns: Sequence[Turn]) -> list[list[int]]:
        """[n] chains of 1 to `width` ids. A sequence that the budget forces is a draft that needs no model."""
        drafts = [turn.complete(()) for turn in turns]
        asked = [(i, t) for i, t in enumerate(turns) if t.drafting is not None and not drafts[i] and t.limit]
        written = self._drafter.draft([t.drafting for _, t in asked], [t.limit for _, t in asked],  # type: ignore[misc]
                                      len(turns))
        for (i, turn), draft in zip(asked, written, strict=True):
            drafts[i] = turn.complete(draft)
            common = sum(1 for a, b in zip(drafts[i], draft, strict=False) if a == b)
            assert turn.drafting is not None
            turn.drafting.submit(common)
        for turn, draft in zip(turns, drafts, strict=True):
            if turn.drafting is not None:
                turn.drafting.counts.launch(turn.drafting.proposed, len(draft) - turn.drafting.proposed)
        return [[int(turn.output[-1]), *draft] for turn, draft in zip(turns, drafts, strict=True)]

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
