"""The look-up of a text's end, against a search of every place."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ext.uag.lookup import GAP, NO_MATCH, NOWHERE, Index, Match

IDS = st.integers(0, 3)
TEXTS = st.lists(IDS, min_size=1, max_size=60)
PARTS = st.lists(st.lists(IDS, min_size=1, max_size=8), min_size=1, max_size=12)
WHOLE = 1000
"""Candidates and depth with which nothing is left out."""


def searched(ids: Sequence[int], text: Sequence[int], least: int) -> Match:
    """The longest match of the text's end in `ids`, the latest of the longest; not the text's end itself."""
    best = NO_MATCH
    last = len(ids) - 1 if ids is text else len(ids)
    for place in range(last):
        length = 0
        while length <= place and length < len(text) and ids[place - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= max(best.length, least):
            best = Match(place, length)
    return best


@settings(max_examples=300)
@given(PARTS)
def test_the_longest_match_of_ones_own_text(parts: list[list[int]]) -> None:
    index, text, last = Index(WHOLE, WHOLE), [], NO_MATCH
    for part in parts:
        index.add(part)
        text += part
        fresh = index.own()
        last = index.own(last, len(part))
        assert fresh == last == searched(text, text, 1)


@settings(max_examples=300)
@given(st.lists(TEXTS, min_size=1, max_size=4), PARTS)
def test_the_longest_match_in_other_texts(others: list[list[int]], parts: list[list[int]]) -> None:
    index, ids, text, last = Index(WHOLE, WHOLE), [], [], NO_MATCH
    for other in others:
        index.add([GAP, *other])
        ids += [GAP, *other]
    for part in parts:
        text += part
        last = index.of(text, last, len(part))
        assert index.of(text) == last == searched(ids, text, 2)


@settings(max_examples=200)
@given(TEXTS, st.integers(0, 12))
def test_a_text_that_repeats_itself_goes_on_repeating(text: list[int], most: int) -> None:
    index = Index(WHOLE, WHOLE)
    index.add(text)
    match = index.own()
    found = index.behind(match, most, own=True)
    if match.place == NOWHERE:
        assert match == NO_MATCH
        return
    written = list(text)
    for step in range(most):  # one id at a time, each from where the match goes on
        written.append(written[match.place + 1 + step])
    assert found == written[len(text) :]


def test_no_draft_crosses_into_another_text() -> None:
    index = Index()
    index.add([1, 2, 3, GAP, 4, 5])
    assert index.behind(index.of([7, 1, 2]), 5, own=False) == [3]
    assert index.behind(index.of([2, 3]), 5, own=False) == []
    assert index.of([3, 4]) == NO_MATCH


def test_a_look_up_compares_so_many_places() -> None:
    """The long match is older than the candidates; a match that goes on needs no candidates."""
    index = Index(candidates=4)
    index.add([9, 8, 1, 2, 5, *[1, 2] * 6])
    assert index.of([9, 8, 1, 2]).length == 2
    assert index.of([9, 8, 1, 2], index.of([9, 8]), 2) == Match(3, 4)
