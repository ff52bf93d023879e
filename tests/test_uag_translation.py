"""What a draft reads of a request, and what its tokens mean to the target."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from uag_tokenizers import (
    ABLE,
    WITH_ALL_BYTES,
    byte_level,
    made,
    text,
    tokenizer,
    translator,
    vocabulary,
    writable,
    written,
)

from sglang_ext.uag.text.draft_context import DraftContext, draft_context
from sglang_ext.uag.text.proposal import Proposal
from sglang_ext.uag.text.translator import SpecialMap, Translator
from sglang_ext.uag.text.vocabulary import Vocabulary

PAIRS = [("smollm2", "mistral"), ("mistral", "smollm2"), ("tekken", "mistral"), ("mistral", "tekken"),
         ("smollm2", "byte-level"), ("slow", "tekken"), ("always", "unigram"), ("byte-level", "always"),
         ("prepend", "tiktoken"), ("tiktoken", "first"), ("unigram", "never"), ("never", "nfkc"),
         ("unsplit", "prepend")]
FEW = settings(max_examples=40, deadline=None)


def pair(target: Vocabulary, draft: Vocabulary, **override: str) -> Translator:
    return Translator(target, draft, SpecialMap.of(target, draft, override))


def common_text(target: str, draft: str, body: str) -> str:
    """What both vocabularies can write, without leading spaces, which some tokenizers drop."""
    return writable(draft, writable(target, body)).lstrip(" ")


def read(translator: Translator, ids: Sequence[int], cuts: Sequence[int] = ()) -> DraftContext:
    """A view of ids, confirmed in chunks; each time `num_unchanged` tells what changed."""
    view = draft_context(translator)
    for a, b in itertools.pairwise([0, *sorted({c for c in cuts if 0 < c < len(ids)}), len(ids)]):
        before = list(view.draft_ids)
        view.confirm(ids[a:b])
        assert view.draft_ids[: view.num_unchanged] == before[: view.num_unchanged]
        changed = view.draft_ids[view.num_unchanged : view.num_unchanged + 1]
        assert not changed or changed != before[view.num_unchanged : view.num_unchanged + 1]
    return view


def from_scratch(draft: Vocabulary, body: bytes) -> list[int]:
    return [*([] if draft.bos is None else [draft.bos]), *(draft.encode(body, start=True) if body else [])]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@given(body=text(), cuts=st.lists(st.integers(0, 60), max_size=6))
@FEW
def test_reading_in_chunks_is_encoding_from_scratch(target: str, draft: str, body: str, cuts: list[int]) -> None:
    """The start of text stands at the start only, and windows have their context."""
    body = common_text(target, draft, body)
    ours, theirs = vocabulary(target), vocabulary(draft)
    try:
        ids, whole = ours.encode(body.encode(), start=True), from_scratch(theirs, body.encode())
    except ValueError:
        assume(False)
    view = read(translator(target, draft), ids, cuts)
    assert (view.draft_ids, view.pending, view.unavailable_reason) == (whole, b"", None)


@pytest.mark.parametrize("draft", WITH_ALL_BYTES)
@given(data=st.one_of(st.binary(max_size=24), text(5).map(str.encode)), tail=st.binary(max_size=3))
@FEW
def test_any_bytes_are_read_but_for_a_character_begun(draft: str, data: bytes, tail: bytes) -> None:
    """The target writes byte by byte, UTF-8 or not."""
    assume("▁".encode() not in data + tail)
    ours, theirs = vocabulary("byte-level"), vocabulary(draft)
    single = {piece[0]: i for i, piece in enumerate(ours.pieces) if len(piece) == 1}
    view = read(pair(ours, theirs), [single[b] for b in data + tail], range(40))
    ids = [i for i in view.draft_ids if i != theirs.bos]
    got = written(theirs, ids) + view.pending
    assert got in (data + tail, b" " + data + tail)
    assert view.unavailable_reason is None
    assert len(view.pending) <= 3


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@given(before=text(8), after=text(4), cuts=st.lists(st.integers(0, 40), max_size=3))
@FEW
def test_a_drafts_own_tokens_become_the_targets_own(target: str, draft: str, before: str, after: str, cuts: list[int]
                                                     ) -> None:
    """Both tokenizations of a known continuation, where both have a boundary at its beginning."""
    ours, theirs = vocabulary(target), vocabulary(draft)
    before, after = common_text(target, draft, before), writable(draft, writable(target, after))
    try:
        ids = ours.encode((before + after).encode(), start=True)
        known = ours.encode(before.encode(), start=True)
        whole, known_draft = from_scratch(theirs, (before + after).encode()), from_scratch(theirs, before.encode())
    except ValueError:
        assume(False)
    assume(before and after and ids[: len(known)] == known and whole[: len(known_draft)] == known_draft)
    view = read(translator(target, draft), known, cuts)
    proposal = view.propose(whole[len(known_draft):], 100)
    assert proposal == Proposal(tuple(ids[len(known):]), None, len(whole) - len(known_draft))
    for most in range(len(ids) - len(known)):
        assert view.propose(whole[len(known_draft):], most).ids == tuple(ids[len(known) : len(known) + most])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_ids_come_nothing_raises(data: st.DataObject) -> None:
    """Ids are translated or left out, never taken for others, and never outside the target's vocabulary."""
    target, draft = data.draw(st.sampled_from([(a, b) for a in ABLE for b in (*ABLE, "wordpiece")]))
    ours, theirs = vocabulary(target), vocabulary(draft)
    view = draft_context(translator(target, draft))
    for chunk in data.draw(st.lists(st.lists(st.integers(-1, len(ours.pieces) + 3), max_size=8), max_size=4)):
        view.confirm(chunk)
        proposal = view.propose(data.draw(st.lists(st.integers(-1, len(theirs.pieces) + 3), max_size=8)), 4)
        assert len(proposal.ids) <= 4
        assert all(0 <= i < len(ours.pieces) and (ours.pieces[i] or i in ours.special) for i in proposal.ids)
        assert all(0 <= i < len(theirs.pieces) for i in view.draft_ids)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_work_of_a_round_does_not_grow_with_the_context(target: str, draft: str) -> None:
    sentence = common_text(target, draft, "The quick brown fox jumps over the lazy dog, and then it stops.\n")
    ids = vocabulary(target).encode((sentence * 700).encode(), start=True)
    step = len(ids) // 700 // 6
    work = {}
    for context in (500, 8000):
        view = draft_context(translator(target, draft))
        view.confirm(ids[: context])
        rounds = []
        for k in range(context, context + 40 * step, step):
            before = view.num_encoded
            view.confirm(ids[k : k + step])
            view.propose(vocabulary(draft).encode(b" fox jumps over", start=False), 4)
            rounds.append(view.num_encoded - before)
        work[context] = sum(rounds) / len(rounds), max(rounds)
    assert work[8000][0] < 1.1 * work[500][0]
    assert max(work[8000][1], work[500][1]) < 400


