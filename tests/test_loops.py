"""Loops by their ids: equal to the rule spelled out, at the id that makes it one; honest repetitions are none."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from repetitions import HONEST

from sglang_ext.budget.loops import LEAST, LONGEST, TIMES, LoopWatch, still_missing


def array(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def is_loop(ids: Sequence[int]) -> bool:
    """The rule, for each cycle by itself."""
    for cycle in range(1, LONGEST + 1):
        span = max(TIMES * cycle, LEAST)
        if len(ids) >= span and all(ids[-i] == ids[-i - cycle] for i in range(1, span - cycle + 1)):
            return True
    return False


def first_found(ids: Sequence[int], steps: Sequence[int] = (1,)) -> int | None:
    """How many ids stand when a watch finds a loop, looking after steps of these many ids in turn."""
    watch, length, turn = LoopWatch(), 0, 0
    watch.enter(0)
    while length < len(ids):
        length = min(len(ids), length + steps[turn % len(steps)])
        turn += 1
        if watch.found(ids, length):
            return length
    return None


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Pieces that are repeated, some within others, and noise between them."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    alphabet = draw(st.sampled_from([1, 2, 3, 50]))
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        cycle = [rng.randrange(alphabet) for _ in range(rng.choice([1, 2, 3, 5, 17, 40, 127, 128, 129, 300, 512, 513]))]
        if rng.random() < 0.3:
            cycle = cycle * rng.randint(1, 9) + [rng.randrange(alphabet)]
        ids += cycle * max(1, rng.randint(0, 2200) // len(cycle)) + cycle[: rng.randrange(len(cycle) + 1)]
        ids += [rng.randrange(alphabet + 1) for _ in range(rng.choice([0, 0, 1, 30]))]
    return ids[-3000:]


def first_by_the_rule(ids: Sequence[int]) -> int | None:
    """The shortest beginning that is a loop, from the length of each cycle's run."""
    found = None
    for cycle in range(1, LONGEST + 1):
        run, needed = 0, max(TIMES * cycle, LEAST) - cycle
        for place in range(cycle, len(ids)):
            run = run + 1 if ids[place] == ids[place - cycle] else 0
            if run >= needed and (found is None or place + 1 < found):
                found = place + 1
                break
    return found


@settings(max_examples=30)
@given(texts())
@example([7] * LEAST)
@example([7] * (LEAST - 1))
@example([*range(LONGEST)] * TIMES)
@example([*range(LONGEST + 1)] * (TIMES + 1))
@example(([7, 8] * 250 + [9]) * 4)
def test_a_loop_is_found_at_the_id_that_makes_it_one(ids: list[int]) -> None:
    assert first_found(ids) == first_by_the_rule(ids)


@settings(max_examples=20)
@given(texts(), st.lists(st.integers(1, 16), min_size=1, max_size=5))
def test_steps_of_several_ids_find_it_with_the_step(ids: list[int], steps: list[int]) -> None:
    """As far as it is still a loop at the end of the step."""
    found, earliest = first_found(ids, steps), first_by_the_rule(ids)
    if found is None:
        return
    assert earliest is not None
    assert found >= earliest
    assert is_loop(ids[:found])


@settings(max_examples=50)
@given(texts())
def test_nothing_is_a_loop_before_so_many_more_ids(ids: list[int]) -> None:
    """What the work is saved by: the fewest ids that are missing never come down faster than ids come."""
    cut = len(ids) // 2
    before, after = still_missing(array(ids[:cut][-2048:])), still_missing(array(ids[-2048:]))
    assert after >= before - (len(ids) - cut)
    assert (after == 0) == is_loop(ids)


@pytest.mark.parametrize("ids", [[], [1], [1, 1], [*range(40)], [3] * 31, [3, 4] * 16], ids=len)
def test_short_texts(ids: list[int]) -> None:
    assert 0 < still_missing(array(ids)) <= LEAST


def test_a_block_begins_anew() -> None:
    """What stood before the block does not count, and a closed one is forgotten."""
    ids, watch = [5] * 2000, LoopWatch()
    assert not watch.found(ids, 2000)
    watch.enter(1000)
    assert not watch.found(ids, 1000 + LEAST - 1)
    assert watch.found(ids, 1000 + LEAST)
    watch.leave()
    assert not watch.found(ids, 1600)
    watch.enter(1600)
    assert not watch.found(ids, 1600 + LEAST - 1)


@pytest.mark.parametrize("name", HONEST)
def test_honest_repetitions_are_no_loops(name: str, demo_tokenizer: object) -> None:
    """In the demo model's tokens, and in bytes, where every text has most ids."""
    text = HONEST[name]
    assert first_found(demo_tokenizer.encode(text)) is None  # type: ignore[attr-defined]
    assert first_found(list(text.encode()), [7]) is None


@pytest.mark.parametrize("cycle", ["Wait, let me think about this again. ",
                                   "So the answer is 12.\nSo the answer is 13.\n"])
def test_a_model_that_goes_round_is_found(cycle: str, demo_tokenizer: object) -> None:
    ids = demo_tokenizer.encode("Let me see. " + cycle * 100)  # type: ignore[attr-defined]
    assert first_found(ids) == first_by_the_rule(ids) is not None
