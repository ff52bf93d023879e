"""A step of UAG that nobody drafts in: it does not wait for the step before it, and loses nothing of the text."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from draft_standin import EOS, HALF, StandInContext, StandInRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.overlap_utils import FutureMap

from sglang_ext.uag.drafter import Drafter
from sglang_ext.uag.fixed_lengths import FixedLengths
from sglang_ext.uag.proposer import Proposer
from sglang_ext.uag.relay import KnownLengths, UagFutureMap
from sglang_ext.uag.sources import Sources
from sglang_ext.uag.speed_up import Planned

WIDTH = 5


class AsTold(FixedLengths):
    """Drafts what the test says; keeps what it is told of outcomes and times."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.next = 0
        self.judged: list[tuple[int, int]] = []
        self.times: list[str] = []

    def plan_sources(self, requests: Sequence[Sequence[Any]], batch: int | None = None) -> list[Planned]:
        return [Planned(0, self.next)] * len(requests)

    def observe(self, request: Any, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        self.judged.append((proposed, accepted))

    def timed(self, kind: str, batch: int, width: int, seconds: float) -> None:
        self.times.append(kind)


class Relay:
    """The engine's relay; counts the waits for it."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.waits = 0

    @property
    def accept_tokens(self) -> torch.Tensor:
        self.waits += 1
        return torch.tensor([[*row, *[0] * (WIDTH - len(row))] for row in self.rows], dtype=torch.int32).flatten()

    @property
    def accept_lens(self) -> torch.Tensor:
        return torch.tensor([len(row) for row in self.rows], dtype=torch.int32)


class Engine:
    """An engine that schedules a step before it has processed the one before it.

    `texts`: what each request's target writes, whatever is drafted.
    """

    def __init__(self, texts: Sequence[Sequence[int]], prompt: int) -> None:
        self.texts, self.prompt = texts, prompt
        params = SimpleNamespace(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, min_new_tokens=0,
                                 max_new_tokens=1000)
        self.reqs = [SimpleNamespace(
            rid=str(i), origin_input_ids=array("q", text[:prompt]), origin_input_ids_unpadded=list(text[:prompt]),
            output_ids=array("q"), sampling_params=params, custom_logit_processor=None, input_embeds=None,
            multimodal_inputs=None, finished=lambda: False, think=None) for i, text in enumerate(texts)]
        self.relay = Relay()
        self.relay.rows = [[text[prompt]] for text in texts]  # the prefill's token
        self.in_flight: list[list[int]] = self.relay.rows
        self.written = [prompt + 1 for _ in texts]

    @property
    def batch(self) -> Any:
        lens = torch.tensor([n - 1 for n in self.written])
        return SimpleNamespace(reqs=self.reqs, seq_lens_cpu=lens, spec_info=self.relay)

    def step(self, chains: list[list[int]] | None) -> None:
        """Verify chains, and process the step before this one."""
        outcome = []
        for i, text in enumerate(self.texts):
            chain = [0] if chains is None else chains[i]
            if chains is not None:
                assert chain[0] == text[self.written[i] - 1], "the last token"
            following = text[self.written[i] :]
            accepted = next((k for k, (a, b) in enumerate(zip(chain[1:], following, strict=False)) if a != b),
                            min(len(chain) - 1, len(following)))
            outcome.append(list(following[: accepted + 1]))
            self.written[i] += len(outcome[-1])
        for req, tokens in zip(self.reqs, self.in_flight, strict=True):
            req.output_ids += array("q", tokens)
        self.in_flight = self.relay.rows = outcome


def proposer(lengths: AsTold) -> tuple[Proposer, Drafter]:
    drafter = Drafter(StandInContext, {EOS}, StandInRunner(), lengths, 64, True)
    return Proposer(Sources(lengths, drafter, None), WIDTH, fixed_width=False, overlap=True), drafter


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from([0, 0, 0, 2, 4]), min_size=1, max_size=30))
def test_a_step_without_drafts_waits_for_nothing_and_forgets_nothing(seed: int, plan: list[int]) -> None:
    """What the draft reads is the text, and outcomes are counted, however late they are looked at."""
    chance = random.Random(seed)
    engine = Engine([[chance.randrange(1, HALF - 1) for _ in range(300)] for _ in range(2)], 3)
    lengths = AsTold()
    asked, drafter = proposer(lengths)
    drafted, judged = False, 0
    for length in plan:
        lengths.next, before = length, engine.relay.waits
        asked.begin(engine.batch)
        known = list(engine.written)
        chains = asked.propose(engine.batch)
        assert (chains is None) is (length == 0)
        assert engine.relay.waits - before == (drafted or length > 0)
        if length:
            for i in range(2):
                assert drafter.state(str(i)).context.draft_ids == list(engine.texts[i][: known[i]])
        judged += 2 * drafted
        assert len(lengths.judged) == judged
        drafted = length > 0
        engine.step(chains)
    counts = [req.uag.launched for req in engine.reqs]
    assert counts == [len(plan)] * 2


def test_a_plain_step_is_timed_where_the_time_is_its_own() -> None:
    """Between two launches that did not wait; not where one of them did."""
    engine, lengths = Engine([[1 + k % 40 for k in range(99)]], 3), AsTold()
    asked, _ = proposer(lengths)
    found = []
    for length in (0, 0, 0, 4, 0, 0, 0):
        lengths.next = length
        asked.begin(engine.batch)
        engine.step(asked.propose(engine.batch))
        found.append([kind for kind in lengths.times if not kind.startswith("draft")])
        lengths.times.clear()
    assert found == [[], ["plain"], ["plain"], ["plain"], ["verify"], [], ["plain"]]


def test_a_forced_sequence_that_may_begin_is_waited_for() -> None:
    engine, lengths = Engine([[1 + k % 40 for k in range(99)]], 3), AsTold()
    asked, _ = proposer(lengths)
    left = 3

    def lookahead(output: Sequence[int]) -> Any:
        return SimpleNamespace(left=max(left - len(output), 0), complete=lambda draft, most: (
            [7, 8][:most] if len(output) >= left else list(draft)))

    engine.reqs[0].think = SimpleNamespace(lookahead=lookahead)
    waits, found = [], []
    for _ in range(4):
        before = engine.relay.waits
        asked.begin(engine.batch)
        chains = asked.propose(engine.batch)
        waits.append(engine.relay.waits > before)
        found.append(chains and chains[0][1:])
        engine.step(chains)
    assert waits == [False, False, True, True]
    assert found == [None, None, [7, 8], [7, 8]]


def future_map(kind: type[FutureMap], pool: Any) -> FutureMap:
    algorithm = SimpleNamespace(is_none=lambda: False, is_some=lambda: True, is_ngram=lambda: True)
    return kind(torch.device("cpu"), algorithm, pool, needs_cpu_seq_lens=True)


@given(st.data())
def test_lengths_that_are_known_are_those_of_the_device(data: st.DataObject) -> None:
    pool = SimpleNamespace(req_to_token=torch.zeros(8, 4), req_generation=torch.zeros(8))
    ours, sglangs = future_map(UagFutureMap, pool), future_map(FutureMap, pool)
    known = KnownLengths.of(pool)
    length = [data.draw(st.integers(1, 50)) for _ in range(8)]
    known.note(torch.arange(8), torch.tensor(length))
    for its in (ours, sglangs):
        its.publish(torch.arange(8), torch.tensor(length))
    for _ in range(data.draw(st.integers(1, 6))):
        slots = torch.tensor(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True)))
        found = []
        for its in (ours, sglangs):
            batch = SimpleNamespace(spec_info=SimpleNamespace(future_indices=slots), req_pool_indices=slots,
                                    req_pool_indices_cpu=slots, seq_lens=None, seq_lens_cpu=None, seq_lens_sum=None)
            its.resolve_seq_lens_cpu(batch)
            found.append((batch.seq_lens.tolist(), batch.seq_lens_cpu.tolist(), batch.seq_lens_sum))
        assert found[0] == found[1]
        plain = data.draw(st.booleans())
        taken = [1 if plain else data.draw(st.integers(1, 4)) for _ in slots]
        after = torch.tensor([length[i] for i in slots.tolist()]) + torch.tensor(taken)
        for i, n in zip(slots.tolist(), after.tolist(), strict=True):
            length[i] = n
        if plain:
            known.note(slots, after)
        else:
            known.forget(slots)
        for its in (ours, sglangs):
            its.publish(slots, after)


def test_known_lengths_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from the device is what the host waits for."""
    pool = SimpleNamespace(req_to_token=torch.zeros(8, 4), req_generation=torch.zeros(8))
    ours, slots = future_map(UagFutureMap, pool), torch.tensor([2, 5])
    ours.publish(slots, torch.tensor([7, 9]))
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("a copy from the device"))
    KnownLengths.of(pool).note(slots, torch.tensor([7, 9]))
    batch = SimpleNamespace(spec_info=SimpleNamespace(future_indices=slots), req_pool_indices=slots,
                            req_pool_indices_cpu=slots, seq_lens=None, seq_lens_cpu=None, seq_lens_sum=None)
    ours.resolve_seq_lens_cpu(batch)
    assert (batch.seq_lens_cpu.tolist(), batch.seq_lens_sum) == ([7, 9], 16)
