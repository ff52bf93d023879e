"""A scripted model and its budget in this process: what a server's response would be, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from sglang_ext.budget.kernels.layout import Word
from sglang_ext.budget.kernels.reference import advance_row, mask_row
from transformers import AutoTokenizer

from sglang_ext.budget.contract import ThinkBudget
from sglang_ext.budget.families import FAMILIES
from sglang_ext.budget.prompt import Request
from sglang_ext.budget.service import build
from sglang_ext.config import Settings


class Flow:
    """One checkpoint of a family."""

    def __init__(self, folder: Path, parser: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        head = load_file(folder / "model.safetensors")["lm_head.weight"]
        self.successor, self.width = head.argmax(0).tolist(), len(head)
        self.admission = build(Settings(think_message=""), self.tokenizer, FAMILIES[parser],
                               {self.tokenizer.eos_token_id}, self.width)

    def respond(self, prompt: str, budget: int, most: int = 60, tools: bool = False,
                message: str = "") -> tuple[list[str], dict[str, Any]]:
        """What the model writes, token by token, and its think object."""
        automaton = self.admission.automaton
        assert automaton is not None
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        row = self.admission.row(ThinkBudget(budget, message=message), ids, most, request=Request(tools))
        words, program, output, last = list(row.words), [*automaton.program, *row.program], list[int](), ids[-1]
        while len(output) < most and last != self.tokenizer.eos_token_id:
            logits = [-1.0] * self.width
            logits[self.successor[last]] = 1.0
            mask_row(logits, words, program, automaton)
            last = advance_row(max(range(self.width), key=logits.__getitem__), words, program, automaton)
            output.append(last)
        assert words[Word.USED] <= budget
        row.note(words, len(output))
        return [self.tokenizer.decode([i]) for i in output], row.result()
