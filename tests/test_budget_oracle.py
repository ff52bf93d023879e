"""The kernels agree with a plain rescan of the whole sequence, with and without speculation."""

from __future__ import annotations

import random
from typing import Any

import torch
from budget_cases import DEVICES, FAMILIES, INTERPRETED, MESSAGE, SCALE, delimiters, lifted
from budget_oracle import Rules, View, replay
from family_scripts import script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels import BudgetState, Flag, Outcome, Tables, Word, advance, commit, mask_logits, walk
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import INSIDE, NO_LIMIT, NOT_FORCING, WORDS

from sglang_ext.budget.automaton import Automaton

NAMES = {Outcome.NONE: "none", Outcome.NATURAL: "natural", Outcome.GRACE: "grace", Outcome.FORCED: "forced",
         Outcome.EOS: "eos", Outcome.IMPLICIT: "implicit", Outcome.OPEN: "open"}
VOCAB, STEPS, ROWS = 48, 16, 3
BEGINNINGS = ("outside", "inside", "inside", "pending")
"""How a response starts; thinking is implied for no family whose start marker begins with white space."""
common = settings(max_examples=max(1, int((3 if INTERPRETED else 40) * SCALE)), deadline=None, derandomize=SCALE <= 1,
                  suppress_health_check=list(HealthCheck))


class Session:
    """A few requests with budgets, and the raw tokens that each has sampled."""

    def __init__(self, family: str, special: bool, seed: int) -> None:
        self.rng, self.a = random.Random(seed), lifted(family, VOCAB, special)
        self.vocab = len(self.a.vocabulary.pieces)
        state = BudgetState.allocate(ROWS + 2, self.a.program, MESSAGE + len(self.a.program), "cpu")
        slots = self.rng.sample(range(ROWS + 2), ROWS)
        self.rules = [admit(family, self.a, state, slot, self.rng) for slot in slots]
        self.state = BudgetState(state.words.to(DEVICES[0]), state.program.to(DEVICES[0]), state.shared, state.stride)
        self.tables, self.rows = Tables.from_host(self.a, DEVICES[0]), torch.tensor(slots, device=DEVICES[0])
        self.sampled: list[list[int]] = [[] for _ in slots]
        self.scripts = [script(family, self.a, self.rng, 5 * STEPS) for _ in slots]

    def check_mask(self, row: torch.Tensor, view: View) -> None:
        """`row` was all zeros."""
        if view.pending:
            assert row.isfinite().nonzero().flatten().tolist() == view.pending[:1]
        else:
            assert set((row != 0).nonzero().flatten().tolist()) == view.lost()

    def check_words(self) -> None:
        for slot, rules, sampled in zip(self.rows.tolist(), self.rules, self.sampled, strict=True):
            view, words = replay(rules, sampled), self.state.words[slot].tolist()
            assert bool(words[Word.AUTO] & INSIDE) == view.scanner.inside
            assert NAMES[Outcome(words[Word.OUTCOME])] == view.outcome
            assert (words[Word.USED], words[Word.FORCED]) == (view.used, view.forced)

    def sample(self, row: torch.Tensor, hint: int) -> int:
        """Any id that the mask leaves; the hint if it can be."""
        allowed = (row == 0).nonzero().flatten().tolist()
        return hint if hint in allowed and self.rng.random() < 0.9 else self.rng.choice(allowed)


def admit(family: str, a: Automaton, state: BudgetState, slot: int, rng: random.Random) -> Rules:
    """Draw a request's limits; write its row the way an engine admits it."""
    v = a.vocabulary
    most = rng.choice([0, 1, 3, 6, NO_LIMIT])
    label = [v.spell(a.markers.label[k:]) for k in range(len(a.markers.label))]
    ends = [a.end_ids(pair) for pair in range(len(a.pairs))]
    rules = Rules(delimiters(family, a), [ids[: -1 - len(v.break_ids)] for ids in ends], v.break_ids,
                  rng.choice(BEGINNINGS[: 3 + (not a.markers.start[:1].isspace())]), most,
                  rng.randint(0, min(most, 4)), rng.choice([NO_LIMIT, max(0, most - 3)]),
                  rng.choice([NO_LIMIT, NO_LIMIT, 0, 2, 5, 9]),
                  rng.choices(range(len(v.pieces) - 24, len(v.pieces)), k=rng.randint(0, MESSAGE)), rng.random() < 0.8,
                  rng.random() < 0.8, label, rng.randrange(len(ends)))
    start = state.program_start(slot)
    sequence = a.side_by_side([[*rules.message, *ids] for ids in ends])
    state.program[start : start + len(sequence)] = torch.tensor(sequence, dtype=torch.int32)
    words = {"outside": a.start_word, "inside": a.block_word, "pending": a.implied_word}
    row = [0] * WORDS
    pair = rules.pair if rules.begin == "inside" else 0
    row[Word.AUTO], row[Word.CURSOR], row[Word.FORCE_START] = words[rules.begin](pair), NOT_FORCING, start
    row[Word.OUTCOME] = Outcome.OPEN if rules.begin == "inside" else Outcome.NONE
    row[Word.FLAGS] = (Flag.ACTIVE | (Flag.EOS_CLOSES if rules.eos_closes else 0)
                       | (0 if rules.line_break else Flag.NO_BREAK))
    row[Word.MAX], row[Word.MIN], row[Word.GRACE] = most, rules.least, int(rules.grace)
    row[Word.RESPONSE_LIMIT] = int(rules.last)
    ref.start_forcing_if_due(row, a, chosen=False)
    state.words[slot] = torch.tensor(row, dtype=torch.int32)
    return rules


