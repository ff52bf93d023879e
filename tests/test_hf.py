"""Think budgets in transformers' `generate()`: batches, padding, ends of sequence, markers, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_writer import MARKERS, NEW, OPEN, Writer, randomized
from scripted_model import EOS, TURN, Scripts, build_scripted_model
from told_model import think
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    T5Config,
)

from sglang_ext.budget.contract import BudgetError
from sglang_ext.hf import ThinkBudgetLogitsProcessor

SPECIAL = Scripts(
    [
        ["P1", "one", "two", "</think>", "\n\n", "answer", EOS],
        ["P2", "intro", "\n", "<think>", "idea", "loop", "lo", "loo", "loop"],
        ["P3", "half", "thought", EOS],
    ],
    special=MARKERS,
)


@pytest.fixture(scope="session")
def writer(scripted_model: Path) -> Writer:
    """Markers written in pieces."""
    return Writer(scripted_model)


@pytest.fixture(scope="session")
def special(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Markers of one token, found among the tokenizer's, with a line break after the end."""
    template = "{{ messages[0]['content'] }}{% if false %}{{ '</think>\\n\\n' }}{% endif %}"
    return Writer(build_scripted_model(tmp_path_factory.mktemp("special"), SPECIAL, template), None)


@pytest.fixture(scope="session")
def random_writer(scripted_model: Path) -> Writer:
    return randomized(Writer(scripted_model))


def test_a_batch_of_budgets(writer: Writer) -> None:
    """Rows that loop, end by themselves, run into their wall inside the marker, are cut, and have no budget."""
    inputs = writer.inputs((OPEN, "loop"), (OPEN, "P1"), (OPEN, "P1"), (TURN + "longer " + TURN + OPEN, "loop"),
                           (OPEN, "loop"))
    got, results = writer.ask(inputs, [2, 6, 4, -1, None], max_new_tokens=12)
    assert got[0][:5] == ["lo", "loo", "</", "think", ">"]
    assert got[1] == ["one", "two", "three", "</", "think", ">", "\n\n", "answer", EOS]
    assert got[2] == got[1]
    assert got[3] == got[4] == ["lo", "loo", "loop"] * 4
    assert results == [think(2, 2, 3, "forced"), think(6, 6, 0, "natural"), think(4, 4, 2, "forced"),
                       think(-1, 12, 0, "open"), None]


@pytest.mark.parametrize("do_sample", [False, True])
def test_rows_without_a_budget_are_untouched_to_the_bit(random_writer: Writer, do_sample: bool) -> None:
    inputs = random_writer.inputs((OPEN, "loop"), ("text", "one"), (OPEN + "more", "two"), ("", "three"))
    options = {"do_sample": do_sample, "output_scores": True, "return_dict_in_generate": True, "eos_token_id": []}
    torch.manual_seed(0)
    plain: Any = random_writer.generate(inputs, **options)
    processor = random_writer.processor(inputs, [3, None, {"max_tokens": 5, "min_tokens": 4}, None], **options)
    torch.manual_seed(0)
    limited: Any = random_writer.generate(inputs, processor, **options)
    assert not torch.equal(plain.sequences[0], limited.sequences[0])
    for row in (1, 3):
        assert torch.equal(plain.sequences[row], limited.sequences[row])
        assert all(torch.equal(a[row], b[row]) for a, b in zip(plain.scores, limited.scores, strict=True))
    assert [r and r["outcome"] for r in processor.results(limited)] == ["forced", None, "forced", None]


def test_scores_are_copied_only_where_somebody_has_a_budget(writer: Writer) -> None:
    inputs = writer.inputs((OPEN, "loop"))
    scores = torch.randn(1, 512)
    assert writer.processor(inputs, None)(inputs["input_ids"], scores) is scores
    before = scores.clone()
    assert writer.processor(inputs, 0)(inputs["input_ids"], scores).isfinite().sum() == 1
    assert torch.equal(scores, before)


