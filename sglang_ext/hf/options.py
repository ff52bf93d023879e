"""What a budget has to know of the arguments of `generate()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

REFUSED = {
    "num_beams": (1, "beam search reorders the sequences"),
    "num_beam_groups": (1, "beam search reorders the sequences"),
    "constraints": (None, "constrained search is a beam search"),
    "force_words_ids": (None, "constrained search is a beam search"),
    "penalty_alpha": (0, "contrastive search chooses among candidates by itself"),
    "dola_layers": (None, "DoLa is not one forward pass a token"),
    "assistant_ensemble_weight": (None, "an ensemble accepts ids that the budget forbids"),
    "token_healing": (False, "it rewrites the prompt"),
}
"""Arguments that are not supported, with the value that says nothing, and why."""


@dataclass(frozen=True)
class Options:
    """What a budget has to know of the arguments of `generate()`."""

    eos_ids: tuple[int, ...]
    pad_id: int  # -1 if nothing is padded
    copies: int  # sequences returned for each prompt
    temperature: float  # 0 where tokens are not sampled
    max_new_tokens: int | None

    @classmethod
    def of(cls, model: Any, config: GenerationConfig | None, options: Mapping[str, Any], prompt: int) -> Options:
        """Merge the sources as `generate()` does: options, then `config`, then the model's own; None says nothing.

        Raises:
            ValueError: an option is unknown to `generate()`, or is of a decoding mode that is not supported.
        """
        sources = [dict(options), *(vars(c) for c in (config, model.generation_config) if c is not None)]
        for name in options:
            if not hasattr(model.generation_config, name):
                raise ValueError(f"{name}: unknown; accepted: what a GenerationConfig holds")

        def given(name: str, default: Any = None) -> Any:
            return next((source[name] for source in sources if source.get(name) is not None), default)

        for name, (accepted, reason) in REFUSED.items():
            if given(name, accepted) != accepted:
                raise ValueError(f"{name}: {given(name)} is not supported with a think budget: {reason}; "
                                 f"accepted: {accepted}")
        eos = given("eos_token_id", [])
        eos_ids = tuple(int(i) for i in (torch.as_tensor(eos).reshape(-1).tolist()))
        length = given("max_length")
        return cls(
            eos_ids,
            int(given("pad_token_id", eos_ids[0] if eos_ids else -1)),
            int(given("num_return_sequences", 1)),
            float(given("temperature", 1.0)) if given("do_sample", False) else 0.0,
            given("max_new_tokens", None if length is None else length - prompt),
        )
