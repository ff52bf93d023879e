"""transformers' own assisted generation, with a draft of the same or another tokenizer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Made:
    """A response: its text, tokens, seconds, and how many forward passes of the target it took."""

    text: str
    tokens: int
    seconds: float
    forwards: int


@dataclass
class Assisted:
    """A target in bfloat16, and a draft where there is one."""

    model: Any
    tokenizer: Any
    draft: Any = None
    draft_tokenizer: Any = None

    @classmethod
    def load(cls, target: str, draft: str | None, draft_tokens: int) -> Self:
        """Load the models from their folders; a draft proposes `draft_tokens` - 1 ids a round, as in sglang."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
        model.eval().to(device)
        model.generation_config.eos_token_id = None  # a response goes on, as with `ignore_eos` in sglang
        tokenizer = AutoTokenizer.from_pretrained(target)
        if draft is None:
            return cls(model, tokenizer)
        assistant: Any = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16)
        assistant.eval().to(device)
        assistant.generation_config.eos_token_id = None
        assistant.generation_config.num_assistant_tokens = draft_tokens - 1
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        return cls(model, tokenizer, assistant, AutoTokenizer.from_pretrained(draft))

    def generate(self, text: str, new: int) -> Made:
        """Greedy response of exactly `new` tokens."""
        inputs = self.tokenizer(text, return_tensors="pt", add_special_tokens=False,
                                return_token_type_ids=False).to(self.model.device)
        extra: dict[str, Any] = {}
        if self.draft is not None:
            extra["assistant_model"] = self.draft
            if self.draft_tokenizer.get_vocab() != self.tokenizer.get_vocab():
                extra |= {"tokenizer": self.tokenizer, "assistant_tokenizer": self.draft_tokenizer}
        forwards = 0

        def count(*_: Any) -> None:
            nonlocal forwards
            forwards += 1

        hook = self.model.register_forward_hook(count)
        begin = time.perf_counter()
        try:
            with torch.inference_mode():
                ids = self.model.generate(**inputs, max_new_tokens=new, do_sample=False, **extra)
        finally:
            hook.remove()
        seconds = time.perf_counter() - begin
        ids = ids[0, inputs["input_ids"].shape[1] :]
        return Made(self.tokenizer.decode(ids, skip_special_tokens=True), len(ids), seconds, forwards)
