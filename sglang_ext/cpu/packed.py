"""Linear layers whose weights oneDNN keeps in its own layout.

A product with few rows is bound by reading the weights, and oneDNN reads a plain matrix at half the speed of a blocked
one. So bfloat16 weights are laid out once, beside the originals: these are read by embeddings that share them, by
`get_weights_by_name` and by weight updates, so they cannot be released. Results differ at most by the order of sums.

sglang's contract for quantization methods is all this needs: a method is an attribute of its layer, and sglang tells it
before and after weights are loaded, whichever way they come.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

from .machine import free_memory

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.5
"""Share of the memory left beside weights and KV pool that the copies of all ranks may take."""
ROWS = 16
"""Rows that the layout is chosen for; on the processors measured it is the same for 1 and 64."""
MOST_ROWS = 256
"""Rows up to which the copy is used: with more, a product is bound by arithmetic and the plain weights are as fast, or
faster where there are many outputs."""


class _Packed:
    """What a linear layer and a language model head have in common: a packed copy of `layer.weight`."""

    _copy: torch.Tensor | None = None
    _address = 0

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x` [..., inputs] times the weight [outputs, inputs], plus bias [outputs], in bfloat16: [..., outputs]."""
        copy = self._copy
        if (copy is None or x.dtype is not torch.bfloat16 or x.shape[0] > MOST_ROWS or torch.compiler.is_compiling()
                or layer.weight.data_ptr() != self._address):  # drafts are given their target's head
            return super().apply(layer, x, bias)  # type: ignore[misc]
        return torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")

    def restore_weights_before_loading(self, layer: torch.nn.Module) -> None:
        """Drop the copy: until the new weights are complete, the originals serve."""
        self._copy = None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Copy the weights as they are now."""
        self._copy = torch.ops.mkldnn._reorder_linear_weight(layer.weight.data, ROWS)
        self._address = layer.weight.data_ptr()


class PackedLinearMethod(_Packed, UnquantizedLinearMethod):
    """`UnquantizedLinearMethod` on a packed copy."""


class PackedHeadMethod(_Packed, UnquantizedEmbeddingMethod):
    """`UnquantizedEmbeddingMethod` on a packed copy for the logits; it embeds with the original."""


def pack_weights(model_runner: ModelRunner) -> int:
    """Pack the linear layers and the head of a loaded model, as far as memory allows. Doing it twice is doing it once.

    Layers of another dtype than bfloat16, quantized ones, and every layer of a server with LoRA stay as they are.

    Returns:
        Bytes that the copies take.
    """
    if model_runner.server_args.enable_lora or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    candidates = _candidates(model_runner)
    budget = _budget(model_runner)
    packed = 0
    for layer, method in candidates:
        if packed + layer.weight.nbytes > budget:
            break
        method.process_weights_after_loading(layer)
        layer.quant_method = method
        packed += layer.weight.nbytes
    needed = sum(layer.weight.nbytes for layer, _ in candidates)
    if packed < needed:
        logger.warning("%.2f of %.2f GB of weights are packed for oneDNN: there is no memory for more; a smaller "
                       "--max-total-tokens leaves some", packed / 1e9, needed / 1e9)
    return packed


def _candidates(model_runner: ModelRunner) -> list[tuple[torch.nn.Module, _Packed]]:
    """Layers to pack and the methods they get."""
    found: list[tuple[torch.nn.Module, _Packed]] = [
        (layer, PackedLinearMethod()) for layer in model_runner.model.modules()
        if isinstance(layer, LinearBase) and type(layer.quant_method) is UnquantizedLinearMethod]
    head = getattr(model_runner.model, "lm_head", None)
    processor = getattr(model_runner.model, "logits_processor", None)
    if (isinstance(head, VocabParallelEmbedding) and type(head.quant_method) is UnquantizedEmbeddingMethod
            and not getattr(processor, "use_fp32_lm_head", True) and processor.rl_on_policy_target is None):
        found.append((head, PackedHeadMethod()))
    return [(layer, method) for layer, method in found
            if layer.weight.dtype is torch.bfloat16 and layer.weight.ndim == 2 and layer.weight.device.type == "cpu"]


def _budget(model_runner: ModelRunner) -> float:
    """Bytes that this process may take for copies. The pool is reserved, but takes memory only when it is written."""
    pool = model_runner.token_to_kv_pool.mem_usage * (1 << 30)
    ranks = model_runner.server_args.dp_size * model_runner.server_args.tp_size
    return max(0.0, free_memory() - pool) * MEMORY_SHARE / ranks