sessions = st.builds(Session, st.sampled_from(sorted(FAMILIES)), st.booleans(), st.integers(0, 2**32))


@common
@given(sessions)
def test_decoding(s: Session) -> None:
    for _ in range(STEPS):
        logits = torch.zeros(ROWS, s.vocab, device=s.rows.device)
        mask_logits(logits, s.rows, s.state, s.tables)
        for i, (row, history) in enumerate(zip(logits.cpu(), s.sampled, strict=True)):
            s.check_mask(row, replay(s.rules[i], history))
            history.append(s.sample(row, s.scripts[i][len(history)]))
        tokens = torch.tensor([history[-1] for history in s.sampled], device=s.rows.device)
        advance(tokens, s.rows, s.state, s.tables)
        assert tokens.tolist() == [replay(r, h).output[-1] for r, h in zip(s.rules, s.sampled, strict=True)]
        s.check_words()


@common
@given(sessions, st.integers(1, 6), st.booleans())
def test_speculation(s: Session, k: int, tree: bool) -> None:
    nodes = s.state.allocate_nodes(ROWS, k + 1)
    for _ in range(STEPS // 2):
        parents = [[j - 1 if not tree or s.rng.random() < 0.6 else s.rng.randrange(j) for j in range(k + 1) if j] for
                   _ in s.rules]
        parents = [[0, *above] for above in parents]
        draft = [[*h[-1:], *s.scripts[i][len(h) :]][: k + 1] if h else [0, *s.scripts[i]][: k + 1]
                 for i, h in enumerate(s.sampled)]
        verify(s, k + 1, parents, draft, nodes, tree)
        s.check_words()


def verify(s: Session, width: int, parents: list[list[int]], draft: list[list[int]], nodes: torch.Tensor,
           tree: bool) -> None:
    foresee(s, parents, draft)
    above = torch.tensor(parents, dtype=torch.int32, device=s.rows.device) if tree else None
    logits = torch.zeros(ROWS * width, s.vocab, device=s.rows.device)
    walk(logits, torch.tensor(draft, device=s.rows.device), above, s.rows, nodes, s.state, s.tables)
    sampled, last = torch.zeros(ROWS, width, dtype=torch.int64), torch.zeros(ROWS, dtype=torch.int64)
    for i, rows in enumerate(logits.cpu().view(ROWS, width, -1)):
        for j, row in enumerate(rows):
            path = way(parents[i], j)
            view = replay(s.rules[i], s.sampled[i] + [draft[i][x] for x in path])
            if view.output[len(s.sampled[i]) :] == [draft[i][x] for x in path]:
                s.check_mask(row, view)
            else:
                assert bool((row == 0).all()), "a node that cannot be accepted is left alone"
            children = [draft[i][x] for x in range(j + 1, width) if parents[i][x] == j]
            sampled[i, j] = s.sample(row, s.rng.choice([*children, 1]))
        for j in range(1, width):
            if parents[i][j] == last[i] and draft[i][j] == sampled[i, last[i]]:
                last[i] = j
    raw = [[int(sampled[i, x]) for x in [0, *way(parents[i], int(last[i]))]] for i in range(ROWS)]
    tokens, accepted = sampled.to(s.rows.device), last.to(s.rows.device)
    commit(tokens, accepted, above, s.rows, nodes, s.state, s.tables)
    for i, chosen in enumerate(raw):
        output = extend(s, i, chosen)
        path = [0, *way(parents[i], int(accepted[i]))]
        assert [int(tokens[i, x]) for x in path] == output


def extend(s: Session, i: int, chosen: list[int]) -> list[int]:
    """Append sampled tokens to a request, up to the first that the budget replaces; return what they put out."""
    output = []
    for token in chosen:
        s.sampled[i].append(token)
        output.append(replay(s.rules[i], s.sampled[i]).output[-1])
        if output[-1] != token:
            break
    return output


def foresee(s: Session, parents: list[list[int]], draft: list[list[int]]) -> None:
    """Make a draft foresee what is forced, mostly, as an engine does."""
    for i, tokens in enumerate(draft):
        for j in range(1, len(tokens)):
            view: Any = replay(s.rules[i], s.sampled[i] + [tokens[x] for x in way(parents[i], j)[:-1]])
            if view.pending and s.rng.random() < 0.9:
                tokens[j] = view.pending[0]


def way(parents: list[int], node: int) -> list[int]:
    """Nodes from the root's child to this one."""
    return [] if node == 0 else [*way(parents, parents[node]), node]
