"""Runs of chosen tokens between forced ones, and where a stop string is cut off; without a server."""

from __future__ import annotations

import pickle
import re

import orjson
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.budget.stops import Seams, StopText


@given(st.lists(st.booleans(), max_size=30), st.data())
def test_runs_are_what_is_left_of_the_response(forced: list[bool], data: st.DataObject) -> None:
    """Against the obvious: a string with a letter for each token."""
    seams, begin = Seams(), 0
    while begin < len(forced):
        end = data.draw(st.integers(begin + 1, len(forced)))
        seams.add(forced[begin:end], begin)
        begin = end
    assert bool(seams) == any(forced)
    assert [seams.forced(i) for i in range(len(forced))] == forced
    text = "".join("f" if f else "c" for f in forced)
    new = data.draw(st.integers(0, len(forced)))
    wanted = [(m.start(), m.end()) for m in re.finditer("c+", text) if m.end() > len(text) - new]
    assert list(seams.runs(len(text), new)) == wanted


@given(st.text("ab.", max_size=8), st.text("ab.", max_size=8), st.text("ab.", min_size=1, max_size=2), st.booleans())
def test_a_response_is_cut_in_its_last_run(before: str, run: str, stop: str, keep: bool) -> None:
    trimmed = StopText(stop, len(run)).trimmed(before + run, keep)
    head, met, _ = run.partition(stop)
    assert trimmed == before + (head + met if keep or not met else head)


def test_a_stop_text_is_a_text_that_can_be_sent() -> None:
    sent = pickle.loads(pickle.dumps({"matched": StopText("x", 3)}))["matched"]
    assert (sent, sent.behind, type(sent)) == ("x", 3, StopText)
    assert orjson.dumps({"matched": sent}) == b'{"matched":"x"}'
