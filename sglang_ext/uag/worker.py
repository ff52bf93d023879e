"""The speculative worker: drafts by a model of another tokenizer, verified by the engine's own sampler.

One round: what was confirmed is translated, the draft model writes, its text becomes chains of the target's ids, one
forward of the target looks at all of them, every position is sampled, and the prefix that agrees stands. Where nobody
drafts, a round is a plain decoding step.
"""

from __future__ import annotations

import logging
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask, record_stream_for_v2_verify

from ..config import Settings
from ..patches.verification import Verification, report_words
from .draft_runner import DraftRunner
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .pair import Pair, free_bytes
from .rounds import Counts, Drafter, Drafting
from .verify import PAD, Chains, accept_index, full_mask, sample

logger = logging.getLogger(__name__)
FORGOTTEN_AFTER = 64
"""Rounds after which a request that is in no batch, one that ended in its prefill say, loses its place."""


class UagVerifyInput(NgramVerifyInput):
    """sglang's input of a verification, for chains; its relay between rounds serves as it is.

    With a mask, a chain is a tree like any of NGRAM's, for which sglang captures its graphs.
    """

    @property
    def tree_topk(self) -> int:
        return 1 if self.custom_mask is None else -1


class _Running(NamedTuple):
    """A step of the target that was launched."""

    kind: Literal["plain", "verify"]
    batch: int
    width: int
    start: float
    began: float  # its round
    requests: list[Counts]


