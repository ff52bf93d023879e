"""mask, advance, walk and commit equal their reference, tolerance zero."""

from __future__ import annotations

import random

import pytest
import torch
from budget_cases import DEVICES, INTERPRETED, SANITISED, SCALE, Case, assert_only, cases, make_case, masked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels import Flag, Word, advance, commit, mask_logits, walk
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import NO_LIMIT, NOT_FORCING, WORDS

EXAMPLES = int((8 if INTERPRETED else 60) * SCALE)
common = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=SCALE <= 1)


@common
@given(cases(), st.integers(1, 4))
def test_mask_and_advance(case: Case, steps: int) -> None:
    for _ in range(steps):
        logits, buffer = case.logits(len(case.slots))
        expected = masked(logits, [case.words.get(s) for s in case.slots], case)
        mask_logits(logits, case.rows, case.state, case.tables)
        assert_only(logits, buffer, expected)

        sampled = [case.token() for _ in case.slots]
        tokens = torch.tensor(sampled, dtype=case.rng.choice([torch.int32, torch.int64]), device=case.device)
        advance(tokens, case.rows, case.state, case.tables)
        assert tokens.tolist() == [
            ref.advance_row(t, case.words[s], case.program, case.automaton) if s >= 0 else t
            for t, s in zip(sampled, case.slots, strict=True)]
        case.check_words()


@common
@given(st.data(), st.integers(0, 16), st.booleans(), st.integers(1, 3))
def test_walk_and_commit(data: st.DataObject, k: int, tree: bool, steps: int) -> None:
    case = data.draw(cases(most_rows=64, nodes=k + 1))
    nodes = case.state.allocate_nodes(len(case.slots) + 1, k + 1 + case.rng.randint(0, 1))
    for _ in range(steps):
        check_verification(case, nodes, k + 1, tree)


def check_verification(case: Case, nodes: torch.Tensor, width: int, tree: bool) -> None:
    n, kind = len(case.slots), case.rng.choice([torch.int32, torch.int64])
    parents = [random_parents(width, case.rng) for _ in case.slots] if tree else [None] * n
    draft = [likely_draft(case, slot, width, above) for slot, above in zip(case.slots, parents, strict=True)]
    states = [ref.walk_row(d, p, case.words[s], case.program, case.automaton) if s >= 0 else None
              for s, d, p in zip(case.slots, draft, parents, strict=True)]
    above = torch.tensor(parents, dtype=torch.int32, device=case.device) if tree else None
    logits, buffer = case.logits(n * width)
    expected = masked(logits, [row for rows in states for row in (rows or [None] * width)], case)

    walk(logits, torch.tensor(draft, dtype=kind, device=case.device), above, case.rows, nodes, case.state, case.tables)
    assert_only(logits, buffer, expected)
    case.check_words()
    first = nodes.view(-1, WORDS)[: n * width].view(n, width, WORDS)
    for got, want in zip(first.tolist(), states, strict=True):
        assert want is None or not want[0][Word.FLAGS] & Flag.ACTIVE or got == want

    sampled = [[case.token() for _ in range(width)] for _ in range(n)]
    last = [case.rng.randrange(width) for _ in range(n)]
    for i, rows in enumerate(states):
        path_tokens(sampled[i], draft[i], parents[i], last[i] if rows else 0)
    tokens = torch.tensor(sampled, dtype=kind, device=case.device)
    accepted = torch.tensor(last, dtype=case.rng.choice([torch.int32, torch.int64]), device=case.device)
    commit(tokens, accepted, above, case.rows, nodes, case.state, case.tables)
    for i, (slot, rows) in enumerate(zip(case.slots, states, strict=True)):
        if rows is not None:
            last[i] = ref.commit_row(sampled[i], last[i], parents[i], rows, case.words[slot], case.program,
                                     case.automaton)
    assert accepted.tolist() == last
    assert tokens.tolist() == sampled
    case.check_words()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_a_grammar_bans_is_not_chosen_instead_of_what_the_budget_takes_away(dtype: torch.dtype) -> None:
    """A block must not end yet and a grammar allows nothing but its end: logits are sanitised before the mask, so
    nothing is -inf any more."""
    case = make_case("plain", 48, True, 1, dtype, 0, 5, DEVICES[0])
    a, slot = case.automaton, abs(case.slots[0])
    row = case.state.words[slot]
    row[:] = 0
    row[Word.AUTO], row[Word.FLAGS] = int(a.bytewise.words[a.bytewise.block_start]), Flag.ACTIVE
    row[Word.CURSOR], row[Word.MIN] = NOT_FORCING, 9
    row[Word.MAX] = row[Word.GRACE] = row[Word.RESPONSE_LIMIT] = NO_LIMIT
    end, = a.vocabulary.end_ids
    logits = torch.full((1, 48), SANITISED, dtype=dtype, device=case.device)
    logits[0, end] = 3.0
    mask_logits(logits, torch.tensor([slot], device=case.device), case.state, case.tables)
    assert logits[0, end] == ref.MASKED_LOGIT
    assert int(logits.argmax()) == end


def random_parents(width: int, rng: random.Random) -> list[int]:
    """A tree, with some padding, some of it in an odd way."""
    return [0] + [rng.choice([j - 1, j - 1, rng.randrange(j), rng.choice([-1, j, j + 1])]) if rng.random() < 0.3
                  else rng.randrange(max(0, j - 2), j) for j in range(1, width)]


def likely_draft(case: Case, slot: int, width: int, parents: list[int] | None) -> list[int]:
    """Draft tokens that often are what the budget forces, so that long drafts stay alive."""
    draft = [case.token() for _ in range(width)]
    states = [list(case.words[max(slot, 0)])]
    for j in range(1, width):
        words = list(states[max(ref.parent_of(parents, j), 0)])
        taken = ref.advance_row(draft[j], words, case.program, case.automaton)
        draft[j] = case.rng.choice([taken, taken, taken, taken, draft[j], -1 if case.rng.random() < 0.2 else taken])
        states.append(words)
    return draft


def path_tokens(sampled: list[int], draft: list[int], parents: list[int] | None, last: int) -> None:
    """At the nodes before the last accepted one, what was sampled is the draft token of the next."""
    while last > 0:
        parent = max(ref.parent_of(parents, last), 0)
        sampled[parent], last = draft[last], parent
