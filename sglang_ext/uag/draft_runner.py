"""The draft model in sglang's own model runner, with a KV pool and positions of its own.

Lengths and positions are counted in the draft's tokens, so nothing of the target's pool can be shared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig
from sglang.srt.runtime_context import get_memory, get_schedule

from .draft import to_device
from .draft_pool import DraftPool, DraftRow
from .pair import draft_attention, tokens_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecodeInputs:
    """What decode steps in a row need besides their tokens.

    Attributes:
        index: [n] int64, the requests' rows of the pool's table.
        positions: [steps, n] int64, in the draft's tokens.
        slots: [steps, n] int64, the KV slots of these positions.
        held: [n] ids that the cache holds before the first step.
    """

    index: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    held: list[int]


class DraftRunner:
    """Forwards of the draft, for many requests at once. Its weights are there from the start; its pool is there after
    `allocate`, so that memory can be measured in between.

    Args:
        server_args: the server's.
        gpu_id, nccl_port: as sglang hands them to a speculative worker.
        random_seed: the target's.
        single_rank: scope in which the model is this rank's own.

    Raises:
        ValueError: the attention backend that the operator named cannot serve this draft.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, random_seed: int | None = None,
                 single_rank: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        from sglang.srt.layers.moe.utils import draft_model_build_scope
        from sglang.srt.runtime_context import attention_backends, get_spec

        backend = draft_attention(get_spec().speculative_draft_attention_backend, attention_backends()[0],
                                  latent=_model_config(server_args).attention_arch == AttentionArch.MLA)
        self._single_rank = single_rank
        with draft_model_build_scope(), _as_served(), single_rank():
            self._worker = TpModelWorker(server_args=server_args, gpu_id=gpu_id, nccl_port=nccl_port,
                                         is_draft_worker=True, draft_attention_backend=backend,
                                         random_seed=random_seed)
        self.runner = self._worker.model_runner
        self.device = self.runner.device
        self.vocab_size: int = self.runner.model_config.vocab_size
        self.context_len: int = self.runner.model_config.context_len

    def tokens_in(self, memory: int) -> int:
        """How many of its tokens so many bytes hold, by sglang's own account. No layer forgets anything, so one with a
        window costs as any other."""
        with (self._single_rank(), get_schedule().override(swa_full_tokens_ratio=1.0),
              get_memory().override(disable_radix_cache=False)):
            self.runner.init_kv_cache_configurator()
            return tokens_in(self.runner.kv_cache_configurator, memory)

    def allocate(self, tokens: int, rows: int) -> None:
        """Make the pool.

        Args:
            tokens: its size, in the draft's tokens; at least two pages are made.
            rows: most requests with a place at once.
        """
        page = get_schedule().page_size
        tokens = max(tokens // page, 2) * page
        with self._single_rank():
            self._worker.alloc_memory_pool(memory_pool_config=MemoryPoolConfig(
                max_total_num_tokens=tokens, max_running_requests=rows, full_max_total_num_tokens=tokens,
                swa_max_total_num_tokens=tokens))
        self.pool = DraftPool(self.runner.token_to_kv_pool_allocator, self.runner.req_to_token_pool.req_to_token, page,
                              tokens, rows, self.context_len)
        if tokens <= 2 * self.pool.growth:
            logger.warning("UAG: the draft's pool holds %d tokens, so hardly anything will be drafted; raise "
                           "--max-total-tokens or --mem-fraction-static", tokens)

    def init_attention_backends(self) -> None:
        with self._single_rank():
            self._worker.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """Capture decode steps by batch size, as sglang does for any model that it serves; nothing on the CPU.

        sglang refuses to capture a draft's decode steps, as its own drafts do not decode: from here on the runner is
        that of a model without speculation.
        """
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self.runner.spec_algorithm = SpeculativeAlgorithm.NONE
        with self._single_rank():
            self._worker.init_cuda_graphs()

    def extend(self, rows: Sequence[DraftRow], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read more tokens of each request; every row has room for them.

        Args:
            rows: [n].
            ids: [n], at least one token each; they follow `row.ids`, and are appended to it.

        Returns:
            [n, vocab] logits after each request's last token.
        """
        before, new = [len(row.ids) for row in rows], [len(more) for more in ids]
        flat = [token for more in ids for token in more]
        positions = [p for start, count in zip(before, new, strict=True) for p in range(start, start + count)]
        owner = [row.index for row, count in zip(rows, new, strict=True) for _ in range(count)]
        sent = to_device([flat, positions, owner], self.device)
        lens = to_device([[row.index for row in rows], before, new], self.device)
        starts = torch.cumsum(lens[2], 0) - lens[2]
        slots = self.pool.table[sent[2], sent[1]].to(torch.int64)
        batch = self._batch(ForwardMode.EXTEND, sent[0], lens[0], lens[1] + lens[2], sent[1], slots=slots,
                            lengths=[a + b for a, b in zip(before, new, strict=True)])
        batch.extend_num_tokens = len(flat)
        batch.extend_seq_lens, batch.extend_prefix_lens = lens[2].int(), lens[1].int()
        batch.extend_start_loc = starts.int()
        batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = new, before
        batch.extend_logprob_start_lens_cpu = new
        batch.is_extend_in_batch = True
        for row, more in zip(rows, ids, strict=True):
            row.ids += more
        return self._forward(batch)

    def decode(self, rows: Sequence[DraftRow], tokens: torch.Tensor) -> torch.Tensor:
        """One more token of each request, [n] int64, which the caller appends to `row.ids`: [n, vocab] logits."""
        return self.decode_step(self.decode_inputs(rows, 1), 0, tokens)

    def decode_inputs(self, rows: Sequence[DraftRow], steps: int) -> DecodeInputs:
        """What `steps` decode steps in a row need besides their tokens, in one transfer. Every row has slots for it."""
        held = [len(row.ids) for row in rows]
        index, first = to_device([[row.index for row in rows], held], self.device)
        positions = first + torch.arange(steps, device=self.device)[:, None]
        return DecodeInputs(index, positions, self.pool.table[index, positions].to(torch.int64), held)

    def decode_step(self, inputs: DecodeInputs, step: int, tokens: torch.Tensor) -> torch.Tensor:
        """One of the decode steps, for the first requests of the inputs.

        Args:
            step: from 0 on.
            tokens: [n] int64, at most as many as the inputs' requests.

        Returns:
            [n, vocab] logits.
        """
        n = len(tokens)
        positions = inputs.positions[step, :n]
        return self._forward(self._batch(
            ForwardMode.DECODE, tokens, inputs.index[:n], positions + 1, positions, slots=inputs.slots[step, :n],
            lengths=[held + step + 1 for held in inputs.held[:n]]))

    def _batch(self, mode: ForwardMode, ids: torch.Tensor, rows: torch.Tensor, seq_lens: torch.Tensor,
               positions: torch.Tensor, *, slots: torch.Tensor, lengths: list[int]) -> ForwardBatch:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        batch = ForwardBatch(
            forward_mode=mode, batch_size=len(rows), input_ids=ids, req_pool_indices=rows, seq_lens=seq_lens,
            out_cache_loc=slots, seq_lens_sum=sum(lengths),
            orig_seq_lens=seq_lens, seq_lens_cpu=torch.tensor(lengths, dtype=torch.int64), positions=positions,
            spec_algorithm=SpeculativeAlgorithm.NONE, capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False)
        if self.runner.model_config.model_is_mrope:
            batch.mrope_positions = positions.unsqueeze(0).expand(3, -1)
        self.runner.kv_index_translator.bind_own_plan(batch)
        return batch

    @torch.no_grad()
    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        with self._single_rank():
            logits = self.runner.forward(batch).logits_output.next_token_logits
        return logits[: batch.batch_size, : self.vocab_size]


@contextmanager
def _as_served() -> Iterator[None]:
    """Build the draft as the model that its checkpoint describes. sglang would turn drafts of many families into the
    multi-token prediction head of a target of the same family, and give them the target's context and overrides."""
    original = TpModelWorker._init_model_config
    TpModelWorker._init_model_config = _init_model_config
    try:
        yield
    finally:
        TpModelWorker._init_model_config = original


def _init_model_config(worker: TpModelWorker) -> None:
    worker.model_config = _model_config(worker.server_args)


def _model_config(server_args: Any) -> ModelConfig:
    given = resolving_view(server_args)
    named = given._speculative_draft_quantization_explicitly_set  # else sglang filled in the target's quantization
    return ModelConfig(
        model_path=given.speculative_draft_model_path, revision=given.speculative_draft_model_revision,
        trust_remote_code=given.trust_remote_code, dtype=given.dtype, model_impl=given.model_impl,
        quantization=given.speculative_draft_model_quantization if named else None,
        sampling_defaults=given.sampling_defaults)