@pytest.mark.parametrize("draft", ["mistral", "tekken", "unsplit", "byte-level"])
def test_work_is_bounded_in_text_without_a_boundary(draft: str) -> None:
    """One letter, or one script without spaces, for thousands of characters."""
    ours = vocabulary("smollm2")
    for body in ("a" * 9000, "漢字文章" * 1500):
        view = draft_context(translator("smollm2", draft))
        ids = ours.encode(body.encode(), start=True)
        view.confirm(ids[:-400])
        before = view.num_encoded
        for k in range(len(ids) - 400, len(ids), 4):
            view.confirm(ids[k : k + 4])
        assert (view.num_encoded - before) / 100 < 1000
        kept = [i for i in view.draft_ids if i != vocabulary(draft).bos]
        assert view.unavailable_reason is None
        assert written(vocabulary(draft), kept).decode().strip() == body


def test_a_character_in_two_tokens_waits_for_its_end() -> None:
    ours, theirs = vocabulary("byte-level"), vocabulary("mistral")
    single = {piece[0]: i for i, piece in enumerate(ours.pieces) if len(piece) == 1}
    view = draft_context(translator("byte-level", "mistral"))
    view.confirm([*ours.encode(b"cost: ", start=True), single[0xE2], single[0x82]])
    assert view.pending == b"\xe2\x82"
    assert written(theirs, view.draft_ids) == b" cost: "
    euro = theirs.encode("€5".encode(), start=False)
    assert view.propose(euro, 4).ids == (single[0xAC], single[ord("5")])
    assert view.propose(theirs.encode(b"5", start=False), 4) == Proposal((), "pending", 0)
    view.confirm([single[0xAC]])
    assert view.pending == b""
    assert written(theirs, view.draft_ids) == " cost: €".encode()