@dataclass
class _Turn:
    """One request in a round.

    Attributes:
        output: ids of the response so far, those included that the engine has not processed yet.
        most: tokens that a draft may have.
        drafting: its side of the draft; None where it may not draft.
        outlook: of its think budget, if it has one.
    """

    req: Any
    output: Sequence[int]
    most: int
    drafting: Drafting | None = None
    outlook: Any = None


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
        tokens = pair.pool_tokens(free_bytes() if get_schedule().max_total_tokens is None else None)
        draft = DraftRunner(server_args, gpu_id, nccl_port, tokens, get_schedule().max_running_requests,
                            target_worker.random_seed)
        chunk = get_schedule().chunked_prefill_size or 0
        self._draft = draft
        lengths = FixedLengths if Settings.from_environment().uag_lengths == "fixed" else LengthControl
        self._drafter = Drafter(translator, draft, lengths(self.width), chunk if chunk > 0 else 8192)
        self._running: _Running | None = None
        self._round_number = 0
        self._left: list[str] = []  # requests that ended since the last forward
        self._seen: dict[str, int] = {}  # the last round in which a request was here
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
        graphs = getattr(self._target_worker.model_runner, "decode_cuda_graph_runner", None)
        self._fixed_width = graphs is not None and torch.device(self.device).type == "cuda"

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
        self._forget(self._left)
        self._left.clear()
        if batch.forward_mode.is_decode():
            return self._decode(batch, on_publish)
        return self._prefill(batch, on_publish)

    def _forget(self, rids: Any) -> None:
        rids = list(rids)
        self._drafter.close(rids)
        for rid in rids:
            self._seen.pop(rid, None)

    # Prefill

    def _prefill(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        self._running = None  # the next round waits for this forward too
        result = self._target_worker.forward_batch_generation(batch)
        if batch.forward_mode.is_extend():
            self._read_prompts(batch)
        new_seq_lens = batch.seq_lens.clone()
        if on_publish is not None:
            on_publish(new_seq_lens)
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
            drafting = self._drafting(req)
            drafting.confirm(_ids(req, req.output_ids, drafting.taken, req.extend_end))
            draftings.append(drafting)
        self._drafter.prefill(draftings)

    def _drafting(self, req: Any) -> Drafting:
        self._seen[req.rid] = self._round_number
        drafting = self._drafter.drafting(req.rid)
        req.uag = drafting.counts
        return drafting

    # Decode

    def _decode(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        late = self._unprocessed(batch)
        self._measure()
        began = time.perf_counter()
        turns = self._turns(batch, late)
        chains = self._chains(turns)
        width = self.width if self._fixed_width else max(map(len, chains))
        counts = [turn.drafting.counts for turn in turns if turn.drafting is not None]
        self._running = _Running("plain" if width == 1 else "verify", len(chains), width, time.perf_counter(), began,
                                 counts)
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

    def _turns(self, batch: Any, unprocessed: Sequence[list[int]]) -> list[_Turn]:
        """Take in what was confirmed since the last round."""
        here = {req.rid for req in batch.reqs}
        self._forget([rid for rid, seen in self._seen.items()
                      if rid not in here and self._round_number - seen > FORGOTTEN_AFTER])
        turns = []
        for req, late in zip(batch.reqs, unprocessed, strict=True):
            output = req.output_ids + array("q", late) if late else req.output_ids
            room = req.sampling_params.max_new_tokens - len(output) - 1
            turn = _Turn(req, output, max(min(self.width - 1, room), 0))
            think = getattr(req, "think", None)
            turn.outlook = think.outlook(output) if think is not None else None
            if may_draft(req):
                turn.drafting = self._confirm(req, output)
            else:
                turn.most = 0
            turns.append(turn)
        return turns

    def _unprocessed(self, batch: Any) -> list[list[int]]:
        """Tokens of the last round that are not in `output_ids` yet: overlap scheduling processes a result while the
        next round runs. Waits for the last round to end."""
        if not self._overlap or batch.grammar_needs_sync():
            return [[] for _ in batch.reqs]
        tokens = batch.spec_info.accept_tokens.view(len(batch.reqs), -1).tolist()
        lens = batch.spec_info.accept_lens.tolist()
        return [row[:length] for row, length in zip(tokens, lens, strict=True)]

    def _confirm(self, req: Any, output: Sequence[int]) -> Drafting:
        prompt = req.origin_input_ids_unpadded
        drafting = self._drafting(req)
        if drafting.taken > len(prompt) + len(output):  # retraction dropped tokens that were in flight
            self._forget([req.rid])
            drafting = self._drafting(req)
        new = _ids(req, output, drafting.taken, len(prompt) + len(output))
        drafting.confirm(new)
        if drafting.proposed:
            self._drafter.observe(drafting, min(len(new) - 1, drafting.proposed))
        return drafting

    def _chains(self, turns: Sequence[_Turn]) -> list[list[int]]:
        """[n] chains of 1 to `width` ids. A sequence that the budget forces is a draft that needs no model."""
        room = self.width - 1
        drafts: list[list[int]] = [t.outlook.complete((), room) if t.outlook is not None else [] for t in turns]
        asked = [(i, t) for i, t in enumerate(turns) if t.drafting is not None and not drafts[i] and t.most]
        limits = [t.most if t.outlook is None or t.outlook.left is None else min(t.most, t.outlook.left)
                  for _, t in asked]
        written = self._drafter.draft([t.drafting for _, t in asked], limits, len(turns))  # type: ignore[misc]
        for (i, turn), draft in zip(asked, written, strict=True):
            drafts[i] = turn.outlook.complete(draft, room) if turn.outlook is not None else list(draft)
            common = sum(1 for a, b in zip(drafts[i], draft, strict=False) if a == b)
            assert turn.drafting is not None
            self._drafter.submitted(turn.drafting, common)
        for turn, draft in zip(turns, drafts, strict=True):
            if turn.drafting is not None:
                turn.drafting.counts.forced += len(draft) - turn.drafting.proposed
        return [[int(turn.output[-1]), *draft] for turn, draft in zip(turns, drafts, strict=True)]

    # Verification

    def _verify(self, batch: Any, chains: Chains, on_host: Sequence[Sequence[int]],
                on_publish: Callable[[torch.Tensor], None] | None) -> GenerationBatchResult:
        seq_lens, width, n = batch.seq_lens, chains.width, len(on_host)
        verify_input = self._verify_input(batch, chains)
        batch.forward_mode, batch.input_ids = ForwardMode.TARGET_VERIFY, chains.input_ids
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices, req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=seq_lens, end_offset=seq_lens + width, batch_size=n, draft_token_num=width, device=self.device)
        batch.spec_info = verify_input
        result = self._target_worker.forward_batch_generation(batch, is_verify=True)
        sampled, accept_lens = self._sample(batch, result.logits_output, chains, on_host, verify_input)
        new_seq_lens = seq_lens + accept_lens
        if batch.return_logprob:
            compute_spec_logprobs(batch, result.logits_output, sampled.clamp(min=0), chain_stride=width)
        if on_publish is not None:
            on_publish(new_seq_lens)
        batch.forward_mode = ForwardMode.DECODE
        tokens = torch.zeros(n, self.width, dtype=torch.int32, device=self.device)
        tokens[:, :width] = sampled.view(n, width).clamp(min=0)
        return self._result(result, sampled.clamp(min=0), tokens, accept_lens, new_seq_lens, width)

    def _verify_input(self, batch: Any, chains: Chains) -> UagVerifyInput:
        index, following, siblings = chains.links()
        on_gpu = torch.device(self.device).type != "cpu"
        mask = full_mask(batch.seq_lens_cpu.tolist(), chains.width, self.device) if on_gpu else None
        return UagVerifyInput(
            draft_token=chains.tokens.flatten(), custom_mask=mask, positions=chains.positions(batch.seq_lens),
            retrieve_index=index, retrieve_next_token=following, retrieve_next_sibling=siblings,
            draft_token_num=chains.width, new_seq_lens=batch.seq_lens)

    def _sample(self, batch: Any, logits_output: Any, chains: Chains, on_host: Sequence[Sequence[int]],
                verify_input: UagVerifyInput) -> tuple[torch.Tensor, torch.Tensor]:
        """What the target writes at each place [n * width] int32, and how much of it stands [n] int32."""
        grammar = self._grammar_mask(batch, on_host, chains.width) if batch.has_grammar else None
        batch.sampling_info.grammar_mask = grammar
        thinking = Verification.begin(verify_input, batch)
        sampled = sample(self._target_worker.model_runner.sampler, batch.sampling_info, logits_output, chains,
                         verify_input.positions, thinking.apply if thinking else None, batch.return_logprob)
        batch.sampling_info.grammar_mask = None
        accept_lens = chains.accept(sampled)
        if thinking is not None:
            sampled, accept_lens, _ = thinking.commit(sampled, accept_lens, accept_index(accept_lens, chains.width))
            report_words(logits_output, thinking.device, thinking.rows, accept_lens)
        return sampled, accept_lens

    def _grammar_mask(self, batch: Any, on_host: Sequence[Sequence[int]], width: int) -> Any:
        """What each request's grammar allows after each token of its chain."""
        ids = torch.tensor([[*chain, *[0] * (width - len(chain))] for chain in on_host], dtype=torch.int64)
        lens = torch.tensor([len(chain) for chain in on_host])[:, None]
        steps = torch.arange(1, width + 1)
        following = torch.where(steps < lens, steps, PAD)
        tree = GrammarTree.from_host(following, torch.full_like(following, -1), ids)
        return build_grammar_vocab_mask(reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info,
                                        device=self.device, barrier=None)

    def _result(self, forward: Any, next_token_ids: torch.Tensor, accept_tokens: torch.Tensor,
                accept_lens: torch.Tensor, new_seq_lens: torch.Tensor, width: int) -> GenerationBatchResult:
        relay = UagVerifyInput(draft_token_num=self.width, new_seq_lens=new_seq_lens,
                               accept_tokens=accept_tokens.flatten(), accept_lens=accept_lens)
        return GenerationBatchResult(
            logits_output=forward.logits_output, next_token_ids=next_token_ids,
            can_run_cuda_graph=forward.can_run_cuda_graph, accept_lens=accept_lens, new_seq_lens=new_seq_lens,
            next_draft_input=relay, speculative_num_draft_tokens=width)


def _ids(req: Any, output: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Ids `start` to `end` of prompt and output. Only these are copied."""
    prompt = req.origin_input_ids_unpadded
    if start >= len(prompt):
        return output[start - len(prompt) : end - len(prompt)]
    return [*prompt[start:end], *output[: max(end - len(prompt), 0)]]


def may_draft(req: Any) -> bool:
    """Whether a request can be drafted for. Penalties and custom processors look at all of the output, which a
    verification does not have at each draft position; such a request decodes plainly."""
    params = req.sampling_params
    penalized = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    return not (penalized or params.min_new_tokens or req.custom_logit_processor or req.finished()
                or req.input_embeds is not None or req.multimodal_inputs is not None)
