"""`generate()` and a running server answer the same prompt and budget with the same ids: float32, greedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import servers
import torch
from hf_writer import OPEN, Writer

QUESTIONS = ["How many days are in three weeks?", "Tell me a story about a fox."]
NEW = 20


def answered(server: servers.Server, inputs: dict[str, torch.Tensor], budget: Any, new: int) -> tuple[list[int], Any]:
    """The server's ids and think object for a prompt."""
    params = {"temperature": 0, "max_new_tokens": new} | ({} if budget is None else {"think_budget": budget})
    result = server.generate(input_ids=inputs["input_ids"][0].tolist(), sampling_params=params)
    return result["output_ids"], result["meta_info"].get("think")


def generated(writer: Writer, inputs: dict[str, torch.Tensor], budget: Any, new: int) -> tuple[list[int], Any]:
    """The same from `generate()`."""
    processor = writer.processor(inputs, budget, max_new_tokens=new)
    output = writer.generate(inputs, processor, max_new_tokens=new)
    return output[0, inputs["input_ids"].shape[1] :].tolist(), processor.results(output)[0]


@pytest.mark.parametrize("budget", [7, {"max_tokens": 5, "message": "Time is up.\n"}], ids=str)
def test_the_demo_model(demo_server: servers.Server, demo_model: Path, budget: Any) -> None:
    writer = Writer(demo_model)
    for question in QUESTIONS:
        prompt = writer.tokenizer.apply_chat_template([{"role": "user", "content": question}], return_tensors="pt",
                                                      add_generation_prompt=True, return_dict=True)
        assert generated(writer, dict(prompt), budget, NEW) == answered(demo_server, dict(prompt), budget, NEW)


@pytest.mark.parametrize("budget", [
    None, 0, 1, 2, 3, 4, 5, 9, -1, {"max_tokens": 20, "min_tokens": 16}, {"max_tokens": 12, "grace_tokens": 11},
    {"max_tokens": 5, "message": "Time is up.\n"}, {"answer_tokens": 15},
], ids=str)
def test_the_scripted_model(scripted_server: servers.Server, scripted_model: Path, budget: Any) -> None:
    """Markers in every form, blocks that the model opens, and an EOS inside a block."""
    writer = Writer(scripted_model)
    for text, start in [(OPEN, s) for s in ("loop", "P1", "P2", "P5")] + [("", s) for s in ("P3", "P4")]:
        inputs = writer.inputs((text, start))
        assert generated(writer, inputs, budget, 40) == answered(scripted_server, inputs, budget, 40)
