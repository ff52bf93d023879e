"""A model of transformers that writes known tokens, asked in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from scripted_model import EOS
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, LogitsProcessor

from sglang_ext.hf import ThinkBudgetLogitsProcessor

MARKERS = ("<think>", "</think>")
OPEN = "<think>\n"
NEW = 24


class Writer:
    """A model that writes known tokens, spoken to in pieces. Each prompt is a text and the piece its script starts at;
    shorter prompts are padded on the left with EOS."""

    def __init__(self, folder: Path, markers: tuple[str, str] | None = MARKERS) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.eos, self.markers = self.id(EOS), markers

    def id(self, piece: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(piece))

    def inputs(self, *prompts: tuple[str, str]) -> dict[str, torch.Tensor]:
        ids = [[*self.tokenizer.encode(text), self.id(start)] for text, start in prompts]
        longest = max(map(len, ids))
        return {"input_ids": torch.tensor([[self.eos] * (longest - len(i)) + i for i in ids]),
                "attention_mask": torch.tensor([[0] * (longest - len(i)) + [1] * len(i) for i in ids])}

    def processor(self, inputs: dict[str, torch.Tensor], budgets: Any, **options: Any) -> ThinkBudgetLogitsProcessor:
        options = {"markers": self.markers, **options}
        return ThinkBudgetLogitsProcessor(self.model, self.tokenizer, budgets, **inputs, **options)

    def generate(self, inputs: dict[str, torch.Tensor], *processors: LogitsProcessor, **options: Any) -> torch.Tensor:
        options = {"max_new_tokens": NEW, "pad_token_id": self.eos, "tokenizer": self.tokenizer, **options}
        output: torch.Tensor = self.model.generate(**inputs, logits_processor=list(processors), **options)
        return output

    def ask(self, inputs: dict[str, torch.Tensor], budgets: Any, message: str = "",
            **options: Any) -> tuple[list[list[str]], list[dict[str, Any] | None]]:
        """Pieces of each response without its padding, and the results."""
        options = {"max_new_tokens": NEW, **options}
        own = {"message": message, "markers": options.pop("markers", self.markers)}
        processor = self.processor(inputs, budgets, **own, **options)
        output = self.generate(inputs, processor, **options)
        return [self.pieces(row[inputs["input_ids"].shape[1] :]) for row in output], processor.results(output)

    def pieces(self, ids: torch.Tensor) -> list[str]:
        pieces = [str(p).replace("Ċ", "\n").replace("Ġ", " ") for p in self.tokenizer.convert_ids_to_tokens(ids)]
        return pieces[: pieces.index(EOS) + 1] if EOS in pieces else pieces


def randomized(writer: Writer) -> Writer:
    """The writer with a random model, whose logits depend on all of the history."""
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, initializer_range=0.5, eos_token_id=writer.eos, bos_token_id=None)
    writer.model = LlamaForCausalLM(config).eval()
    return writer