@pytest.mark.parametrize(("prompt", "opened"), [
    (OPEN, True),
    (TURN + "what does <think> do?" + TURN, False),
    (TURN + "<think>\nold\n</think>\n\n", False),
    (TURN + "stop at </think>" + TURN + "<think>", True),
])
def test_what_a_prompt_leaves_open(writer: Writer, prompt: str, opened: bool) -> None:
    got, results = writer.ask(writer.inputs((prompt, "loop"), (OPEN + "padding " * 9, "loop")), 2, max_new_tokens=8)
    assert ("</" in got[0]) == opened
    assert results[0] == (think(2, 2, 3, "forced") if opened else think(2, 0, 0, "none"))


def test_padding_is_not_read(writer: Writer) -> None:
    """What stands where the attention mask is 0 opens no block, and a pad id that is an EOS ends nothing."""
    inputs = writer.inputs(("text", "loop"), (OPEN + "longer " * 4, "loop"))
    opener = torch.tensor(writer.tokenizer.encode(OPEN))
    inputs["input_ids"][0, : len(opener)] = opener
    assert writer.ask(inputs, 1)[1] == [think(1, 0, 0, "none"), think(1, 1, 3, "forced")]


def test_a_block_that_the_model_opens(writer: Writer, special: Writer) -> None:
    got, results = writer.ask(writer.inputs(("", "P3")), 3)
    assert "".join(got[0]).startswith("intro\n<think>idealooplo</think>")
    assert results == [think(3, 3, 3, "forced")]
    got, results = special.ask(special.inputs(("", "P2")), 2, max_new_tokens=8)
    assert got == [["intro", "\n", "<think>", "idea", "loop", "</think>", "\n\n", "answer"]]
    assert results == [think(2, 2, 2, "forced")]


def test_markers_of_one_token(special: Writer) -> None:
    got, results = special.ask(special.inputs((OPEN, "P1"), (OPEN, "P1"), (OPEN, "P3")), [9, 1, 9])
    assert got[0] == ["one", "two", "</think>", "\n\n", "answer", EOS]
    assert got[1] == ["one", "</think>", "\n\n", "answer", EOS]
    assert got[2] == ["half", "thought", "</think>", "\n\n", "answer", EOS]
    assert results == [think(9, 3, 0, "natural"), think(1, 1, 2, "forced"), think(9, 2, 2, "eos")]


def test_eos_inside_a_block_becomes_the_end_marker(writer: Writer) -> None:
    """With a limit, and through every EOS of the generation config; without one it ends the response."""
    inputs = writer.inputs((OPEN, "P5"), (OPEN, "P5"))
    got, results = writer.ask(inputs, [9, -1])
    assert got == [["half", "thought", "</", "think", ">", "\n\n", "answer", EOS], ["half", "thought", EOS]]
    assert results == [think(9, 2, 3, "eos"), think(-1, 3, 0, "open")]
    several = [writer.eos, writer.id("thought")]
    got, results = writer.ask(inputs, [9, -1], eos_token_id=several)
    assert got == [["half", "</", "think", ">", "\n\n", "answer", EOS], ["half", "thought", EOS]]
    assert results == [think(9, 1, 3, "eos"), think(-1, 2, 0, "open")]


def test_rows_that_finish_early_do_not_count_their_padding(writer: Writer) -> None:
    """One ends by EOS, one by a stop string inside its block; they are padded while the last one thinks on."""
    inputs = writer.inputs((OPEN, "P5"), (OPEN, "P1"), (OPEN, "loop"))
    for pad in (writer.eos, writer.id("ans")):
        _, results = writer.ask(inputs, [-1, 5, 20], stop_strings=["two"], pad_token_id=pad)
        assert results == [think(-1, 3, 0, "open"), think(5, 2, 0, "open"), think(20, 20, 3, "forced")]


