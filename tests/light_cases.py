"""Cases of `test_cpu_light.py`: what sglang's modules do is decided when they are imported, so they run apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext import cpu

cpu.activate()
from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm  # noqa: E402
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402
from sglang.srt.layers.rotary_embedding.rope_variant import Llama3RotaryEmbedding  # noqa: E402

from sglang_ext.cpu.light import Rotation, _method, rms_norm  # noqa: E402

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def rotary(size: int, dtype: torch.dtype) -> RotaryEmbedding:
    return RotaryEmbedding(size, size, 256, 10000, True, dtype)


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 9), hidden=st.sampled_from([8, 576]), dtype=DTYPES, residual=st.booleans(),
       seed=st.integers(0, 999))
def test_norm_is_sglangs(rows: int, hidden: int, dtype: torch.dtype, residual: bool, seed: int) -> None:
    torch.manual_seed(seed)
    norm = RMSNorm(hidden, weight_dtype=dtype)
    norm.weight.data = torch.randn(hidden).to(dtype)
    x, other = torch.randn(2, rows, hidden).to(dtype) * 3
    given_ = (x, other) if residual else (x,)
    wanted, found = norm.forward_native(*given_), rms_norm(norm, *given_)
    for a, b in zip(*((wanted, found) if residual else ((wanted,), (found,))), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@settings(deadline=None, max_examples=60)
@given(positions=st.lists(st.integers(0, 255), min_size=1, max_size=9), heads=st.integers(1, 6),
       key_heads=st.integers(1, 3), size=st.sampled_from([4, 64]), dtype=DTYPES, seed=st.integers(0, 999))
def test_rotation_is_sglangs(positions: list[int], heads: int, key_heads: int, size: int, dtype: torch.dtype,
                             seed: int) -> None:
    torch.manual_seed(seed)
    module, where = rotary(size, dtype), torch.tensor(positions)
    query, key = (torch.randn(len(positions), n * size).to(dtype) for n in (heads, key_heads))
    wanted = module.forward_native(where, query.clone(), key.clone())
    found = Rotation(module)(where, query, key)
    for a, b in zip(wanted, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(a, b, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_rotation_follows_positions_that_change_in_place() -> None:
    """Some verifications write the positions of every step into the same tensor."""
    module, where = rotary(8, torch.float32), torch.tensor([3, 4])
    rotation, query, key = Rotation(module), torch.randn(2, 16), torch.randn(2, 8)
    rotation(where, query, key)
    where += 5
    for a, b in zip(module.forward_native(where, query, key), rotation(where, query, key), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("module", [
    GemmaRMSNorm(8), RMSNorm(8, var_hidden_size=4), RMSNorm(8, cast_x_before_out_mul=True),
    RMSNorm(8, has_weight=False), RotaryEmbedding(8, 4, 16, 10000, True, torch.float32),
    RotaryEmbedding(8, 8, 16, 10000, False, torch.float32),
], ids=["gemma", "part of the variance", "cast before", "no weight", "half of the head", "interleaved"])
def test_what_computes_otherwise_is_left_alone(module: torch.nn.Module) -> None:
    assert _method(module) is None


def test_tables_of_another_class_are_used() -> None:
    module = Llama3RotaryEmbedding(8, 8, 64, 10000, True, torch.float32, 8.0, 1.0, 4.0, 16)
    method, where, query, key = _method(module), torch.tensor([9, 40]), torch.randn(2, 16), torch.randn(2, 8)
    assert method is not None
    for a, b in zip(module.forward_native(where, query, key), method(where, query, key), strict=True):
        torch.testing.assert_close(a, b)
