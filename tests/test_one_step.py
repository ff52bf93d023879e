"""Which forced ends are read in one forward, by what such forwards have cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.one_step import ENOUGH, GUESS, LEAST, MARGIN, REMEMBERED, RETRY, Cut, ReadCosts, Reading, fitting

CUTS = st.lists(st.builds(lambda i, n, behind: Cut(i, range(n), behind), st.integers(), st.integers(0, 40),
                          st.integers(0, 1)), max_size=6)
TIMES = st.floats(0.001, 1.0)


@dataclass
class Machine:
    """An engine whose forwards take known times.

    Attributes:
        step: seconds of a step of decoding, by its requests.
        read: seconds of a forward that reads so many tokens; where the others decode in it, beside their step.
        overlap: whether a forward's time shows when the next one has started.
    """

    step: Callable[[int], float]
    read: Callable[[int], float]
    overlap: bool
    before: float = 0.0

    def run(self, costs: ReadCosts, batch: int, reading: Reading | None = None) -> None:
        took = self.step(batch) if reading is None else self.read(reading.tokens) + (
            self.step(batch) if reading.mixed else 0.0)
        costs.add(reading or batch, self.before if self.overlap else took)
        self.before = took

    def warm(self, costs: ReadCosts, batch: int, reading: Reading, times: int = ENOUGH) -> None:
        for _ in range(times):
            for what in (None, None, reading, None):
                self.run(costs, batch, what)


@given(CUTS, st.integers(1, 200))
def test_what_fits_into_a_forward(cuts: list[Cut], most: int) -> None:
    """No short ends, none beyond the chunk, and none is left out that would fit."""
    taken = fitting(cuts, most)
    read = sum(len(cut.ids) + cut.behind for cut in taken)
    assert all(cut in cuts and len(cut.ids) >= LEAST for cut in taken)
    assert read <= most
    assert all(read + len(c.ids) + c.behind > most for c in cuts if len(c.ids) >= LEAST and c not in taken)


@given(st.integers(1, 128), st.booleans())
def test_before_anything_was_measured(batch: int, mixed: bool) -> None:
    assert ReadCosts().worth([Cut(None, range(26), 1)], batch, mixed) == (MARGIN * GUESS[mixed] * batch <= 26)


@given(TIMES, TIMES, st.integers(1, 64), st.integers(5, 100), st.booleans(), st.booleans())
def test_a_cost_is_what_was_measured(step: float, read: float, batch: int, tokens: int, mixed: bool,
                                     overlap: bool) -> None:
    """Whether a time shows at once or one forward later, and whether the others wait or decode meanwhile."""
    machine, costs, reading = Machine(lambda n: step, lambda n: read, overlap), ReadCosts(), Reading(tokens, mixed)
    machine.warm(costs, batch, reading)
    assert costs.steps(reading, batch) == pytest.approx(read / step, rel=1e-6, abs=1e-6)


@given(st.lists(TIMES, min_size=4, max_size=4), st.booleans(), st.integers(1, 64), CUTS)
def test_no_forward_costs_more_than_it_brings(numbers: list[float], overlap: bool, batch: int, cuts: list[Cut]) -> None:
    """On a machine whose steps grow with the batch and whose forwards with what they read."""
    step, more, read, each = numbers
    machine = Machine(lambda n: step + more * n / 100, lambda n: read + each * n / 100, overlap)
    costs, batch = ReadCosts(), batch + len(cuts)
    taken = fitting(cuts, 10**6)
    reading = Reading(sum(cut.reads for cut in taken), False)
    if not taken:
        return
    machine.warm(costs, batch, reading)
    brought, lost = sum(len(cut.ids) for cut in taken), batch * machine.read(reading.tokens) / machine.step(batch)
    assert not costs.worth(taken, batch, False) or brought >= lost
    assert costs.worth(taken, batch, False) or brought < MARGIN * lost * (1 + 1e-6)


def test_what_was_never_read_costs_as_less_did() -> None:
    """More is tried, and then it is known."""
    machine, costs = Machine(lambda n: 1.0, lambda n: n / 10, False), ReadCosts()
    machine.warm(costs, 8, Reading(27, False))
    assert costs.steps(Reading(200, False), 8) == pytest.approx(2.7)
    machine.warm(costs, 8, Reading(200, False))
    assert costs.steps(Reading(200, False), 8) == pytest.approx(20.0)


def test_other_forwards_are_no_steps() -> None:
    """A prefill, a pause, and the step behind a prefill, which waits for it under overlap."""
    costs = ReadCosts()
    for _ in range(REMEMBERED):
        for ran, seconds in ((4, 1.0), (4, 1.0), (None, 50.0), (4, 50.0)):
            costs.add(ran, seconds)
    for _ in range(ENOUGH):
        for ran, seconds in ((Reading(27, False), 3.0), (4, 1.0), (Reading(27, False), 3.0), (None, 50.0)):
            costs.add(ran, seconds)
    assert costs.steps(Reading(27, False), 4) == pytest.approx(3.0)


def test_one_slow_moment_is_not_believed() -> None:
    machine, costs, reading = Machine(lambda n: 1.0, lambda n: 1.0, False), ReadCosts(), Reading(27, False)
    machine.warm(costs, 16, reading)
    slow = Machine(lambda n: 1.0, lambda n: 100.0, False)
    slow.warm(costs, 16, reading, times=1)
    assert costs.steps(reading, 16) == pytest.approx(1.0)


def test_a_bad_measurement_does_not_stay() -> None:
    """What was refused for long is tried again."""
    machine, costs, cut = Machine(lambda n: 1.0, lambda n: 100.0, False), ReadCosts(), Cut(None, range(26), 1)
    machine.warm(costs, 16, Reading(27, False))
    answers = [costs.worth([cut], 16, False) for _ in range(2 * RETRY + 2)]
    assert [i for i, worth in enumerate(answers) if worth] == [RETRY, 2 * RETRY + 1]