def test_the_keys_of_a_budget(writer: Writer) -> None:
    inputs = writer.inputs((OPEN, "P1"), ("", "P3"), (OPEN, "loop"), (OPEN, "loop"))
    got, results = writer.ask(inputs, [
        {"max_tokens": 12, "min_tokens": 10}, {"max_tokens": 9, "grace_tokens": 8},
        {"max_tokens": 2, "message": "stop now"}, {"answer_tokens": 12}], message="enough ")
    assert "".join(got[0]).count("</think>") == 1
    assert results[0] is not None
    assert results[0]["tokens"] >= 10
    assert "".join(got[1]).startswith("intro\n<think>idea")
    assert "".join(got[2]).startswith("loloo" + "stop now</think>")
    assert "".join(got[3]).split("enough ")[1].startswith("</think>")
    room = NEW - 12 - 3 - len(writer.tokenizer.encode("enough "))
    assert results[3] == think(room, room, NEW - 12 - room, "forced")


def test_sequences_returned_for_each_prompt(random_writer: Writer) -> None:
    """A budget is for a prompt and so for all its sequences, or for each sequence."""
    inputs = random_writer.inputs((OPEN, "loop"), (OPEN + "x", "loop"))
    options = {"num_return_sequences": 2, "do_sample": True}
    for budgets, expected in (([1, 3], [1, 1, 3, 3]), ([1, 2, 3, 4], [1, 2, 3, 4]), (2, [2] * 4)):
        _, results = random_writer.ask(inputs, budgets, **options)
        assert [r and r["budget"] for r in results] == expected
        assert all(r and r["tokens"] <= r["budget"] for r in results)


def test_another_call_starts_over(writer: Writer) -> None:
    for inputs in (writer.inputs((OPEN, "loop")), writer.inputs((OPEN, "loop"), (OPEN, "P1"))):
        processor = writer.processor(inputs, 2)
        first = writer.generate(inputs, processor)
        again = writer.generate(inputs, processor)
        assert torch.equal(first, again)
        assert processor.results(again) == processor.results(again)
        other = writer.inputs(*[(OPEN, "P2")] * len(first))
        with pytest.raises(ValueError, match="other prompts"):
            writer.generate(other, processor)


