"""Think budgets in assisted generation: drafts are verified position by position, and taken back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_writer import NEW, OPEN, Writer, randomized
from told_model import think
from transformers import AutoModelForCausalLM, LogitsProcessor

from sglang_ext.hf import processor as module

Loosened = Callable[[float], Any]


@pytest.fixture(scope="session")
def writer(scripted_model: Path) -> Writer:
    return Writer(scripted_model)


@pytest.fixture(scope="session")
def random_writer(scripted_model: Path) -> Writer:
    return randomized(Writer(scripted_model))


@pytest.fixture(scope="session")
def loosened(random_writer: Writer) -> Loosened:
    """The random model with noise on its weights: it drafts well, or badly."""

    def loosen(noise: float) -> Any:
        model = copy.deepcopy(random_writer.model)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=noise)
        return model

    return loosen


class Calls(LogitsProcessor):
    """Counts the calls, and those whose history is shorter than the one before."""

    def __init__(self) -> None:
        self.calls = self.returns = self.last = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls, self.returns = self.calls + 1, self.returns + (input_ids.shape[1] < self.last)
        self.last = input_ids.shape[1]
        return scores


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("budget", [0, 1, 5, 9, {"max_tokens": 12, "min_tokens": 8, "message": "so"}], ids=str)
def test_an_assistant_changes_nothing(random_writer: Writer, loosened: Loosened, budget: Any, noise: float) -> None:
    inputs, calls = random_writer.inputs((OPEN, "loop")), Calls()
    processor = random_writer.processor(inputs, budget)
    plain = random_writer.generate(inputs, processor)
    results = processor.results(plain)
    assert results[0] is not None
    assert results[0]["outcome"] == "forced"
    assisted = random_writer.generate(inputs, processor, calls, assistant_model=loosened(noise), tokenizer=None)
    assert torch.equal(assisted, plain)
    assert processor.results(assisted) == results
    assert calls.calls > NEW
    assert calls.returns > 1


@pytest.mark.parametrize(("start", "budget", "expected"), [
    ("P5", 9, think(9, 2, 3, "eos")), ("P1", 9, think(9, 6, 0, "natural")), ("P1", 4, think(4, 4, 2, "forced")),
])
def test_every_way_out_of_a_block(writer: Writer, random_writer: Writer, start: str, budget: int,
                                  expected: dict[str, Any]) -> None:
    """With a draft that is right, also about the EOS, and with one that is wrong throughout."""
    inputs = writer.inputs((OPEN, start))
    processor = writer.processor(inputs, budget)
    plain = writer.generate(inputs, processor)
    for assistant in (writer.model, random_writer.model):
        assisted = writer.generate(inputs, processor, assistant_model=assistant, tokenizer=None)
        assert torch.equal(assisted, plain)
        assert processor.results(assisted) == [expected]


def test_prompt_lookup(random_writer: Writer) -> None:
    text = OPEN + "loop lo answer </ think >" * 4
    inputs = random_writer.inputs((text, "loop"))
    for budget in (0, 3, 8):
        processor = random_writer.processor(inputs, budget)
        plain = random_writer.generate(inputs, processor)
        looked_up = random_writer.generate(inputs, processor, prompt_lookup_num_tokens=5)
        assert torch.equal(looked_up, plain)
        assert processor.results(looked_up) == processor.results(plain)


@pytest.mark.parametrize("seed", range(4))
def test_sampling_with_an_assistant_keeps_the_budget(random_writer: Writer, loosened: Loosened, seed: int) -> None:
    inputs, options = random_writer.inputs((OPEN, "loop")), {"do_sample": True, "temperature": 0.7}
    processor = random_writer.processor(inputs, 6, **options)
    torch.manual_seed(seed)
    output = random_writer.generate(inputs, processor, assistant_model=loosened(0.05), tokenizer=None, **options)
    end = random_writer.tokenizer.encode("</think>")
    ids = output[0, inputs["input_ids"].shape[1] :].tolist()
    assert ids[6 : 6 + len(end)] == end
    assert processor.results(output) == [think(6, 6, len(end), "forced")]


@pytest.fixture
def foreign_draft(demo_model: Path, demo_tokenizer: Any, scripted_model: Path) -> tuple[Writer, dict[str, Any], Any]:
    """The demo model with a draft model of another tokenizer; a draft model that samples is changed by transformers."""
    writer = Writer(demo_model)
    draft = Writer(scripted_model)
    prompt = demo_tokenizer.apply_chat_template([{"role": "user", "content": "How many days are in three weeks?"}],
                                                add_generation_prompt=True, return_tensors="pt", return_dict=True)
    return writer, dict(prompt), {"assistant_model": draft.model, "assistant_tokenizer": draft.tokenizer}


def test_an_assistant_of_another_tokenizer(foreign_draft: Any) -> None:
    """Greedy: it asks the processor about ids of its own, which are none of the budget's."""
    writer, inputs, assistant = foreign_draft
    processor = writer.processor(inputs, 3)
    plain = writer.generate(inputs, processor, max_new_tokens=12)
    results = processor.results(plain)
    assert results == [think(3, 3, len(closing(writer)), "forced")]
    assisted = writer.generate(inputs, processor, max_new_tokens=12, **assistant)
    assert torch.equal(assisted, plain)
    assert processor.results(assisted) == results


def closing(writer: Writer) -> list[int]:
    """End marker and line break."""
    ids: list[int] = writer.tokenizer.encode("</think>") + writer.tokenizer.encode("\n\n")
    return ids


def test_sampling_with_an_assistant_of_another_tokenizer(foreign_draft: Any) -> None:
    writer, inputs, assistant = foreign_draft
    options = {"do_sample": True, "max_new_tokens": 12}
    processor = writer.processor(inputs, 3, **options)
    output = writer.generate(inputs, processor, **options, **assistant)
    ids = output[0, inputs["input_ids"].shape[1] :].tolist()
    result = processor.results(output)[0]
    assert result is not None
    assert result["tokens"] <= 3
    assert ids[result["tokens"] :][: len(closing(writer))] == closing(writer)


def test_a_draft_longer_than_the_window_is_refused(random_writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 4)
    inputs = random_writer.inputs((OPEN, "loop"))
    processor = random_writer.processor(inputs, 9)
    assistant = AutoModelForCausalLM.from_config(random_writer.model.config)
    with pytest.raises(ValueError, match="a draft may be 4 tokens long"):
        random_writer.generate(inputs, processor, assistant_model=assistant, tokenizer=None)


def test_ids_that_were_never_asked_about_are_refused(random_writer: Writer) -> None:
    inputs = random_writer.inputs((OPEN, "loop"))
    processor = random_writer.processor(inputs, 9)
    output = random_writer.generate(inputs, processor, max_new_tokens=4)
    with pytest.raises(ValueError, match="do not continue"):
        processor.results(torch.cat([output, output[:, -1:]], 1))
    with pytest.raises(ValueError, match="do not continue"):
        processor.results(torch.cat([output[:, :-2], output[:, -2:].flip(1)], 1))
