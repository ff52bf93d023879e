"""The draft that is shipped is the one that its card describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import AutoTokenizer

from sglang_ext.demo.smollm2 import draft
from sglang_ext.uag.text.translator import refusal

LARGEST = 8_000_000


def test_size_and_settings_are_those_of_the_card() -> None:
    folder = draft()
    card, training = (folder / "README.md").read_text(), json.loads((folder / "training.json").read_text())
    weights = folder / "model.safetensors"
    assert weights.stat().st_size <= LARGEST
    assert f"{sum(t.numel() for t in load_file(weights).values()):,} parameters" in " ".join(card.split())
    for option in ("prompts",):
        assert f"--{option} {training[option]}" in card
    for option in ("steps", "drills", "batch"):
        assert f"--{option} {training['plan'][option]}" in card
    results = Path(__file__).parent.parent / "benchmarks" / "results" / "draft_acceptance.jsonl"
    measured = json.loads(results.read_text().splitlines()[-1])["by_width"]["4"]
    for kind, tally in measured.items():
        assert f"| {kind} | {tally['acceptance']:.0%} |" in card


def test_it_drafts_for_the_demo_model(demo_tokenizer: Any) -> None:
    ours = AutoTokenizer.from_pretrained(draft())
    assert len(ours) < len(demo_tokenizer)
    assert refusal(demo_tokenizer, ours) is None
