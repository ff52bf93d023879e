"""The processor agrees with a plain rescan of everything a server would have sampled, on random models and drafts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from budget_cases import FAMILIES, SCALE, TABLE, delimiters, lifted
from budget_oracle import Rules, View, replay
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels.layout import NO_LIMIT
from transformers import GenerationConfig

from sglang_ext import hf
from sglang_ext.hf import admission

VOCAB, STEPS, EOS, PAD = 48, 16, 1, 40
common = settings(max_examples=int(80 * SCALE), deadline=None, derandomize=SCALE <= 1,
                  suppress_health_check=list(HealthCheck))


class Tokenizer:
    """Writes text byte by byte, as far as the processor asks."""

    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return []

    def __len__(self) -> int:
        return VOCAB


def model(**config: Any) -> Any:
    text = SimpleNamespace(vocab_size=VOCAB)
    return SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False, get_text_config=lambda: text),
                           generation_config=GenerationConfig(eos_token_id=EOS, pad_token_id=PAD, **config))


class Session:
    """A few prompts with random budgets; a row's next logits are a function of its history, as a model's are."""

    def __init__(self, family: str, special: bool, rows: int, seed: int) -> None:
        rng, self.seed = random.Random(seed), seed
        self.a, markers = lifted(family, VOCAB, special), FAMILIES[family]
        v, self.rules, budgets, prompts = self.a.vocabulary, [], [], []
        for _ in range(rows):
            most, opened = rng.choice([0, 1, 3, 6, -1]), rng.random() < 0.6
            limit = NO_LIMIT if most < 0 else most
            least, grace = rng.randint(0, min(limit, 4)), rng.randint(0, min(max(most, 0), 3))
            message = "\n" * rng.randint(0, 2)
            budgets.append({"max_tokens": most, "min_tokens": least, "grace_tokens": grace, "message": message})
            self.rules.append(Rules(
                delimiters(family, self.a), [v.end_ids], v.break_ids, "inside" if opened else "outside", limit, least,
                limit - grace if grace else NO_LIMIT, message=v.spell(message.encode()),
                eos_closes=most >= 0 or least > 0))
            prompts.append(self.spelled(markers.start) if opened else [])
        longest = max(map(len, prompts)) + 1
        ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with mock.patch.object(admission, "_automaton", return_value=self.a):
            self.processor = hf.ThinkBudgetLogitsProcessor(
                model(), Tokenizer(), budgets, ids, mask, markers=(markers.start.decode(), markers.end.decode()))
        self.ids = ids

    def spelled(self, text: bytes) -> list[int]:
        return [self.a.vocabulary.pieces.index(bytes([b])) for b in text]

    def logits(self, history: list[int], kind: str = "target") -> torch.Tensor:
        """[VOCAB], with the ids that do something in front."""
        rng = random.Random(f"{kind} {self.seed} {history}")
        return torch.tensor([rng.random() + (rng.random() < 0.2) * (i < 24) for i in range(VOCAB)])


def served(session: Session, row: int, history: list[int], sampled: list[int]) -> View:
    """One greedy step of the server: mask, draw, replace. Extends both lists."""
    rules = session.rules[row]
    before, logits = replay(rules, sampled), session.logits(history)
    for i in before.lost() if not before.pending else set(range(VOCAB)) - {before.pending[0]}:
        logits[i] = -torch.inf
    sampled.append(int(logits.argmax()))
    view = replay(rules, sampled)
    history.append(view.output[-1])
    return view


def expected(session: Session, row: int) -> tuple[list[int], View]:
    """The server's response, padded, and its last view."""
    history, sampled = session.ids[row].tolist(), []
    view = replay(session.rules[row], [])
    for _ in range(STEPS):
        if history[-1] == EOS and len(history) > session.ids.shape[1]:
            break
        view = served(session, row, history, sampled)
    return history + [PAD] * (session.ids.shape[1] + STEPS - len(history)), view


