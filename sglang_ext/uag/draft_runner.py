"""The draft model in sglang's own model runner, with a KV pool and positions of its own.

Lengths and positions are counted in the draft's tokens, so nothing of the target's pool can be shared. A request's
place is a row of a private table; the slots it was given stay with it until it leaves, so that going back after a
rejected draft costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig
from sglang.srt.runtime_context import get_memory, get_schedule

from .pair import draft_attention, tokens_in

logger = logging.getLogger(__name__)
GROWTH = 64
"""Slots that a request is given at a time."""


@dataclass
class DraftRow:
    """A request's place in the draft's pool.

    Attributes:
        index: row of the table, from 1 on; row 0 is padding.
        ids: the tokens whose keys and values are in the pool, in order.
        slots: the slots it holds, by position; more than `ids`, in whole pages.
    """

    index: int
    ids: list[int] = field(default_factory=list)
    slots: int = 0


class DraftRunner:
    """Forwards of the draft, for many requests at once. Its weights are there from the start; its pool is there after
    `allocate`, so that memory can be measured in between.

    Args:
        server_args: the server's.
        gpu_id, nccl_port: as sglang hands them to a speculative worker.
        random_seed: the target's.
        alone: scope in which the model is this rank's own.

    Raises:
        ValueError: the attention backend that the operator named cannot serve this draft.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, random_seed: int | None = None,
                 alone: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        from sglang.srt.layers.moe.utils import draft_model_build_scope
        from sglang.srt.runtime_context import attention_backends, get_spec

        backend = draft_attention(get_spec().speculative_draft_attention_backend, attention_backends()[0],
                                  latent=_model_config(server_args).attention_arch == AttentionArch.MLA)
        self._alone = alone
        with draft_model_build_scope(), _as_served(), alone():
            self._worker = TpModelWorker(server_args=server_args, gpu_id=gpu_id, nccl_port=nccl_port,
                                         is_draft_worker=True, draft_attention_backend=backend,
                                         random_seed=random_seed)
        self.runner = self._worker.model_runner
        self.device = self.runner.device
        self.vocab_size: int = self.runner.model_config.vocab_size
        self.context: int = self.runner.model_config.context_len

    def tokens_in(self, memory: int) -> int:
        """How many of its tokens so many bytes hold, by sglang's own account. No layer forgets anything, so one with a
        window costs as any other."""
        with (self._alone(), get_schedule().override(swa_full_tokens_ratio=1.0),
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
        with self._alone():
            self._worker.alloc_memory_pool(memory_pool_config=MemoryPoolConfig(
                max_total_num_tokens=tokens, max_running_requests=rows, full_max_total_num_tokens=tokens,
                swa_max_total_num_tokens=tokens))
        self.use_pool(self.runner.token_to_kv_pool_allocator, self.runner.req_to_token_pool.req_to_token, page, tokens,
                  rows)
        if tokens <= 2 * self._growth:
            logger.warning("UAG: the draft's pool holds %d tokens, so hardly anything will be drafted; raise "
                           "--max-total-tokens or --mem-fraction-static", tokens)

    def use_pool(self, allocator: Any, table: torch.Tensor, page: int, tokens: int, rows: int) -> None:
        """Keep requests in this pool. `table`: [rows + 1, positions] int32, each request's slots."""
        self._allocator, self._table, self._page = allocator, table, page
        self._growth = _whole(GROWTH, page)
        self.tokens, self.rows = tokens, min(rows, len(table) - 1)
        self._free = list(range(self.rows, 0, -1))

    def init_attention_backends(self) -> None:
        with self._alone():
            self._worker.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """Capture decode steps by batch size, as sglang does for any model that it serves; nothing on the CPU.

        sglang refuses to capture a draft's decode steps, as its own drafts do not decode: from here on the runner is
        that of a model without speculation.
        """
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self.runner.spec_algorithm = SpeculativeAlgorithm.NONE
        with self._alone():
            self._worker.init_cuda_graphs()

    def open(self) -> DraftRow | None:
        """A place for a request, or None if all are taken."""
        return DraftRow(self._free.pop()) if self._free else None

    def close(self, row: DraftRow) -> None:
        """Give a place and its slots back. Only between forwards: whatever still runs may read them."""
        if row.slots:
            self._allocator.free(self._table[row.index, : row.slots].to(torch.int64))
        row.ids, row.slots = [], 0
        self._free.append(row.index)

    @property
    def idle(self) -> bool:
        """Whether no request holds a place or a slot."""
        return len(self._free) == self.rows and self._allocator.available_size() >= self.tokens

    @property
    def usage(self) -> str:
        """How much of the pool is held, for the log."""
        return (f"{self.rows - len(self._free)} of {self.rows} places, "
                f"{self.tokens - self._allocator.available_size()} of {self.tokens} tokens held")

    def reserve(self, row: DraftRow, length: int) -> bool:
        """Make room for `length` tokens; False if the pool is full or the context ends before."""
        width = self._table.shape[1]
        if length > min(self.context, width):
            return False
        missing = length - row.slots
        if missing <= 0:
            return True
        least = _whole(missing, self._page)
        size = max(min(_whole(missing, self._growth), _whole(width - row.slots, self._page)), least)
        slots = self._allocator.alloc(size)
        if slots is None and least < size:
            slots = self._allocator.alloc(least)
        if slots is None:
            return False
        slots = slots[: width - row.slots]  # of the last page, what the table has room for: any slot frees its page
        self._table[row.index, row.slots : row.slots + len(slots)] = slots.to(self._table.dtype)
        row.slots += len(slots)
        return True

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
        sent = _to(self.device, [flat, positions, owner])
        lens = _to(self.device, [[row.index for row in rows], before, new])
        starts = torch.cumsum(lens[2], 0) - lens[2]
        batch = self._batch(ForwardMode.EXTEND, sent[0], lens[0], lens[1] + lens[2], sent[1], owner=sent[2],
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

    def decode(self, rows: Sequence[DraftRow], tokens: torch.Tensor, steps: int) -> torch.Tensor:
        """One more token of each request.

        The caller appends the tokens to `row.ids` once they are on the host.

        Args:
            rows: [n].
            tokens: [n] int64, the next token of each.
            steps: how many tokens, since `row.ids`, are in the pool already.

        Returns:
            [n, vocab] logits.
        """
        lengths = [len(row.ids) + steps for row in rows]
        index, positions = _to(self.device, [[row.index for row in rows], lengths])
        return self._forward(self._batch(ForwardMode.DECODE, tokens, index, positions + 1, positions, owner=index,
                                         lengths=[n + 1 for n in lengths]))

    def _batch(self, mode: ForwardMode, ids: torch.Tensor, rows: torch.Tensor, seq_lens: torch.Tensor,
               positions: torch.Tensor, *, owner: torch.Tensor, lengths: list[int]) -> ForwardBatch:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        batch = ForwardBatch(
            forward_mode=mode, batch_size=len(rows), input_ids=ids, req_pool_indices=rows, seq_lens=seq_lens,
            out_cache_loc=self._table[owner, positions].to(torch.int64), seq_lens_sum=sum(lengths),
            orig_seq_lens=seq_lens, seq_lens_cpu=torch.tensor(lengths, dtype=torch.int64), positions=positions,
            spec_algorithm=SpeculativeAlgorithm.NONE, capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False)
        if self.runner.model_config.model_is_mrope:
            batch.mrope_positions = positions.unsqueeze(0).expand(3, -1)
        self.runner.kv_index_translator.bind_own_plan(batch)
        return batch

    @torch.no_grad()
    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        with self._alone():
            logits = self.runner.forward(batch).logits_output.next_token_logits
        return logits[: batch.batch_size, : self.vocab_size]


def _whole(count: int, of: int) -> int:
    """The next multiple."""
    return -(-count // of) * of


def _to(device: Any, lists: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Lists of one length as int64 tensors on a device, in one transfer that nothing waits for."""
    host = torch.tensor(lists, dtype=torch.int64)
    if torch.device(device).type == "cuda":
        host = host.pin_memory()
    return list(host.to(device, non_blocking=True))


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
    return ModelConfig(
        model_path=given.speculative_draft_model_path, revision=given.speculative_draft_model_revision,
        trust_remote_code=given.trust_remote_code, dtype=given.dtype, model_impl=given.model_impl,
        quantization=given.speculative_draft_model_quantization, sampling_defaults=given.sampling_defaults)