class Override(LogitsProcessor):
    """Makes one id certain."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([self.token]), 0)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_forced_id_stands_or_the_override_is_named(writer: Writer, rows: int) -> None:
    inputs = writer.inputs(*[(OPEN, "loop")] * rows)
    processor, override = writer.processor(inputs, 1), Override(writer.id("one"))
    output = writer.generate(inputs, override, processor, max_new_tokens=5)
    assert writer.pieces(output[0, -4:]) == ["</", "think", ">", "one"]

    def overridden() -> Sequence[Any]:
        return processor.results(writer.generate(inputs, processor, override, max_new_tokens=5))

    with pytest.raises(ValueError, match=r"sequence 0 .* put the think budget last"):
        overridden()


@pytest.mark.parametrize(("option", "part"), [
    ({"num_beams": 2}, "num_beams: 2"),
    ({"penalty_alpha": 0.6}, "penalty_alpha: 0.6"),
    ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight: 0.5"),
    ({"token_healing": True}, "token_healing: True"),
    ({"max_new_token": 5}, "max_new_token: unknown"),
    ({"markers": ("", "x")}, "markers: .*non-empty"),
    ({"markers": ("x", "x")}, "markers must differ"),
])
def test_options_are_checked(writer: Writer, option: dict[str, Any], part: str) -> None:
    inputs = writer.inputs((OPEN, "loop"))
    with pytest.raises(ValueError, match=part):
        writer.processor(inputs, 1, **option)


@pytest.mark.parametrize(("budgets", "part"), [
    (True, r"budgets: true is of type boolean; accepted: an integer from -1"),
    ([1, -2], r"budgets\[1\]: -2 is out of range"),
    ([None, {"min_tokens": 1.5}], r"budgets\[1\]\.min_tokens: 1\.5"),
    ([{"max_tokens": 1, "grace_tokens": 2}, 1], r"budgets\[0\]\.grace_tokens: 2 is above max_tokens 1"),
    ([{"message": "a </think>"}, 1], r"budgets\[0\]\.message: holds a marker"),
    ([{"answer_tokens": 4}, 1], r"budgets\[0\]\.answer_tokens: 4 .*max_new_tokens"),
])
def test_budgets_are_checked_as_the_server_checks_them(writer: Writer, budgets: Any, part: str) -> None:
    with pytest.raises(BudgetError, match=part):
        writer.processor(writer.inputs((OPEN, "loop"), (OPEN, "P1")), budgets)


def test_more_refusals(writer: Writer) -> None:
    two = writer.inputs((OPEN, "loop"), (OPEN, "P1"))
    with pytest.raises(ValueError, match=r"budgets: 3 of them for 2 prompts .*accepted: one value, or 2"):
        writer.processor(two, [1, 2, 3])
    with pytest.raises(BudgetError, match=r"answer_tokens: 30 does not fit into max_new_tokens 24"):
        writer.processor(two, {"answer_tokens": 30}, max_new_tokens=24)
    with pytest.raises(BudgetError, match=r"^message: holds the control token"):
        writer.processor(two, 1, message=TURN)
    with pytest.raises(BudgetError, match=r"budgets: 5 cannot be enforced: .*give `markers`"):
        writer.processor(two, 5, markers=None)
    assert writer.ask(two, [-1, None], markers=None)[1] == [None, None]


def test_a_generation_config_counts_as_generate_takes_it(writer: Writer) -> None:
    """Before the model's own, behind options."""
    inputs, eos = writer.inputs((OPEN, "P5")), [writer.eos, writer.id("thought")]
    config = GenerationConfig(eos_token_id=eos, max_length=inputs["input_ids"].shape[1] + 12, pad_token_id=writer.eos)
    for options in ({}, {"eos_token_id": writer.eos}):
        processor = writer.processor(inputs, {"answer_tokens": 4}, generation_config=config, **options)
        output = writer.model.generate(**inputs, generation_config=config, logits_processor=[processor], **options)
        tokens = 2 if options else 1
        assert processor.results(output) == [think(5, tokens, 3, "eos")]


def test_models_and_shapes_that_do_not_fit(writer: Writer) -> None:
    two = writer.inputs((OPEN, "loop"), (OPEN, "P1"))
    with pytest.raises(ValueError, match=r"attention_mask of shape \(1, 4\)"):
        writer.processor({**two, "attention_mask": two["attention_mask"][:1]}, 1)
    with pytest.raises(ValueError, match="scores of 500 ids, but the model's vocab_size is 512"):
        writer.processor(two, 1)(two["input_ids"], torch.zeros(2, 500))
    with pytest.raises(ValueError, match="encoder-decoder"):
        ThinkBudgetLogitsProcessor(SimpleNamespace(config=T5Config()), writer.tokenizer, 1, **two)


def test_beams_and_sequences_that_the_processor_was_not_told_of(random_writer: Writer) -> None:
    inputs = random_writer.inputs((OPEN, "loop"), (OPEN, "one"))
    with pytest.raises(ValueError, match=r"runs 6 sequences, .* made for 2; .*beam search"):
        random_writer.generate(inputs, random_writer.processor(inputs, 3), num_beams=3)
    processor = random_writer.processor(inputs, 9, num_return_sequences=3)
    with pytest.raises(ValueError, match="beam search, which is not supported"):
        random_writer.generate(inputs, processor, num_beams=3, num_return_sequences=3)


def test_nothing_of_an_engine_is_needed() -> None:
    code = """import sys
sys.modules["sglang"] = sys.modules["sgl_kernel"] = None
import sglang_ext.hf
assert not any(name.startswith("sglang.") for name in sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True)