def check(session: Session, sequences: torch.Tensor) -> None:
    for row, result in enumerate(session.processor.results(sequences)):
        ids, view = expected(session, row)
        ids = ids[: sequences.shape[1]]
        assert sequences[row].tolist() == ids
        assert result is not None
        assert (result["tokens"], result["forced_tokens"], result["outcome"]) == (view.used, view.forced, view.outcome)


MADE_UP = sorted(set(FAMILIES) - set(TABLE) - {"label", "several pairs"})
families, seeds = st.sampled_from(MADE_UP), st.integers(0, 2**32)


@common
@given(st.builds(Session, families, st.booleans(), st.integers(1, 4), seeds))
def test_decoding(session: Session) -> None:
    ids, done = session.ids, torch.zeros(len(session.ids), dtype=torch.bool)
    for _ in range(STEPS):
        logits = torch.stack([session.logits(row) for row in ids.tolist()])
        tokens = session.processor(ids, logits).argmax(1).masked_fill(done, PAD)
        ids, done = torch.cat([ids, tokens[:, None]], 1), done | (tokens == EOS)
    check(session, ids)


@common
@given(st.builds(Session, families, st.booleans(), st.just(1), seeds), st.integers(1, 5), st.booleans(), st.booleans())
def test_drafts(session: Session, width: int, same_tokenizer: bool, aligned: bool) -> None:
    """Assisted generation: the assistant asks, or not, then every position of its draft is verified."""
    kind, ids, end = "target" if aligned else "assistant", session.ids, session.ids.shape[1] + STEPS
    while ids.shape[1] < end and (ids.shape[1] == session.ids.shape[1] or ids[0, -1] != EOS):
        draft = ids
        for _ in range(width):
            logits = session.logits(draft[0].tolist(), kind)[None]
            logits = session.processor(draft, logits) if same_tokenizer else logits
            draft = torch.cat([draft, logits.argmax(1)[:, None]], 1)
        verified = torch.tensor([], dtype=torch.int64)
        for n in range(ids.shape[1], draft.shape[1] + 1):
            scores = session.processor(draft[:, :n], session.logits(draft[0, :n].tolist())[None])
            verified = torch.cat([verified, scores.argmax(1)])
        matches = int((draft[0, ids.shape[1] :] == verified[:-1]).long().cumprod(0).sum())
        valid = verified[: matches + 1][: end - ids.shape[1]].tolist()
        valid = valid[: valid.index(EOS) + 1] if EOS in valid else valid
        ids = torch.cat([ids, torch.tensor([valid])], 1)
    check(session, ids)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_probability_of_eos_moves_to_the_end_marker(temperature: float) -> None:
    """As if EOS were drawn and replaced: the same distribution, and the same odds that the end was an EOS."""
    rows, a = 4000, lifted("plain", VOCAB, True)
    opened = [a.vocabulary.pieces.index(bytes([b])) for b in FAMILIES["plain"].start]
    ids = torch.tensor([opened] * rows)
    with mock.patch.object(admission, "_automaton", return_value=a):
        processor = hf.ThinkBudgetLogitsProcessor(model(), Tokenizer(), 5, ids, markers=("<t>", "</t>"),
                                                  do_sample=True, temperature=temperature)
    raw, end = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)), a.vocabulary.end_ids[0]
    raw[EOS], raw[end] = 1.5, 1.0
    p = (raw / temperature).softmax(0)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    scores = processor(ids, raw.repeat(rows, 1))
    assert torch.equal(torch.get_rng_state(), state)
    moved = p.clone()
    moved[end] += moved[EOS]
    moved[EOS] = 0
    torch.testing.assert_close((scores[0] / temperature).softmax(0), moved)
    results = processor.results(torch.cat([ids, torch.full((rows, 1), end)], 1))
    outcomes = [r["outcome"] for r in results if r is not None]
    share = float(p[EOS] / (p[EOS] + p[end]))
    assert set(outcomes) == {"eos", "natural"}
    assert abs(outcomes.count("eos") / rows - share) < 5 * (share * (1 - share) / rows) ** 0.5
