"""Draft lengths on simulated servers: against an oracle that knows what is accepted, and against plain steps."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from uag_simulation import (
    BOUND,
    CPU,
    EXPENSIVE_DRAFT,
    GPU,
    SHARED_CPU,
    Machine,
    Server,
    Truth,
    best_lengths,
    oracle,
    serve,
)

from sglang_ext.uag.lengths import LengthControl

MACHINES = [GPU, EXPENSIVE_DRAFT, BOUND, SHARED_CPU]
NAMES = ["gpu", "expensive draft", "bound by computing", "shared cpu"]


def hopeless(request: int, token: int) -> float:
    return 0.0


def mixed(request: int, token: int) -> float:
    return 0.9 if request % 4 == 0 else 0.05


def becoming_good(request: int, token: int) -> float:
    return 0.0 if token < 400 else 0.95


def becoming_bad(request: int, token: int) -> float:
    return 0.95 if token < 400 else 0.0


def of_oracle(machine: Machine, truth: Truth, batch: int, rounds: int) -> float:
    return serve(machine, truth, batch, rounds).speed / oracle(machine, truth, batch, rounds).speed


def of_plain(machine: Machine, truth: Truth, batch: int, rounds: int, prompt: int = 0, response: int = 10**9) -> float:
    """Speed against plain steps in the same moments."""
    outcome = serve(machine, truth, batch, rounds, prompt=prompt, response=response)
    return outcome.tokens / batch * machine.target(batch, 1) * machine.slowness(rounds) / outcome.seconds


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("rounds", [128, 1500])
def test_a_hopeless_pair_costs_little(machine: Machine, batch: int, rounds: int) -> None:
    """Assisted generation must not be slower than plain decoding."""
    assert of_plain(machine, hopeless, batch, rounds) > (0.93 if rounds < 1000 else 0.98) - machine.host


@pytest.mark.parametrize("machine", [*MACHINES, CPU], ids=[*NAMES, "cpu"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("prompt", [500, 4000])
def test_a_hopeless_pair_costs_little_with_long_prompts(machine: Machine, batch: int, prompt: int) -> None:
    assert of_plain(machine, hopeless, batch, 600, prompt, 100) > 0.96 - machine.host


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5])
def test_responses_for_which_drafting_hardly_pays_lose_little(batch: int, acceptance: float) -> None:
    """On a machine whose measurements are disturbed, with responses that are short."""
    assert of_plain(SHARED_CPU, lambda request, token: acceptance, batch, 1000, 50, 64) > 0.95


@pytest.mark.parametrize("machine", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("prompt", [100, 2000])
def test_drafting_comes_back_with_long_prompts(machine: Machine, batch: int, prompt: int) -> None:
    """However much a draft has to read for the first good draft."""
    def truth(request: int, token: int) -> float:
        return 0.0 if request < 2 * batch else 0.95
    rounds = 3000 if prompt < 1000 else 5000
    lengths = serve(machine, truth, batch, rounds, prompt=prompt, response=200).lengths[-300:]
    assert sum(any(now) for now in lengths) > 250


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("prompt", [20, 300])
def test_a_start_on_a_busy_machine_is_forgotten(batch: int, prompt: int) -> None:
    """Everything is slow at first, and reading prompts most of all."""
    control = LengthControl(8)
    busy = Machine(plain=3.0, extend=0.4, step=0.3, token=0.3)
    serve(busy, lambda request, token: 0.3, batch, 90, control=control, prompt=prompt, response=96)
    lengths = serve(GPU, lambda request, token: 0.95, batch, 1500, control=control, prompt=prompt, response=96).lengths
    assert sum(any(now) for now in lengths[-300:]) > 250


@pytest.mark.parametrize("machine", [GPU, EXPENSIVE_DRAFT, BOUND], ids=NAMES[:3])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.5, 0.8, 1.0])
def test_nearly_as_fast_as_knowing_everything(machine: Machine, batch: int, acceptance: float) -> None:
    assert of_oracle(machine, lambda request, token: acceptance, batch, 500) > (0.75 if acceptance == 1 else 0.9)


@pytest.mark.parametrize("machine", [GPU, BOUND], ids=["gpu", "bound by computing"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("truth", [mixed, becoming_good, becoming_bad])
def test_mixed_and_changing_acceptance(machine: Machine, batch: int, truth: Truth) -> None:
    assert of_oracle(machine, truth, batch, 800) > 0.85


@pytest.mark.parametrize("batch", [1, 4])
def test_kinds_of_text_in_turn(batch: int) -> None:
    """Responses of 64 tokens, on a machine whose measurements are disturbed. No kind pays for another one."""
    rates = (0.2, 0.5, 0.6, 0.95)
    server = Server(SHARED_CPU, LengthControl(8), batch, Random(0))
    seconds, ideal = dict.fromkeys(rates, 0.0), dict.fromkeys(rates, 0.0)
    for rate in rates * 8:
        best = best_lengths(SHARED_CPU, [rate] * batch, 8)[1]
        while min(server.written) < 64:
            before = sum(server.written)
            seconds[rate] += server.round(lambda request, token, rate=rate: rate)  # type: ignore[misc]
            ideal[rate] += (sum(server.written) - before) / best * SHARED_CPU.slowness(200)
        for k in range(batch):
            server.replace(k, 0)
    assert {rate: ideal[rate] / seconds[rate] > (0.9 if rate < 0.9 else 0.7) for rate in rates} == dict.fromkeys(
        rates, True)


@pytest.mark.parametrize("acceptance", [0.05, 0.5, 1.0])
def test_no_drafts_where_verification_is_bound_by_computing(acceptance: float) -> None:
    assert of_plain(BOUND, lambda request, token: acceptance, 64, 300) > 0.97


def test_lengths_are_of_requests() -> None:
    """A hopeless request shortens nobody's draft, and has none itself."""
    machine = Machine(more=0.5)  # a draft for one more request costs much
    last = Counter[int]()
    for lengths in serve(machine, lambda request, token: 0.97 * (request == 0), 4, 400).lengths[200:]:
        last.update(k for k, length in enumerate(lengths) if length > 1)
    assert last[0] > 150
    assert last[1] + last[2] + last[3] < last[0] / 2