def test_a_character_that_the_draft_has_only_begun_is_not_proposed() -> None:
    ours, theirs = vocabulary("mistral"), vocabulary("byte-level")
    single = {piece[0]: i for i, piece in enumerate(theirs.pieces) if len(piece) == 1}
    view = draft_context(translator("mistral", "byte-level"))
    view.confirm(ours.encode(b"cost:", start=True))
    begun = [single[ord("5")], single[0xE2], single[0x82]]
    assert view.propose(begun, 4) == Proposal(tuple(ours.encode(b"5", start=False)), None, 1)
    assert view.propose(begun[1:], 4) == Proposal((), None, 0)


def test_control_tokens_are_atoms() -> None:
    ours, theirs = made("<|im_end|>", "<|im_start|>", "<|odd|>"), made("</s>", "<start_of_turn>")
    view = draft_context(pair(ours, theirs))
    start, odd = ours.named["<|im_start|>"], ours.named["<|odd|>"]
    view.confirm([start, *ours.encode(b"user", start=False), odd, *ours.encode(b"fox", start=False)])
    assert view.draft_ids == [theirs.named["<start_of_turn>"], *theirs.encode(b"user", start=False),
                                 *theirs.encode(b"fox", start=False)]


def test_proposals_stop_at_control_tokens() -> None:
    ours, theirs = made("<|im_end|>", "<|im_start|>"), made("</s>", "<start_of_turn>", "<|odd|>")
    view = draft_context(pair(ours, theirs))
    view.confirm(ours.encode(b"The", start=True))
    fox, end, odd = theirs.encode(b" fox", start=False), theirs.named["</s>"], theirs.named["<|odd|>"]
    ours_fox = tuple(ours.encode(b" fox", start=False))
    assert view.propose([*fox, end, *fox], 9) == Proposal((*ours_fox, ours.named["<|im_end|>"]), "end", len(fox) + 1)
    assert view.propose([*fox, odd, *fox], 9) == Proposal(ours_fox, "special", len(fox))
    turn = theirs.named["<start_of_turn>"]
    assert view.propose([turn, *fox], 9) == Proposal((ours.named["<|im_start|>"], *ours_fox), None, len(fox) + 1)
    assert view.propose([len(theirs.pieces) + 7], 9) == Proposal((), "special", 0)


def test_a_control_token_that_the_draft_writes_as_text() -> None:
    ours, theirs = made("</s>", " the"), vocabulary("byte-level")
    view = draft_context(pair(ours, theirs))
    view.confirm([*ours.encode(b"See", start=True), ours.named[" the"]])
    assert view.draft_ids == theirs.encode(b"See the", start=True)
    proposal = view.propose(theirs.encode(b" fox and the dog", start=False), 20)
    assert proposal.ids == (*ours.encode(b" fox and", start=False), ours.named[" the"],
                            *ours.encode(b" dog", start=False))


@pytest.mark.parametrize(("target", "draft"), [("mistral", "tekken"), ("tekken", "mistral"), ("always", "smollm2")])
def test_the_start_of_text_is_the_drafts_own(target: str, draft: str) -> None:
    """One start of text, at the start, by the draft's policy; the target's is not read."""
    ours, theirs = vocabulary(target), vocabulary(draft)
    view = draft_context(translator(target, draft))
    body = b"The fox"
    view.confirm([ours.bos or 0, *ours.encode(body, start=True)])
    view.confirm(ours.encode(b" jumps", start=False))
    assert view.draft_ids == from_scratch(theirs, b"The fox jumps")


def test_a_history_that_the_tokenizer_would_not_write() -> None:
    """The target sampled ` fo` and `x`; the continuation is encoded all the same."""
    ours, theirs = vocabulary("smollm2"), vocabulary("mistral")
    view = draft_context(translator("smollm2", "mistral"))
    odd = [*ours.encode(b"The brown", start=True), *ours.encode(b" f", start=False), *ours.encode(b"ox", start=False)]
    assert odd != ours.encode(b"The brown fox", start=True)
    view.confirm(odd)
    assert view.draft_ids == from_scratch(theirs, b"The brown fox")
    assert view.propose(theirs.encode(b" jumps", start=False), 9).ids == tuple(ours.encode(b" jumps", start=False))
    cut = draft_context(translator("smollm2", "mistral"))
    cut.confirm(ours.encode(b"The brown f", start=True))
    assert cut.propose(theirs.encode(b"ox jumps", start=False), 9).ids == tuple(ours.encode(b"ox jumps", start=False))


