"""Requests to the demo model, and what their budgets make of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rescan import Rescan

QUESTIONS = [
    "How many days are in three weeks?",
    "Name the capital of France.",
    "Write a Python function that adds two numbers.",
    "What is 17 + 25?",
    "Tell me a story about a fox.",
    "Why is the sky blue?",
    "List three prime numbers.",
    "Translate 'good morning' to Spanish.",
]
BUDGETS = [None, 0, 1, 7, 24, -1, 3, 12, 0, None, 1, 18, 7, 2, -1, 5]
NEW = 40


def prompts(tokenizer: Any, n: int, prefix: str = "") -> list[str]:
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prefix + QUESTIONS[i % len(QUESTIONS)] + " " * (i // len(QUESTIONS))}],
            tokenize=False, add_generation_prompt=True,
        )
        for i in range(n)
    ]


def body(prompt: str, budget: Any = None, new: int = NEW, **extra: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True, **extra.pop("sampling_params", {})}
    if budget is not None:
        params["think_budget"] = budget
    return {"text": prompt, "sampling_params": params, **extra}


def check_all(results: Sequence[dict[str, Any]], free: Sequence[Sequence[int]], close: Sequence[int],
              rescan: Rescan, budgets: Sequence[int | None] = BUDGETS) -> None:
    for result, stock_ids, budget in zip(results, free, budgets, strict=True):
        ids, think = result["output_ids"], result["meta_info"].get("think")
        if budget is None:
            assert think is None
        if budget in (None, -1):
            assert ids == stock_ids[: len(ids)]
            continue
        rescan.check_forced(ids, budget, close, stock_ids)
        assert think == {"budget": budget, "tokens": budget, "forced_tokens": len(close), "outcome": "forced"}
