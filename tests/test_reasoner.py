"""The small reasoner's questions, vocabulary and training sequences, without weights or a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from sglang_ext.demo.reasoner import data, messages, tasks
from sglang_ext.demo.reasoner.tokenizer import build_tokenizer, save_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(0)


@pytest.fixture(scope="module")
def loaded(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(tokenizer, folder)
    return AutoTokenizer.from_pretrained(folder)


def questions(kind: str) -> Iterator[tasks.Question]:
    rng = Random(1)
    for size in range(2, tasks.MOST_TERMS + 1):
        for _ in range(20):
            yield tasks.make_question(rng, kind, size)


@pytest.mark.parametrize("kind", ["sum", "chain"])
def test_totals_are_right(kind: str) -> None:
    for question in questions(kind):
        terms = [int(t) for t in re.findall(r"[+-]?\d+", question.text.replace(" ", ""))]
        assert sum(terms) == int(question.answer)
        totals = [int(line.split("=")[-1]) for line in question.lines]
        assert totals == [sum(terms[:i + 1]) for i in range(len(terms))]
        assert min(totals) >= 0


def test_the_largest_is_the_largest() -> None:
    for question in questions("largest"):
        numbers = [int(n) for n in re.findall(r"\d+", question.text)]
        assert int(question.answer) == max(numbers)
        assert [int(line.split(":")[0]) for line in question.lines] == numbers


def test_the_count_is_right() -> None:
    for question in questions("count"):
        *numbers, bound = [int(n) for n in re.findall(r"\d+", question.text)]
        counts = [sum(n > bound for n in numbers[:i + 1]) for i in range(len(numbers))]
        assert [int(line.split(":")[1]) for line in question.lines] == counts
        assert int(question.answer) == counts[-1]


@pytest.mark.parametrize("kind", [k for k in tasks.KINDS if k not in tasks.THOUGHTFUL])
def test_easy_questions_have_no_thinking(kind: str) -> None:
    assert all(q.lines == () and q.answer for q in questions(kind))


@pytest.mark.parametrize(("kind", "size", "said"), [("product", 3, "product"), ("sum", 1, "1"), ("sum", 13, "13")])
def test_bad_questions_are_refused(kind: str, size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tasks.make_question(Random(0), kind, size)


def test_any_text_can_be_written(tokenizer: Tokenizer) -> None:
    everything = bytes(range(128)).decode() + "".join(map(chr, range(128, 0x900, 7))) + "雪🙂\U0010ffff"
    assert tokenizer.decode(tokenizer.encode(everything).ids, skip_special_tokens=False) == everything


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert [t for t in tokenizer.encode("a 1024+99").tokens if any(c.isdigit() for c in t)] == list("102499")


def test_ids_of_the_special_tokens(tokenizer: Tokenizer) -> None:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    assert [tokenizer.token_to_id(name) for name in names] == [0, 1, 2, 3, 4]
    assert len(tokenizer.encode("<think>\n\n</think>\n\n").ids) == 4


def test_qwens_sentence_is_short(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode(messages.QWEN).ids) < 30


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("earlier", [[], [("Add 1, 2.", "3"), ('Say "river".', "river")]])
def test_prompts_are_what_the_template_writes(loaded: Any, system: str, earlier: list[tuple[str, str]]) -> None:
    chat = [{"role": "system", "content": system}] if system else []
    for asked, answered in earlier:
        chat += [{"role": "user", "content": asked},
                 {"role": "assistant", "content": f"<think>\n1\n</think>\n\n{answered}"}]
    chat.append({"role": "user", "content": "Add 3, 4."})
    written = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert written == data.prompt("Add 3, 4.", earlier, system)
    off = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert off == written + "<think>\n\n</think>\n\n"


def test_loss_is_only_on_what_the_model_has_to_write(tokenizer: Tokenizer) -> None:
    """After a cut: on the thinking that it wrote itself and on the answer, not on what the server wrote."""
    maker = data.SequenceMaker(tokenizer, Random(3))
    cuts = 0
    for _ in range(300):
        sequence = maker.make(12)
        assert all(label in (data.IGNORED, token) for token, label in zip(sequence.ids, sequence.labels, strict=True))
        own = [label for label in sequence.labels if label != data.IGNORED]
        assert own[-1] == maker.end
        assert sequence.ids.count(maker.think) == sequence.ids.count(maker.end_think) == 1
        if maker.think in own and maker.end_think not in own:
            cuts += 1
            closed = sequence.ids.index(maker.end_think)
            assert sequence.labels[closed] == data.IGNORED
            assert sequence.labels[sequence.ids.index(maker.think)] == maker.think
    assert 80 < cuts < 160


def test_batches_hold_every_sequence_whole(tokenizer: Tokenizer) -> None:
    maker = data.SequenceMaker(tokenizer, Random(4))
    for ids, labels in data.batches(maker, steps=20, tokens=1024, ramp=10):
        assert ids.shape == labels.shape
        assert ids.numel() <= 1024
        assert ((ids == maker.end_think).sum(1) == 1).all()
        assert ((labels == maker.end).sum(1) == 1).all()