def test_text_that_the_draft_cannot_write_is_left_out() -> None:
    ours, theirs = vocabulary("smollm2"), vocabulary("unigram")
    view = draft_context(translator("smollm2", "unigram"))
    assert not theirs.writes("Ω")
    view.confirm(ours.encode("The Ω fox".encode(), start=True))
    assert written(theirs, [i for i in view.draft_ids if i != theirs.bos]) == b" The  fox"
    assert view.unavailable_reason is None


def test_blind_until_the_text_can_be_written_again() -> None:
    """NFKC composes the accent: the text as a whole cannot be written, nor is any one character to blame."""
    ours, theirs = vocabulary("smollm2"), vocabulary("nfkc")
    view = draft_context(translator("smollm2", "nfkc"))
    view.confirm(ours.encode("line\nThe e\u0301".encode(), start=True))
    assert view.unavailable_reason is not None
    assert "would be written" in view.unavailable_reason
    assert written(theirs, view.draft_ids) == b"line\n"
    assert view.propose(theirs.encode(b" fox", start=False), 4) == Proposal((), view.unavailable_reason, 0)
    view.confirm(ours.encode(b" ends\nfox", start=False))
    assert view.unavailable_reason is None
    assert written(theirs, view.draft_ids) == b"line\nfox"
    assert view.propose(theirs.encode(b" jumps", start=False), 4).ids == tuple(ours.encode(b" jumps", start=False))


def test_a_tokenizer_that_does_not_keep_text_is_never_translated() -> None:
    for names in (("smollm2", "wordpiece"), ("wordpiece", "smollm2")):
        view = draft_context(translator(*names))
        view.confirm(list(range(10, 20)))
        assert "does not write plain text back exactly" in str(view.unavailable_reason)
        assert view.propose([20, 21], 4) == Proposal((), view.unavailable_reason, 0)


def test_text_that_the_target_cannot_write() -> None:
    view = draft_context(translator("unigram", "smollm2"))
    view.confirm(vocabulary("unigram").encode(b"The fox", start=True))
    new = vocabulary("smollm2").encode(" Ω".encode(), start=False)
    assert view.propose(new, 4) == Proposal((), "untranslatable", 0)


def test_identity_with_a_padded_vocabulary() -> None:
    """The same tokenizer with other paddings: ids pass through, and only those that both have."""
    ours, theirs = Vocabulary.of(tokenizer("byte-level"), 512), Vocabulary.of(tokenizer("byte-level"), 640)
    same = pair(ours, theirs)
    assert same.identity
    view = draft_context(same)
    view.confirm([0, 300, 301])
    view.confirm([302, 500])
    assert (view.draft_ids, view.num_unchanged, view.num_encoded) == ([0, 300, 301, 302], 3, 0)
    assert view.propose([300, 301, 302], 2) == Proposal((300, 301), None, 2)
    assert view.propose([300, 600, 301], 9) == Proposal((300,), "special", 1)
    assert view.propose([300, 0, 301], 9) == Proposal((300, 0), "end", 2)
    assert view.steps_for(5) == 5


def test_equal_sizes_are_not_equal_vocabularies() -> None:
    """Vocabularies of one size are not for that reason the same."""
    other: Any = byte_level(special=("<|end|>", "<|other|>"))
    ours, theirs = vocabulary("byte-level"), Vocabulary.of(other)
    assert len(ours.pieces) == len(theirs.pieces)
    assert not pair(ours, theirs).identity
    assert pair(ours, Vocabulary.of(byte_level())).identity


def test_the_tokenizer_objects_that_serve_are_read() -> None:
    """A token added to the object is in the map, whatever a revision's files say."""
    changed: Any = byte_level()
    changed.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    ours, theirs = Vocabulary.of(changed), made("</s>", "<|new|>")
    assert pair(ours, theirs).specials.to_draft[ours.named["<|new|>"]] == (theirs.named["<|new|>"],)


def test_steps_by_the_lengths_of_tokens() -> None:
    """The draft writes short tokens: it needs more steps than the target has tokens."""
    ours = vocabulary("smollm2")
    view = draft_context(translator("smollm2", "byte-level"))
    body = b" international organizations understand mathematical representations" * 5
    ids = ours.encode(body, start=True)
    view.confirm(ids)
    ratio = len(view.draft_ids) / len(ids)
    assert ratio > 2
    assert abs(view.steps_for(10) - 10 * ratio) < ratio
    assert draft_context(translator("smollm2", "byte-level")).steps_for(3) == 3
