"""sglang's attention backend `torch_batched`: the whole batch at once, on the CPU, in PyTorch.

It serves prefill with a cached prefix, decode, and verification of drafts (chain and tree), with grouped queries,
sliding windows, soft-capped scores and attention sinks. What it cannot do is refused when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from .attention_call import Workspace, attend
from .attention_plan import Batch, Kind, Tile, draft_tree, plan
from .refusal import message

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


_active: BatchedAttention | None = None
"""The backend whose forward is running: what a traced call refers to, as a graph has no place for objects."""


class BatchedAttention(AttentionBackend):
    """One gather and one attention call a layer for batches of similar length; a few for ragged ones."""

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        layers = [m for m in model_runner.model.modules() if isinstance(m, RadixAttention)]
        _refuse(model_runner, layers)
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._swa_pool = self.token_to_kv_pool if isinstance(self.token_to_kv_pool, SWAKVPool) else None
        self._out_cache_loc: torch.Tensor | None = None
        self._swa_out_cache_loc: torch.Tensor | None = None
        self._layers = {layer.layer_id: layer for layer in layers}
        self._batch: Batch | None = None
        self._plans: dict[tuple[Any, ...], list[Tile]] = {}
        self._workspace = Workspace()

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Describe the rows of this forward; the first layer of each kind adds its tiles, the others use them."""
        if forward_batch.forward_mode.is_idle():
            self._begin(None, None)
        else:
            batch = _describe(forward_batch, self.req_to_token_pool.req_to_token)
            self._begin(batch, forward_batch.out_cache_loc)

    def forward_extend(self, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, layer: RadixAttention,
                       forward_batch: ForwardBatch, save_kv_cache: bool = True,
                       sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Write the new keys and values, then attend from the new rows.

        Args:
            q: [rows, query heads * width]; k, v: [rows, key heads, width], or None where the cache has them.

        Returns:
            [rows, query heads * value width].
        """
        if torch.compiler.is_compiling():  # one opaque call: tiles change from step to step, the graph must not
            width = layer.tp_q_head_num * layer.v_head_dim
            return torch.ops.sglang_ext.attention(q, k, v, sinks, layer.layer_id, save_kv_cache, width)
        return self._attend(q, k, v, layer, save_kv_cache, sinks)

    forward_decode = forward_extend

    def init_cpu_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Nothing is kept between captured forwards."""

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_capture_cpu_graph(self, bs: int, num_tokens: int, req_pool_indices: torch.Tensor,
                                                seq_lens: torch.Tensor, *rest: Any) -> None:
        """A forward that sglang's CPU graph runner traces: it traces decoding only.

        Args:
            rest: [num_tokens] slots to write, in releases that give them, before encoder lengths, mode and draft.
                Without them the traced forward writes slot 0, which nobody reads.
        """
        out_cache_loc = rest[0] if len(rest) > 3 else torch.zeros(num_tokens, dtype=torch.int64)
        slots = self.req_to_token_pool.req_to_token[req_pool_indices, : int(seq_lens.max())]
        self._begin(Batch(slots, seq_lens - 1, torch.ones_like(seq_lens)), out_cache_loc)

    def support_triton(self) -> bool:
        return False

    def _begin(self, batch: Batch | None, out_cache_loc: torch.Tensor | None) -> None:
        global _active
        _active = self
        self._plans.clear()
        self._batch, self._out_cache_loc, self._swa_out_cache_loc = batch, out_cache_loc, None
        if self._swa_pool is not None and out_cache_loc is not None:
            self._swa_out_cache_loc = self._swa_pool.translate_loc_from_full_to_swa(out_cache_loc)

    def _attend(self, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, layer: RadixAttention,
                save_kv_cache: bool, sinks: torch.Tensor | None) -> torch.Tensor:
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(self._out_cache_loc, self._swa_out_cache_loc), k, v)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        tiles = self._tiles(layer, query, keys)
        if len(tiles) == 1 and isinstance(tiles[0].where, slice):
            out = attend(query, keys, values, tiles[0], layer.scaling, self._workspace, layer.logit_cap, sinks)
            return out.reshape(len(out), -1)
        out = q.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        for tile in tiles:
            out[tile.where] = attend(query[tile.where], keys, values, tile, layer.scaling, self._workspace,
                                     layer.logit_cap, sinks)
        return out.view(len(out), -1)

    def _tiles(self, layer: RadixAttention, query: torch.Tensor, keys: torch.Tensor) -> list[Tile]:
        """The tiles for layers of this kind, made once per forward."""
        in_swa_pool = self._swa_pool is not None and self._swa_pool.layers_mapping[layer.layer_id][1]
        causal = layer.attn_type is not AttentionType.ENCODER_ONLY
        kind = Kind(layer.sliding_window_size if causal else -1, causal, in_swa_pool)
        key = (kind, query.shape[1:], keys.shape[1], query.dtype)
        if key not in self._plans:
            batch = self._batch
            if batch is None:
                raise RuntimeError("init_forward_metadata was not called for this forward")
            if in_swa_pool:
                slots = self._swa_pool.translate_loc_from_full_to_swa(batch.slots)
                batch = Batch(slots, batch.first, batch.rows, batch.tree)
            self._plans[key] = plan(batch, kind, (query.shape[1], keys.shape[1]), query.shape[2], query.dtype)
        return self._plans[key]


