"""`Scheduler`: a forced end that is known is read in one forward, instead of being written token by token.

What is forced from the response's start on is a part of the request's first prefill. Where a decoding request is at its
wall, the rest of its forced ids is appended to its output and read as one more chunk of its prefill: it keeps its slot
and its cache, as a request does between chunks, and its next token is the answer's. Under overlap scheduling the host
learns of the wall while the next step runs; what that step sampled for the request is in its output already, and is
dropped as sglang drops the result of a request that was taken off its slot. The rest of the batch waits for that
forward, or decodes in it where the operator mixes the two (`--enable-mixed-chunk`).

Token by token is the definition. A request of which more is asked than its ids stays there (`_fits`), and so does one
whose end would cost the batch more tokens than it brings, by the times of its forwards (`budget/one_step.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sglang_ext.budget.one_step import Cut, ReadCosts, Reading, fitting
from sglang_ext.config import Settings

from .tokenizer_manager import GRAMMARS


class _Clock:
    """Takes the time from one forward of a scheduler to the next.

    Attributes:
        costs: what reading ends has cost so far.
        reading: what the forward reads that is about to run, or None.
    """

    def __init__(self) -> None:
        self.costs = ReadCosts()
        self.reading: Reading | None = None
        self._at, self._forward = 0.0, -1

    def tick(self, scheduler: Any) -> None:
        """A forward has been started, and the next one is to be chosen."""
        now, forward, batch = time.perf_counter(), scheduler.forward_ct, scheduler.last_batch
        decoded = len(batch.reqs) if batch is not None and batch.forward_mode.is_decode() else None
        ran = self.reading or decoded or None
        self.costs.add(ran if forward == self._forward + 1 else None, now - self._at)
        self._at, self._forward, self.reading = now, forward, None


@dataclass(frozen=True)
class _Reads:
    """Where this server reads forced ids at once.

    Attributes:
        with_prompt: those that are known before the prompt is read.
        while_decoding: those of a request at its wall.
        mixed: whether the rest of the batch decodes in the same forward.
        most: tokens that one forward reads at most.
        always: whatever it costs the others.
        clock: takes the time of this scheduler's forwards.
    """

    with_prompt: bool
    while_decoding: bool
    mixed: bool
    most: int
    always: bool
    clock: _Clock = field(default_factory=_Clock)

    @classmethod
    def of(cls, scheduler: Any) -> _Reads:
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.hardware_backend.mlx.runtime import use_mlx
        from sglang.srt.runtime_context import get_exec, get_parallel, get_serving

        parallel = get_parallel()
        setting = Settings.from_environment().think_one_step
        # A cache without thinking keeps the prompt's part of a request alone: output must not be in the tree before.
        plain = (setting != "off" and scheduler.spec_algorithm.is_none()
                 and not get_serving().strip_thinking_cache
                 and scheduler.disaggregation_mode == DisaggregationMode.NULL
                 and not scheduler.model_config.is_encoder_decoder)
        # Pages or aligned places that a chunk would end within, caches with a second tier or a second kind of state or
        # outside the pool, ranks or loops that decide together what kind a step is, and what must not depend on the
        # load or starts anew with every extension.
        held = (scheduler.page_size > 1 or scheduler.truncation_align_size is not None
                or get_exec().deterministic.enable_deterministic_inference or get_exec().features.enable_watermark
                or scheduler.is_hybrid_swa or scheduler.tree_cache.supports_mamba()
                or scheduler.enable_hierarchical_cache or scheduler.enable_lmcache
                or scheduler.enable_unified_cache_external_linker or scheduler.enable_hisparse
                or scheduler.enable_unified_memory or scheduler.require_mlp_sync or parallel.attn_cp_size > 1
                or parallel.dcp_size > 1 or scheduler.enable_pdmux or use_mlx())
        most = scheduler.chunked_prefill_size or scheduler.max_prefill_tokens
        return cls(plain, plain and not held, scheduler.is_mixed_chunk, most, setting == "always")


def add_request_to_queue(original: Callable[..., None], self: Any, req: Any, is_retracted: bool = False) -> None:
    think = getattr(req, "think", None)
    if think is not None and not req.finished() and req.to_finish is None and _reads(self).with_prompt and _fits(req):
        _append(self, req, think.to_come(req, _room(req)))
    original(self, req, is_retracted)


def prepare_for_extend(original: Callable[..., None], self: Any) -> None:
    """Count as cached what the prompt alone would have found."""
    original(self)
    for req in self.reqs:
        think = getattr(req, "think", None)
        if think is not None and req.output_ids:
            page = self.tree_cache.page_size
            more = req.cached_tokens - (len(req.origin_input_ids) - 1) // page * page
            if more > 0:
                req.cached_tokens -= more
                req.cached_tokens_device = max(0, req.cached_tokens_device - more)


def get_new_batch_prefill(original: Callable[..., Any], self: Any, running_batch: Any) -> Any:
    reads = _reads(self)
    if reads.while_decoding:
        reads.clock.tick(self)
    plan = original(self, running_batch)
    if plan.batch_to_run is not None or self.chunked_req is not None or not reads.while_decoding:
        return plan
    running = plan.running_batch
    cuts = _cuts(running)
    if not cuts:
        return plan
    mixed, others = reads.mixed and _can_mix(running), len(running.reqs)
    cuts = fitting(cuts, reads.most - others if mixed else reads.most)
    if not cuts or not _worth(self, cuts, others, mixed) or not _find_room(self, cuts, others):
        return plan
    batch = _extension(self, running, cuts)
    if mixed:
        running = _mix(self, batch, running)
    reads.clock.reading = Reading(sum(cut.reads for cut in cuts), mixed)
    return type(plan)(batch_to_run=batch, running_batch=running)


def process_batch_result(original: Callable[..., None], self: Any, batch: Any, result: Any) -> None:
    late = [req for req in batch.reqs if getattr(req, "think", None) is not None
            and req.think.read_after == batch.forward_iter]
    for req in late:
        req.is_retracted = True
    try:
        original(self, batch, result)
    finally:
        for req in late:
            req.is_retracted = False


def _reads(scheduler: Any) -> _Reads:
    reads = getattr(scheduler, "think_reads", None)
    if reads is None:
        reads = scheduler.think_reads = _Reads.of(scheduler)
    return reads  # type: ignore[no-any-return]


def _worth(scheduler: Any, cuts: Sequence[Cut], batch: int, mixed: bool) -> bool:
    """Whether these ends are to be read now: the first rank's answer, as each has a clock of its own, and all of them
    have to run the same batches."""
    reads, group = _reads(scheduler), scheduler.tp_group
    worth = reads.always or reads.clock.costs.worth(cuts, batch, mixed)
    if group.world_size == 1:
        return worth
    sent = torch.tensor([worth], dtype=torch.int32)
    torch.distributed.broadcast(sent, src=group.ranks[0], group=group.cpu_group)
    return bool(sent.item())


def _fits(req: Any) -> bool:
    """Whether a request's response is its ids alone, and nothing follows them on the host or beside the device's rows
    that would miss a token."""
    params = req.sampling_params
    reports = (req.return_logprob or req.return_hidden_states or req.return_routed_experts or req.return_indexer_topk
               or req.return_sampling_mask)
    counts = (params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
              or params.min_new_tokens)
    steers = req.grammar is not None or req.custom_logit_processor or any(getattr(params, name) for name in GRAMMARS)
    holds = (req.input_embeds is not None or req.positional_embed_overrides is not None
             or req.multimodal_inputs is not None or req.session is not None or req.lora_id is not None
             or req.beam_group is not None)
    return not (reports or counts or steers or holds)


def _room(req: Any) -> int:
    """How many ids can be appended so that a token is left to be sampled."""
    return max(0, req.sampling_params.max_new_tokens - len(req.output_ids) - 1)


def _append(scheduler: Any, req: Any, ids: Sequence[int]) -> None:
    if ids:
        req.think.wrote(len(req.output_ids), len(ids))
        req.output_ids.extend(ids)
        scheduler.batch_result_processor._maybe_update_reasoning_tokens(req, list(ids))


def _cuts(running_batch: Any) -> list[Cut]:
    """The requests of a decoding batch that are at their wall and can be read on."""
    cuts = []
    for req in running_batch.reqs:
        think = getattr(req, "think", None)
        if think is None or not think.forces(len(req.output_ids)) or req.finished() or req.to_finish is not None:
            continue
        if _fits(req):
            cuts.append(Cut(req, think.to_come(req, _room(req)), req.seqlen - req.kv.kv_committed_len))
    return cuts


def _extension(scheduler: Any, running_batch: Any, cuts: Sequence[Cut]) -> Any:
    """A batch that reads forced ids of running requests, which leave the running batch for it."""
    reqs = [cut.req for cut in cuts]
    running_batch.filter_batch(reqs_to_exclude=reqs)
    flying = scheduler.result_queue[-1][0] if scheduler.enable_overlap and scheduler.result_queue else None
    in_flight = set(flying.reqs) if flying is not None else set()
    for cut in cuts:
        req = cut.req
        if req in in_flight:
            req.think.read_after = flying.forward_iter
        _append(scheduler, req, cut.ids)
        req.think.replay(req.output_ids)
        req.refresh_fill_ids()
        req.prefix_len = req.already_computed = req.kv.kv_committed_len
        req.extend_end = len(req.full_untruncated_fill_ids)
    batch = type(running_batch).init_new(
        reqs, scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator, scheduler.tree_cache,
        scheduler.model_config, scheduler.enable_overlap, scheduler.spec_algorithm)
    batch.prepare_for_extend()
    batch.decoding_reqs = None
    return batch


def _can_mix(running_batch: Any) -> bool:
    """Whether sglang can decode this batch in the forward of an extension."""
    return not running_batch.return_logprob and all(req.beam_group is None for req in running_batch.reqs)


def _mix(scheduler: Any, batch: Any, running_batch: Any) -> Any:
    """Let the others decode in the forward that reads, as in that of a prefill's chunk; what is left running."""
    finishing = scheduler._reqs_finishing_inflight(running_batch)
    running_batch.filter_batch(reqs_to_exclude=finishing)
    running_batch.batch_is_full = running_batch.batch_is_full and not finishing
    if running_batch.is_empty() or not running_batch.check_decode_mem():
        return running_batch
    running_batch.prepare_for_decode()
    batch.mix_with_running(running_batch)
    batch.decoding_reqs = running_batch.reqs
    return type(running_batch)(reqs=[], batch_is_full=running_batch.batch_is_full)


def _find_room(scheduler: Any, cuts: Sequence[Cut], running: int) -> bool:
    """Make room in the pool for what is read, and for the next step of `running` requests; False: there is none without
    taking requests off their slots."""
    from sglang.srt.mem_cache.common import evict_from_tree_cache

    needed = sum(cut.reads for cut in cuts) + running
    evict_from_tree_cache(scheduler.tree_cache, needed)
    return bool(scheduler.token_to_kv_pool_allocator.available_size() >= needed)
