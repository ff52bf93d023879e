"""The served pair of models, as sglang's configuration describes it: tokenizers and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.runtime_context import get_device, get_model, get_schedule, get_spec

from ..config import Settings
from .override import read_override
from .refusal import refusal_of
from .specials import SpecialMap
from .translation import Translator
from .vocabulary import Vocabulary

SAMPLE = ("The harbour office opens at half past six. Mrs. Halloran keeps 214 keys there, and a cat.\n\n"
          "def total(rows):\n    return sum(row.price * row.count for row in rows)\n\n数字 12345. ¿Qué tal, Łódź?\n")
"""Text by which the tokens of two vocabularies are compared when a pool is sized."""


@dataclass(frozen=True)
class Pair:
    """Target and draft.

    Attributes:
        target, draft: their tokenizers; the target's is the one that the server encodes with.
        target_config, draft_config: sglang's model configurations.
        override: the operator's map of special tokens.
    """

    target: Any
    draft: Any
    target_config: Any
    draft_config: Any
    override: Mapping[str, str]

    @classmethod
    def load(cls, target_tokenizer: Any, target_config: Any) -> Pair:
        """Read the draft's tokenizer and configuration.

        Raises:
            ValueError: the server runs without a tokenizer, the draft has none, or one of them is no model that can go
                back to an earlier token.
        """
        path, revision = get_spec().speculative_draft_model_path, get_spec().speculative_draft_model_revision
        if target_tokenizer is None:
            raise ValueError("--speculative-algorithm UAG translates between tokenizers, and this server runs without "
                             "one (--skip-tokenizer-init)")
        trust = get_model().trust_remote_code
        draft = load_tokenizer("--speculative-draft-model-path", path, revision, trust)
        config = ModelConfig(path, trust_remote_code=trust, revision=revision)
        for role, its in (("target", target_config), ("draft", config)):
            if mambaish_config(its) is not None:
                raise ValueError(f"--speculative-algorithm UAG: the {role} model keeps a recurrent state, which cannot "
                                 "go back to an earlier token after a rejected draft; accepted: attention only")
        return cls(target_tokenizer, draft, target_config, config, read_override(Settings.from_environment().uag_map))

    def translator(self) -> Translator:
        """What translates between the two.

        Raises:
            ValueError: one of them cannot be translated, or the override names a token that is not there.
        """
        target = Vocabulary.of(self.target, self.target_config.vocab_size)
        draft = Vocabulary.of(self.draft, self.draft_config.vocab_size)
        problem = refusal_of(target, draft, self.override)
        if problem:
            raise ValueError(f"--speculative-algorithm UAG: {problem}")
        return Translator(target, draft, SpecialMap.of(target, draft, self.override))

    @property
    def draft_tokens_per_target_token(self) -> float:
        """Length of the draft's tokenization of SAMPLE, in the target's tokens."""
        ours, theirs = (len(t.encode(SAMPLE, add_special_tokens=False)) for t in (self.target, self.draft))
        return theirs / max(ours, 1)

    def pool_tokens(self, free_bytes: int | None) -> int:
        """Size of the draft's pool, in its tokens: enough for the text that the target's pool will hold.

        Args:
            free_bytes: memory that the pools of both may take; None: the target's pool has a given size.
        """
        ratio = max(self.draft_tokens_per_target_token, 0.25) * 1.1
        given = get_schedule().max_total_tokens
        if given is None:
            assert free_bytes is not None
            given = max(int(free_bytes / (cell_bytes(self.target_config) + ratio * cell_bytes(self.draft_config))), 1)
        most = get_schedule().max_running_requests * self.draft_config.context_len
        return max(min(int(given * ratio), most), get_schedule().page_size * 2)

    def summary(self, translator: Translator) -> str:
        kind = "the same tokenizer" if translator.identity else (
            f"vocabularies of {len(translator.target.pieces)} and {len(translator.draft.pieces)}, "
            f"{self.draft_tokens_per_target_token:.2f} draft tokens for one of the target")
        return f"target {get_model().model_path}, draft {get_spec().speculative_draft_model_path}: {kind}"


def load_tokenizer(flag: str, path: str, revision: str | None, trust_remote_code: bool) -> Any:
    """A model's tokenizer, as sglang reads it.

    Raises:
        ValueError: it has none.
    """
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    try:
        return get_tokenizer(path, trust_remote_code=trust_remote_code, revision=revision)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{flag} {path}: no tokenizer, and UAG translates between two ({reason})") from None


def free_bytes() -> int:
    """Bytes that sglang will give to KV pools, the target's weights being loaded."""
    from sglang.srt.utils import get_available_gpu_memory

    device, gpu = get_device().device, get_device().gpu_id
    if torch.device(device).type != "cuda":
        return int(get_available_gpu_memory(device, gpu) * (1 << 30))
    total = torch.cuda.get_device_properties(gpu).total_memory
    return max(int(get_available_gpu_memory(device, gpu) * (1 << 30)
                   - total * (1 - get_schedule().mem_fraction_static)), 0)


def cell_bytes(config: Any) -> int:
    """Bytes of keys and values of one token, as if every layer kept them."""
    text = config.hf_text_config
    heads = config.get_num_kv_heads(1)
    return int(2 * text.num_hidden_layers * heads * config.head_dim * torch.empty((), dtype=config.dtype).itemsize)