@torch.library.custom_op("sglang_ext::attention", mutates_args=())
def _traced_attention(q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, sinks: torch.Tensor | None,
                      layer: int, save_kv_cache: bool, width: int) -> torch.Tensor:
    """Attention of one layer as one node of a graph. It writes the cache, which nothing else in a graph reads."""
    assert _active is not None
    return _active._attend(q, k, v, _active._layers[layer], save_kv_cache, sinks)


@_traced_attention.register_fake
def _(q: torch.Tensor, k: Any, v: Any, sinks: Any, layer: int, save_kv_cache: bool, width: int) -> torch.Tensor:
    return q.new_empty(q.shape[0], width)


def _describe(forward_batch: ForwardBatch, req_to_token: torch.Tensor) -> Batch:
    """The rows of a forward. `seq_lens` counts new rows in decode and prefill, but not drafts."""
    lens, mode, tree = forward_batch.seq_lens.long(), forward_batch.forward_mode, None
    if mode.is_target_verify():
        drafts = forward_batch.spec_info.draft_token_num
        first, rows = lens, torch.full_like(lens, drafts)
        if forward_batch.spec_info.tree_topk != 1:
            tree = draft_tree(forward_batch.spec_info.custom_mask, lens, drafts)
    elif mode.is_decode():
        first, rows = lens - 1, torch.ones_like(lens)
    else:
        rows = forward_batch.extend_seq_lens.long()
        first = lens - rows
        if not bool(rows.all()):  # a request without new rows has no query
            keep = rows > 0
            first, rows, lens = first[keep], rows[keep], lens[keep]
            return Batch(req_to_token[forward_batch.req_pool_indices[keep], : int(lens.max())], first, rows)
    columns = int((first + rows).max())
    return Batch(req_to_token[forward_batch.req_pool_indices, :columns], first, rows, tree)


def _refuse(model_runner: ModelRunner, layers: list[RadixAttention]) -> None:
    """Raises ValueError for what this backend would compute wrongly, before a request can meet it."""
    problem = message({
        f"a page size of 1 (given {model_runner.page_size})": model_runner.page_size != 1,
        "no multi-head latent attention": model_runner.use_mla_backend,
        "no cross attention": any(layer.is_cross_attention for layer in layers),
        "tanh as the soft cap": any(layer.logit_cap > 0 and layer.logit_capping_method != "tanh" for layer in layers),
        "no temperature by position": any(layer.xai_temperature_len > 0 for layer in layers),
        "no chunked local attention": _chunked(model_runner, layers),
        "a key and value cache in the model's dtype or another of at least 16 bits": not _plain_cache(model_runner),
    })
    if problem:
        raise ValueError(problem)


def _chunked(model_runner: ModelRunner, layers: list[RadixAttention]) -> bool:
    """Whether some layer attends within chunks that are shorter than the context."""
    chunk = getattr(model_runner.model_config, "attention_chunk_size", None)
    return any(layer.use_irope for layer in layers) and bool(chunk) and chunk < model_runner.model_config.context_len


def _plain_cache(model_runner: ModelRunner) -> bool:
    dtype = model_runner.kv_cache_dtype
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize >= 2
