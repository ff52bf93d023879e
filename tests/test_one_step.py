"""Which forced ends are read in one forward."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.one_step import LEAST, WORTH, Cut, chosen

CUTS = st.lists(st.builds(lambda i, n, behind: Cut(i, range(n), behind), st.integers(), st.integers(0, 40),
                          st.integers(0, 1)), max_size=6)


@given(CUTS, st.integers(0, 80), st.integers(1, 200))
def test_what_is_read_is_worth_it(cuts: list[Cut], others: int, most: int) -> None:
    """No forward of short ends, none beyond the chunk, none that costs the others more than it brings."""
    batch = len(cuts) + others
    taken = chosen(cuts, batch, most)
    assert all(cut in cuts and len(cut.ids) >= LEAST for cut in taken)
    assert sum(len(cut.ids) + cut.behind for cut in taken) <= most
    if taken:
        assert sum(len(cut.ids) for cut in taken) >= WORTH * (batch - len(taken))


@given(CUTS, st.integers(0, 80))
def test_what_is_worth_it_is_read(cuts: list[Cut], others: int) -> None:
    """Where some set of ends is worth its forward, all that are long enough are read."""
    batch = len(cuts) + others
    long = [cut for cut in cuts if len(cut.ids) >= LEAST]
    worth = any(sum(len(cut.ids) for cut in some) >= WORTH * (batch - size)
                for size in range(1, len(long) + 1) for some in combinations(long, size))
    assert chosen(cuts, batch, 10**6) == (long if worth else [])


@given(CUTS)
def test_where_nobody_waits_every_long_end_is_read(cuts: list[Cut]) -> None:
    assert chosen(cuts, 0, 10**6) == [cut for cut in cuts if len(cut.ids) >= LEAST]
