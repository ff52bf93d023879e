"""No launch after `prewarm` has anything to compile, whatever the batch, the draft, the tensors' types and places."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from budget_cases import INTERPRETED, lifted
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_keys import Launch, noted
from sglang_ext.budget.kernels import BudgetState, Tables, advance, commit, mask_logits, prewarm, walk

from sglang_ext.budget.automaton import Automaton

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
SHAPES = {(vocab, eos): lifted("plain", vocab, True) for vocab in (48, 49) for eos in (1, 2)}


def tables_of(a: Automaton, eos: int) -> Tables:
    """The automaton's tables, with so many ids that end a response."""
    host = Tables.from_host(a, "cpu")
    return Tables(**{**vars(host), "eos_ids": torch.arange(eos, dtype=torch.int32)})


@cache
def warmed(vocab: int, eos: int, drafts: bool) -> tuple[BudgetState, Tables, frozenset[Launch]]:
    a = SHAPES[vocab, eos]
    state, tables = BudgetState.allocate(99, a.program, 8, "cpu"), tables_of(a, eos)
    with noted() as launched:
        prewarm(state, tables, vocab, (torch.float32,), drafts=drafts)
    return state, tables, frozenset(launched)


def shifted(shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> torch.Tensor:
    """A contiguous tensor that begins anywhere in its storage."""
    size = torch.Size(shape).numel()
    return torch.zeros(size + offset, dtype=dtype)[offset:].view(shape)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**32))
def test_no_step_compiles(shape: tuple[int, int], n: int, width: int, seed: int) -> None:
    rng, (vocab, _) = random.Random(seed), shape
    state, tables, known = warmed(*shape, drafts=True)
    kind = rng.choice([torch.int32, torch.int64])
    pad = rng.choice([0, 1, 15, 16])
    rows, last = (shifted((n,), torch.int64, rng.randint(0, 3)) for _ in range(2))
    tokens, draft = shifted((n, width), kind, rng.randint(0, 3)), shifted((n, width), torch.int64, rng.randint(0, 3))
    parents = rng.choice([None, shifted((n, width), torch.int32, rng.randint(0, 3))])
    logits, nodes = torch.zeros(n * width, vocab + pad)[:, :vocab], state.allocate_nodes(n, width)
    with noted() as launched:
        mask_logits(logits[:n], rows, state, tables)
        mask_logits(logits[:1].as_strided((1, vocab), (1, 1)), rows[:1], state, tables)
        advance(tokens.flatten()[:n], rows, state, tables)
        walk(logits, draft, parents, rows, nodes, state, tables)
        commit(tokens, last, parents, rows, nodes, state, tables)
    assert len(launched) == 5
    assert set(launched) <= known


def test_without_drafts_no_more_than_a_plain_step_is_compiled() -> None:
    kernels = {name.rpartition(".")[2] for name, _ in warmed(48, 1, drafts=False)[2]}
    assert kernels == {"_mask_kernel", "_advance_kernel"}


def test_prewarming_changes_nothing() -> None:
    a = lifted("plain", 48, True)
    state, tables = BudgetState.allocate(5, a.program, 8, "cpu"), Tables.from_host(a, "cpu")
    state.words.random_(0, 2)
    words, program = state.words.clone(), state.program.clone()
    prewarm(state, tables, 48, (torch.float32, torch.bfloat16), drafts=True)
    assert torch.equal(state.words, words)
    assert torch.equal(state.program, program)
