"""How long steps are expected to take, by what was measured."""

from __future__ import annotations

from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.uag.step_times import StepTimes


def test_nothing_was_measured() -> None:
    times = StepTimes(4)
    assert times.plain(1) == times.step(1) == times.read(100) == 0.0
    assert times.draft(1, np.array([1.0])) is None
    assert times.widest(1) == 1


@given(st.lists(st.floats(1.0, 1.9), min_size=1, max_size=20))
@settings(deadline=None)
def test_an_estimate_is_the_median_of_the_last_ones(seconds: list[float]) -> None:
    times = StepTimes(4)
    for s in seconds:
        times.add("plain", 1, 1, s)
    assert times.plain(1) == median_low(seconds[-5:])


def test_a_slow_step_among_many_changes_nothing() -> None:
    times = StepTimes(4)
    for _ in range(20):
        times.add("plain", 1, 1, 0.02)
    times.add("plain", 1, 1, 9.0)
    assert times.plain(1) == 0.02


def test_the_first_step_of_a_width_may_be_slow() -> None:
    """It may have compiled something. It is believed up to twice the expected, and the second one more."""
    times = StepTimes(8)
    times.add("plain", 1, 1, 0.02)
    times.add("verify", 1, 4, 30.0)
    assert times.target(1)[3] == 0.04
    times.add("verify", 1, 4, 0.021)
    assert times.target(1)[3] == 0.021


def test_steps_that_became_twice_as_slow_are_believed_soon() -> None:
    times = StepTimes(8)
    for seconds in [0.02] * 7 + [0.1] * 12:
        times.add("plain", 1, 1, seconds)
    assert times.plain(1) == 0.1


def test_a_wider_step_takes_no_less_than_a_plain_one() -> None:
    """Plain steps may have been measured while the machine was busy. A fast wider one is no plain one."""
    times = StepTimes(4)
    times.add("plain", 4, 1, 0.04)
    times.add("verify", 4, 3, 0.022)
    assert times.plain(4) == 0.04
    assert times.target(4).tolist() == pytest.approx([0.04] * 4)


def test_widths_between_measured_ones_are_on_the_line() -> None:
    times = StepTimes(6)
    times.add("plain", 1, 1, 1.0)
    times.add("verify", 1, 2, 1.4)
    times.add("verify", 1, 4, 1.2)
    assert times.target(1).tolist() == pytest.approx([1.0, 1.4, 1.3, 1.2, 1.2, 1.2])
    assert times.widest(1) == 4


def test_wider_steps_are_on_the_line_of_the_widest() -> None:
    """A step from one position to two says nothing of it, as one position may have a kernel of its own."""
    times = StepTimes(6)
    times.add("plain", 1, 1, 1.0)
    times.add("verify", 1, 2, 1.4)
    assert times.target(1).tolist() == pytest.approx([1.0, 1.4, 1.4, 1.4, 1.4, 1.4])
    times.add("verify", 1, 4, 1.5)
    assert times.target(1).tolist() == pytest.approx([1.0, 1.4, 1.45, 1.5, 1.55, 1.6])


def test_a_width_that_was_slow_once_is_tried_again() -> None:
    times = StepTimes(6)
    times.add("plain", 1, 1, 1.0)
    times.add("verify", 1, 6, 1.9)
    for _ in range(32):
        times.add("verify", 1, 3, 1.2)
    assert times.target(1)[5] == pytest.approx(1.2)


def test_a_batch_size_has_the_proportions_of_the_nearest_until_it_is_measured() -> None:
    times = StepTimes(2)
    times.add("plain", 1, 1, 1.0)
    times.add("verify", 1, 2, 1.2)
    times.add("plain", 16, 1, 2.0)
    assert times.target(9).tolist() == pytest.approx([2.0, 2.4])
    assert times.target(16).tolist() == pytest.approx([2.0, 2.4])
    times.add("verify", 16, 2, 3.0)
    assert times.target(16).tolist() == [2.0, 3.0]
    assert times.target(1).tolist() == [1.0, 1.2]


def test_a_draft_is_an_extension_and_steps() -> None:
    times = StepTimes(4)
    times.add("draft_extend", 2, 3, 0.7)
    assert times.draft(2, np.array([1.0])) is None, "no plain step was measured"
    times.add("plain", 2, 1, 1.0)
    times.add("draft_extend", 2, 3, 0.3)
    assert times.draft(2, np.array([0.0, 1.0, 3.0])) == pytest.approx([0.0, 0.3, 0.9])
    times.add("draft_step", 2, 1, 0.1)
    assert times.draft(2, np.array([0.0, 1.0, 3.0])) == pytest.approx([0.0, 0.3, 0.5])


def test_a_long_text_is_read_by_the_id() -> None:
    times = StepTimes(4)
    times.add("plain", 1, 1, 1.0)
    times.add("draft_extend", 1, 1, 0.5)
    for _ in range(4):
        times.add("draft_extend", 1, 1000, 10.5)
    assert times.read(300) == pytest.approx(3.0)
    assert times.draft(1, np.array([1.0])) == [0.5]


def test_a_machine_that_gets_faster_is_known_from_plain_steps() -> None:
    """What was measured of drafts while it was busy stays in proportion."""
    times = StepTimes(2)
    for plain in (3.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        times.add("plain", 1, 1, plain)
        if plain == 3:
            times.add("draft_extend", 1, 1, 0.6)
            times.add("verify", 1, 2, 3.6)
    assert times.target(1).tolist() == pytest.approx([1.0, 1.2])
    assert times.draft(1, np.array([1.0])) == pytest.approx([0.2])
