"""Ids as bytes and back, for every kind of tokenizer, and the boundaries at which a text may be cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from uag_tokenizers import ABLE, WITH_ALL_BYTES, byte_level, text, tokenizer, vocabulary, writable, written

from sglang_ext.uag.text.vocabulary import Untranslatable, Vocabulary, incomplete

FEW = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize("name", WITH_ALL_BYTES)
@given(body=text(), start=st.booleans())
@FEW
def test_text_comes_back_exactly(name: str, body: str, start: bool) -> None:
    known = vocabulary(name)
    assume("▁" not in body or known.encoder.splits != "letters" or name == "unsplit")
    ids = known.encode(body.encode(), start)
    assert written(known, ids) in ((body.encode(), b" " + body.encode()) if start else (body.encode(),))
    assert not known.special.keys() & set(ids)


@pytest.mark.parametrize("name", ["smollm2", "unigram", "nfkc", "always", "mistral"])
@given(body=text())
@FEW
def test_text_is_written_exactly_or_refused(name: str, body: str) -> None:
    """Normalizers, missing characters and the space mark itself: never other text."""
    known = vocabulary(name)
    try:
        ids = known.encode(body.encode(), start=False)
    except Untranslatable:
        assume(False)
    assert written(known, ids) == body.encode()


@pytest.mark.parametrize("name", WITH_ALL_BYTES)
@given(data=st.binary(max_size=12), around=text(2))
@FEW
def test_broken_utf8_becomes_byte_tokens(name: str, data: bytes, around: str) -> None:
    assume("▁" not in around and "▁".encode() not in data)
    whole = around.encode() + data + around.encode()
    assert written(vocabulary(name), vocabulary(name).encode(whole, start=False)) == whole


def test_broken_utf8_without_byte_tokens_is_refused() -> None:
    with pytest.raises(Untranslatable, match="single byte 0xE2"):
        vocabulary("unigram").encode(b"a\xe2\x82", start=False)


@pytest.mark.parametrize("name", ["smollm2", "tekken", "mistral", "byte-level", "always", "first", "never", "prepend",
                                  "unigram"])
@given(body=text(6))
@FEW
def test_start_of_text_is_the_tokenizers_own(name: str, body: str) -> None:
    """Where no text looks like a control token, the tokenizer writes the text exactly, and no added token is in it."""
    known, theirs = vocabulary(name), tokenizer(name)
    body = writable(name, body)
    assume(body and "\n\n" not in body and not any(special in body for special in known.special.values()))
    try:
        ids = known.encode(body.encode(), start=True)
    except Untranslatable:
        assume(False)
    assert ids == list(theirs.encode(body, add_special_tokens=False))


@pytest.mark.parametrize("name", ABLE)
@given(first=text(), rest=text(4), start=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_boundary_is_for_good(name: str, first: str, rest: str, start: bool) -> None:
    """Text to come changes no id before it, and what follows is encoded alone as in its context."""
    known = vocabulary(name)
    first, rest = writable(name, first), writable(name, rest)
    try:
        segment = known.segment(first.encode(), start)
        whole = known.encode((first + rest).encode(), start)
    except Untranslatable:
        assume(False)
    assume(segment.num_stable)
    stable, end = segment.ids[: segment.num_stable], segment.ends[segment.num_stable - 1]
    assert whole[: segment.num_stable] == stable
    assert stable + known.encode((first + rest).encode()[end:], start=False) == whole


@pytest.mark.parametrize(("name", "first", "rest"), [
    ("suffixes", "and then we'r", "e"), ("suffixes", "and then don'", "t"), ("suffixes", "so and then 漢字AB", "c"),
    ("spelled suffixes", "and then we'r", "e"), ("spelled suffixes", "and then or'v", "e"),
])
def test_two_or_three_pre_tokens_may_become_one(name: str, first: str, rest: str) -> None:
    known = vocabulary(name)
    segment = known.segment(first.encode(), start=False)
    assert segment.num_stable
    assert known.encode((first + rest).encode(), start=False)[: segment.num_stable] == segment.ids[: segment.num_stable]


@pytest.mark.parametrize("name", [n for n in ABLE if n != "unsplit"])
def test_boundaries_are_found(name: str) -> None:
    data = b"The quick brown fox jumps over the lazy dog, then it stops"
    segment = vocabulary(name).segment(data, start=True)
    assert len(data) - segment.ends[segment.num_stable - 1] < 20


def test_a_letters_boundary_is_found_in_text_without_spaces() -> None:
    """Two characters that no piece has side by side."""
    known = vocabulary("mistral")
    segment = known.segment("漢字文章空格所以很長".encode() * 4, start=False)
    assert segment.ends[-1] - segment.ends[segment.num_stable - 1] < 30


@pytest.mark.parametrize("name", ["mistral", "slow", "always", "first", "prepend"])
def test_dummy_space_only_at_the_start(name: str) -> None:
    known = vocabulary(name)
    assert known.dummy_prefix
    assert written(known, known.encode(b"fox", start=True)) == b" fox"
    assert written(known, known.encode(b"fox", start=False)) == b"fox"
    assert known.segment(b"fox", start=True).ends[-1] == 3


@pytest.mark.parametrize("name", ["smollm2", "tekken", "mistral", "tiktoken", "byte-level", "unigram", "always"])
def test_text_that_looks_like_a_control_token_is_text(name: str) -> None:
    known = vocabulary(name)
    for special in list(known.special.values())[:20]:
        body = writable(name, f"a{special} b").encode()
        ids = known.encode(body, start=False)
        assert written(known, ids) == body
        assert not known.special.keys() & set(ids)


def test_added_tokens_that_are_text_are_text() -> None:
    known = vocabulary("always")
    assert known.encode(b"a\n\n\n", start=False)[-1] == known.named["\n\n\n"]
    assert known.special.keys() == {0, 1, 2}


def test_an_added_token_to_come_keeps_its_beginning_open() -> None:
    theirs = byte_level()
    theirs.add_tokens([AddedToken("<|a tool's call|>", normalized=False)])
    known = Vocabulary.of(theirs)
    for length in range(1, len("<|a tool's call|>")):
        data = b"then x " + b"<|a tool's call|>"[:length]
        segment = known.segment(data, start=False)
        end = segment.ends[segment.num_stable - 1] if segment.num_stable else 0
        assert end <= len(b"then x ")


@pytest.mark.parametrize(("name", "bos", "eos"), [
    ("smollm2", None, {2}), ("tekken", 1, {2}), ("mistral", 1, {2}), ("slow", 1, {2}), ("tiktoken", None, {262}),
    ("suffixes", None, {263}),
    ("always", 1, {2}), ("byte-level", None, {0}),
])
def test_start_and_ends_of_text(name: str, bos: int | None, eos: set[int]) -> None:
    assert (vocabulary(name).bos, vocabulary(name).eos) == (bos, eos)


def test_a_start_of_text_that_the_tokenizer_does_not_put() -> None:
    """Some tokenizers add none although the model needs one: it is known by its name, unlike a turn's start."""
    theirs = byte_level(special=("<eos>", "<bos>"))
    theirs.bos_token = "<bos>"
    assert Vocabulary.of(theirs).bos == 1


