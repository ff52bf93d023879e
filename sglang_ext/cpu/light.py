"""Rotary embedding and RMS norm in fewer calls.

At a small batch these take a tenth of a step, and nearly all of that is the start of many tiny operators. The rotation
of queries and keys is one product with cosines and one with sines of the whole head, whose tables are gathered once a
forward instead of once a layer; the norm is torch's fused one. Sums and products are the same, in the same precision or
a higher one.

A module of sglang's holds the method that its calls go to; another one is set there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner


def lighten(model_runner: ModelRunner) -> int:
    """Set the methods of a loaded model's modules. Doing it twice is doing it once.

    Returns:
        How many modules are served by this file.
    """
    count = 0
    for module in model_runner.model.modules():
        method = _method(module)
        if method is not None and not getattr(module, "is_torch_compile", False):
            module._forward_method = method
            count += 1
    return count


def _method(module: torch.nn.Module) -> Callable[..., Any] | None:
    if type(module) is RMSNorm and module.variance_size_override is None and module.has_weight and not (
            module.cast_x_before_out_mul or module.fp32_residual or module.override_orig_dtype):
        return partial(rms_norm, module)
    if isinstance(module, RotaryEmbedding) and _plain(module):
        return Rotation(module)
    return None


def _plain(rotary: RotaryEmbedding) -> bool:
    """Whether only the tables are a class's own, not what is done with them."""
    same = all(getattr(type(rotary), name) is getattr(RotaryEmbedding, name)
               for name in ("forward_native", "forward_cpu"))
    whole = rotary.rotary_dim == rotary.head_size and rotary.is_neox_style
    return same and whole and not hasattr(rotary, "sin_cos_cache")


def rms_norm(module: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None,
             post_residual_addition: torch.Tensor | None = None, quant_linear: Any = None) -> Any:
    """`RMSNorm.forward_native`: [..., hidden], and the new residual where one is given."""
    if post_residual_addition is not None or torch.compiler.is_compiling():
        return module.forward_native(x, residual, post_residual_addition, quant_linear)
    total = x.float() if residual is None else torch.add(x.float(), residual)
    normed = torch.rms_norm(total, (module.hidden_size,), module.weight.float(), module.variance_epsilon).to(x.dtype)
    return normed if residual is None else (normed, total.to(x.dtype))


class Rotation:
    """`RotaryEmbedding.forward_native` for whole heads in halves (the style of GPT-NeoX)."""

    def __init__(self, module: RotaryEmbedding) -> None:
        self._module = module
        self._positions = torch.empty(0, dtype=torch.int64)
        self._table: torch.Tensor | None = None
        self._cos = self._sin = torch.empty(0)

    def __call__(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                 offsets: torch.Tensor | None = None, fused_set_kv_buffer_arg: Any = None) -> Any:
        """Rotated query [rows, heads * size] and key, as views of one tensor."""
        if offsets is not None or fused_set_kv_buffer_arg is not None or torch.compiler.is_compiling():
            return self._module.forward_native(positions, query, key, offsets, fused_set_kv_buffer_arg)
        rows, size = positions.numel(), self._module.head_size
        self._gather(positions.flatten(), query.dtype)
        heads = torch.cat((query.view(rows, -1), key.view(rows, -1)), -1).view(rows, -1, size)
        rotated = torch.addcmul(heads * self._cos, heads.roll(size // 2, -1), self._sin).view(rows, -1)
        split = query.numel() // rows
        return rotated[:, :split].view(query.shape), rotated[:, split:].view(key.shape)

    def _gather(self, positions: torch.Tensor, dtype: torch.dtype) -> None:
        """Cosines and signed sines of these positions [rows, 1, size]; every layer of a forward asks for the same."""
        table = self._module.cos_sin_cache
        if table is self._table and self._cos.dtype is dtype and torch.equal(positions, self._positions):
            return
        cos, sin = table.index_select(0, positions).to(dtype).unsqueeze(1).chunk(2, -1)
        self._cos, self._sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        self._positions, self._table = positions.clone(), table
