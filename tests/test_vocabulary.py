"""Bytes of tokens, markers in vocabularies, and rows made from requests; no engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scripted_model import EOS, SCRIPTS, TURN, build_scripted_model
from sglang_ext.budget.kernels.layout import INSIDE, NO_LIMIT, NOT_FORCING, Flag, Word
from sglang_ext.budget.kernels.reference import advance_row
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton
from sglang_ext.budget.contract import BudgetError, Limits, ThinkBudget
from sglang_ext.budget.families import FAMILIES
from sglang_ext.budget.markers import encode_exact, find_markers, vocabulary_of
from sglang_ext.budget.prompt import Request, start_of
from sglang_ext.demo.smollm2 import smollm2
from sglang_ext.vocab import token_bytes

QWEN3 = FAMILIES["qwen3"]
TEXTS = ["Hello, world", "  two  spaces\n\n\ttab", "naïve café", "日本語テキスト", "Привет",
         "🤷🏽‍♀️ emoji", "x1234567890"]


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """BPE with byte fallback and the space mark, as Llama's and Mistral's tokenizers have."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    for piece in ["▁", "h", "e", "l", "o", "▁h", "el", "▁hel", "▁hello", "<", ">", "/", "t", "i", "n", "k", "th", "in",
                  "\n", "é"]:
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("▁", "h"), ("e", "l"), ("▁h", "el"), ("t", "h"), ("i", "n")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def byte_level_trained() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@pytest.mark.parametrize("make", [byte_level_trained, sentencepiece_like])
def test_pieces_are_the_text_in_bytes(make: Any) -> None:
    tokenizer = make()
    pieces = token_bytes(tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        put_before = b" " if make is sentencepiece_like else b""
        assert b"".join(pieces[i] for i in ids) == put_before + text.encode()


@cache
def demo_tokenizer_and_pieces() -> tuple[Any, list[bytes]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    return tokenizer, token_bytes(tokenizer)


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_demo_tokenizers_pieces_are_the_text_in_bytes(text: str) -> None:
    """Text that this tokenizer keeps: its vocabulary lacks some bytes of rare planes."""
    tokenizer, pieces = demo_tokenizer_and_pieces()
    ids = tokenizer.encode(text)
    assume(tokenizer.decode(ids) == text)
    assert b"".join(pieces[i] for i in ids) == text.encode()


def test_mistral_tekken_pieces() -> None:
    """A tiktoken-like vocabulary, as the package mistral-common ships it."""
    data = Path(__import__("mistral_common").__file__).parent / "data"
    files = sorted(data.glob("tekken*.json"))
    assert files
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = Tekkenizer.from_file(files[0])
    inner = SimpleNamespace(n_vocab=tekken._model.n_vocab,
                            decode_single_token_bytes=tekken._model.decode_single_token_bytes)
    pieces = token_bytes(SimpleNamespace(model=inner))
    for text in TEXTS:
        assert b"".join(pieces[i] for i in tekken._model.encode(text)) == text.encode()


@pytest.mark.parametrize(("added", "expected"), [
    (["<think>", "</think>", "<tool_call>"], (b"<think>", b"</think>")),
    (["[THINK]", "[/THINK]"], (b"[THINK]", b"[/THINK]")),
    (["<|START_THINKING|>", "<|END_THINKING|>"], (b"<|START_THINKING|>", b"<|END_THINKING|>")),
    (["<seed:think>", "</seed:think>"], (b"<seed:think>", b"</seed:think>")),
    (["◁think▷", "◁/think▷"], ("◁think▷".encode(), "◁/think▷".encode())),
    (["<think>"], None),
    (["<a>", "</a>"], None),
])
def test_markers_among_added_tokens(added: list[str], expected: tuple[bytes, bytes] | None) -> None:
    tokenizer = byte_level_trained()
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    markers = find_markers(tokenizer, None, None, None)
    assert (None if markers is None else (markers[0].start, markers[0].end)) == expected


def test_markers_order_of_sources() -> None:
    tokenizer = byte_level_trained()
    tokenizer.add_tokens(["[THINK]", "[/THINK]"])
    assert find_markers(tokenizer, "<a>", "</a>", QWEN3)[0].start == b"<a>"  # type: ignore[index]
    assert find_markers(tokenizer, None, None, QWEN3)[0].start == b"<think>"  # type: ignore[index]
    with pytest.raises(ValueError, match="together"):
        find_markers(tokenizer, "<a>", None, None)


@pytest.mark.parametrize(("template", "expected"), [
    ("{{ '<think>\\n\\n</think>\\n\\n' + m }}", b"\n\n"),
    ("{{ '</think>\\n' }}", b"\n"),
    ("{{ content.split('</think>')[-1] }}", b""),
    (None, b""),
])
def test_line_break_of_the_template(template: str | None, expected: bytes) -> None:
    tokenizer = byte_level_trained()
    tokenizer.chat_template = template
    assert find_markers(tokenizer, None, None, QWEN3)[0].line_break == expected  # type: ignore[index]


def test_text_is_spelled_exactly_where_a_tokenizer_would_put_a_space_before_it() -> None:
    tokenizer = sentencepiece_like()
    markers = find_markers(tokenizer, None, None, QWEN3)
    assert markers is not None
    vocabulary = vocabulary_of(tokenizer, markers, [2], len(tokenizer))
    assert b"".join(vocabulary.pieces[i] for i in vocabulary.end_ids) == b"</think>"
    ids = encode_exact(tokenizer, vocabulary, "hello")
    assert b"".join(vocabulary.pieces[i] for i in ids) == b"hello"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Admission]:
    tokenizer = AutoTokenizer.from_pretrained(build_scripted_model(tmp_path_factory.mktemp("s"), SCRIPTS))
    markers = find_markers(tokenizer, None, None, QWEN3)
    assert markers is not None
    eos = tokenizer.convert_tokens_to_ids(EOS)
    automaton = Automaton(markers, vocabulary_of(tokenizer, markers, [eos], 512))
    return tokenizer, Admission(Limits(), automaton, lambda text: encode_exact(tokenizer, automaton.vocabulary, text))


def test_ids_that_the_model_cannot_write_are_left_out(scripted: tuple[Any, Admission]) -> None:
    tokenizer, _ = scripted
    markers = find_markers(tokenizer, None, None, QWEN3)
    assert markers is not None
    vocabulary = vocabulary_of(tokenizer, markers, [len(tokenizer) - 1, 3], 280)
    assert len(vocabulary.pieces) == 280
    assert vocabulary.eos_ids == (3,)


def test_unlimited_budgets_and_no_budget(scripted: tuple[Any, Admission]) -> None:
    _, admission = scripted
    assert admission.admit([], 10) is None
    assert admission.admit([("think_budget", -1)], 10) == ThinkBudget(-1)
    row = admission.row(ThinkBudget(-1), [], 10)
    assert row.words[Word.MAX] == NO_LIMIT
    assert not row.words[Word.FLAGS] & Flag.EOS_CLOSES


def test_answer_reserve_shrinks_the_budget(scripted: tuple[Any, Admission]) -> None:
    tokenizer, admission = scripted
    closing = len(tokenizer.encode("</think>"))
    row = admission.row(ThinkBudget(500, answer_tokens=20), [], 100)
    assert row.words[Word.MAX] == 100 - 20 - closing
    with pytest.raises(BudgetError, match=r"answer_tokens: 98 .*max_new_tokens 100"):
        admission.admit([("think_budget", {"max_tokens": 5, "answer_tokens": 98})], 100)


@pytest.mark.parametrize("message", ["a</think>b", "a<tool_call>", f"x{EOS}", f"x{TURN}y", "<" * 600])
def test_messages_that_cannot_be_forced(scripted: tuple[Any, Admission], message: str) -> None:
    _, admission = scripted
    with pytest.raises(BudgetError, match="message"):
        admission.admit([("think_budget", {"max_tokens": 5, "message": message})], 100)


def test_unknown_markers_refuse_limits_only() -> None:
    admission = Admission(Limits(), None, lambda text: [])
    assert admission.admit([("think_budget", -1)], 10) is None
    with pytest.raises(BudgetError, match=r"thinking_budget: 5 cannot be enforced.*--think-start"):
        admission.admit([("thinking_budget", 5)], 10)


@pytest.mark.parametrize(("prompt", "opened"), [
    ("", False), ("<think>", True), ("a <think>b", False), ("<think>a</think>", False), ("</think><think>", True),
    ("<think><think>", True), (f"<think>{TURN}", False), (f"{TURN}<think>", True), ("<think>a<tool_call>", True),
    ("<think>a</thin", True), ("the <thin", False),
])
def test_prompt_state(scripted: tuple[Any, Admission], prompt: str, opened: bool) -> None:
    tokenizer, admission = scripted
    assert admission.automaton is not None
    assert bool(start_of(admission.automaton, tokenizer.encode(prompt), Request()).word & INSIDE) == opened
    assert admission.opens_block(tokenizer.encode(prompt)) == opened


def test_a_marker_begun_in_the_prompt_is_completed(scripted: tuple[Any, Admission]) -> None:
    tokenizer, admission = scripted
    row = admission.row(ThinkBudget(0), tokenizer.encode("<think>a</thin"), 20)
    words, program = list(row.words), [*admission.automaton.program, *row.program]  # type: ignore[index]
    ids = []
    while words[Word.CURSOR] != NOT_FORCING:
        ids.append(advance_row(0, words, program, admission.automaton))  # type: ignore[arg-type]
    assert tokenizer.decode(ids) == "k>"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_moves_between_slots_and_is_rebuilt_from_its_output(scripted: tuple[Any, Admission], data: Any) -> None:
    """Noted on one slot, placed on another, or replayed from the ids: the same row."""
    tokenizer, admission = scripted
    automaton = admission.automaton
    assert automaton is not None
    message = data.draw(st.sampled_from(["", "loop", "one two"]))
    budget = ThinkBudget(data.draw(st.integers(0, 6)), message=message)
    row = admission.row(budget, tokenizer.encode("<think>\n"), 50)
    stride = admission.stride
    slots = [data.draw(st.integers(0, 4)) for _ in range(2)]
    program = automaton.program + [-1] * (5 * stride)
    for slot in slots:
        start = row.shared + slot * stride
        program[start : start + len(row.program)] = row.program
    words = row.to_slot(row.words, row.shared + slots[0] * stride)
    output = []
    for _ in range(data.draw(st.integers(1, 14))):
        token = data.draw(st.sampled_from(tokenizer.encode("</think>") + tokenizer.encode("loop\n")))
        output.append(advance_row(token, words, program, automaton))
    replayed = admission.rebuilt(row, output)
    row.note(list(words), len(output))
    assert admission.rebuilt(row, output) == row.to_relative() == replayed
    moved = row.to_slot(row.to_relative(), row.shared + slots[1] * stride)
    rest = [[], []]
    for state, ids in ((words, rest[0]), (moved, rest[1])):
        while state[Word.CURSOR] != NOT_FORCING:
            ids.append(advance_row(0, state, program, automaton))
    assert rest[0] == rest[1]