def test_padded_vocabulary() -> None:
    """Unlike vocabularies of one size, these are the same."""
    padded = Vocabulary.of(tokenizer("byte-level"), size=512)
    assert len(padded.pieces) == 512
    assert padded.pieces[-1] == b""
    cut = Vocabulary.of(tokenizer("byte-level"), size=300)
    assert max(cut.encode(b"zq", start=False)) < 300
    with pytest.raises(Untranslatable, match="beyond the model's vocabulary of 300"):
        cut.encode(b" The quick brown fox", start=False)


def test_faults() -> None:
    assert {name for name in (*ABLE, "wordpiece") if vocabulary(name).fault} == {"wordpiece"}
    assert "would be written" in str(vocabulary("wordpiece").fault)


def test_the_serving_tokenizer_stays_as_it_is() -> None:
    """A shared object is never changed."""
    theirs: Any = byte_level()
    before = theirs.backend_tokenizer.to_str(), theirs.encode("<|end|> a")
    Vocabulary.of(theirs).encode(b"<|end|> a", start=True)
    assert (theirs.backend_tokenizer.to_str(), theirs.encode("<|end|> a")) == before


def test_a_tokenizer_of_which_only_the_call_is_known() -> None:
    known = Vocabulary.of(SimpleNamespace(get_vocab=lambda: {chr(i): i for i in range(128)},
                                          decode=lambda ids: chr(ids[0]),
                                          encode=lambda body, add_special_tokens: [ord(c) for c in body]))
    assert known.encode(b"ab", start=True) == [97, 98]
    assert not known.segment(b"a quick brown fox", start=False).num_stable


@pytest.mark.parametrize(("data", "held"), [
    (b"", 0), (b"a", 0), ("é".encode(), 0), ("é".encode()[:1], 1), ("€".encode()[:2], 2), ("🤷".encode()[:3], 3),
    ("🤷".encode(), 0), (b"\x80", 0), (b"\xff", 0), (b"\xc0", 0), (b"\xed\xa0", 0), (b"\xe0\x80", 0), (b"\xf4\x90", 0),
])
def test_incomplete_characters(data: bytes, held: int) -> None:
    assert incomplete(data) == held


@given(st.text(max_size=5), st.integers(0, 20))
def test_what_is_held_back_completes_to_utf8(body: str, cut: int) -> None:
    data = body.encode()[:cut]
    assert data[: len(data) - incomplete(data)].decode() == body[: len(data[: len(data) - incomplete(data)].decode())]
