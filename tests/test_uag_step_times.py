"""How long steps take, between what was measured and far from it."""

from __future__ import annotations

import pytest

from sglang_ext.uag.step_times import Costs, StepTimes


def test_times_between_measurements_are_in_the_guessed_proportion() -> None:
    times = StepTimes(Costs(draft_extend=0.5, draft_step=0.25, token=0.0))
    assert times.of("plain", 1) == 1.0
    times.add("plain", 1, 1, 0.02)
    assert times.of("plain", 8) == times.of("verify", 1, 4) == 0.02
    assert times.of("draft_extend", 1, 4) == pytest.approx(0.01)
    times.add("draft_extend", 1, 4, 0.004)
    assert times.of("draft_step", 2) == pytest.approx(0.002)


def test_a_slow_step_among_many_changes_nothing() -> None:
    times = StepTimes(Costs(token=0.0))
    for _ in range(20):
        times.add("plain", 1, 1, 0.02)
    times.add("plain", 1, 1, 9.0)
    assert times.of("plain", 1) == 0.02


def test_a_plain_step_takes_no_longer_than_a_wider_one() -> None:
    """Plain steps that were measured while the machine was busy would let any draft pay."""
    times = StepTimes(Costs(token=0.0))
    times.add("plain", 4, 1, 0.04)
    times.add("verify", 4, 3, 0.022)
    times.add("verify", 1, 2, 0.01)
    assert times.of("plain", 4) == 0.022


def test_a_bad_moment_of_a_wide_step_is_forgotten() -> None:
    """It would never be tried again; what was measured often is remembered."""
    times = StepTimes(Costs(token=0.0))
    for _ in range(5):
        times.add("plain", 1, 1, 0.02)
        times.add("verify", 1, 2, 0.03)
    for seconds in (0.02, 5.0):
        times.add("verify", 1, 4, seconds)
    assert times.of("verify", 1, 4) == 5.0
    for _ in range(1200):
        times.add("plain", 1, 1, 0.02)
    assert times.of("verify", 1, 4) < 0.06
    assert times.of("verify", 1, 2) == 0.03
    assert times.trusted(1, 8) == 8


def test_a_width_is_measured_twice_before_a_wider_one() -> None:
    times = StepTimes(Costs(token=0.0))
    times.add("plain", 1, 1, 0.02)
    times.add("verify", 1, 3, 1.0)
    assert times.of("verify", 1, 3) == pytest.approx(0.022), "it may have compiled something"
    assert [times.trusted(1, width) for width in (2, 3, 8)] == [2, 3, 3]
    times.add("verify", 1, 3, 1.0)
    assert times.of("verify", 1, 3) == 1.0
    assert times.trusted(1, 8) == 8
    assert times.of("verify", 1, 5) > 1.9, "on the line from a plain step"


def test_the_first_step_of_a_shape_may_be_slow() -> None:
    """It may have compiled something; it is not believed beyond some times of what was expected."""
    times = StepTimes(Costs(token=0.0))
    times.add("plain", 1, 1, 0.02)
    times.add("verify", 1, 4, 30.0)
    assert times.of("verify", 1, 4) < 0.1


def test_reading_thousands_is_neither_thousands_of_steps_nor_one() -> None:
    """Of reads of a few ids."""
    times = StepTimes(Costs())
    for ids in (1, 2, 3):
        times.add("draft_extend", 1, ids, 0.002)
    assert 50 < times.of("draft_extend", 1, 2000) / 0.002 < 200


@pytest.mark.parametrize("slope", [0.0005, 0.005, 0.1])
def test_long_reads_are_on_the_line_of_shorter_ones(slope: float) -> None:
    """Wherever they were measured: an id costs what it costs, and not what was guessed."""
    def truth(ids: int) -> float:
        return 0.002 * (1 + slope * ids)
    times = StepTimes(Costs())
    for ids in (1, 2, 512, 4096):
        for _ in range(8):
            times.add("draft_extend", 1, ids, truth(ids))
    for ids in (1, 2, 64, 300, 700, 1000, 2000, 4000):
        assert times.of("draft_extend", 1, ids) == pytest.approx(truth(ids), rel=0.4)
    assert times.of("draft_extend", 1, 16384) > 0.9 * truth(16384)
    assert times.of("draft_extend", 2, 1024) == pytest.approx(truth(2048), rel=0.4)


def test_a_bad_moment_of_one_extension_is_believed_when_it_lasts() -> None:
    """An extension that seems too dear is not tried again, so nobody would learn better."""
    times = StepTimes(Costs())
    for _ in range(4):
        times.add("plain", 1, 1, 0.02)
        times.add("draft_extend", 1, 1, 0.0025)
    for _ in range(3):
        times.add("draft_extend", 1, 64, 0.3)
        assert times.of("draft_extend", 1, 64) < 0.02
        assert times.of("draft_extend", 1, 40) < 0.02
    times.add("draft_extend", 1, 64, 0.3)
    assert times.of("draft_extend", 1, 64) == pytest.approx(0.3)


def test_ids_of_a_bucket_have_their_part_of_it() -> None:
    times = StepTimes(Costs())
    times.add("draft_extend", 1, 1025, 0.02)
    assert times.of("draft_extend", 1, 1025) == pytest.approx(0.02)
    assert times.of("draft_extend", 1, 2048) == pytest.approx(0.02 * 21.47 / 11.24)


def test_a_long_read_alone_does_not_make_a_short_one_dear() -> None:
    """It would never be tried, and so never measured."""
    times = StepTimes(Costs())
    times.add("plain", 1, 1, 0.08)
    for _ in range(8):
        times.add("draft_extend", 1, 512, 3.6)
    assert times.of("draft_extend", 1, 1) <= 0.08


def test_all_steps_of_one_width_are_the_same_step() -> None:
    times = StepTimes(Costs(), verified=8)
    assert times.of("plain", 16) == times.of("verify", 16, 3)
    times.add("verify", 16, 8, 0.02)
    assert times.of("plain", 16) == times.of("verify", 16, 2) == 0.02
    for _ in range(20):
        times.add("plain", 16, 1, 0.03)
    assert times.of("plain", 16) == times.of("verify", 16, 8) == 0.03
    assert times.of("plain", 1) < 0.03
