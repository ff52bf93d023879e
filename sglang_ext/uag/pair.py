"""The served pair of models, as sglang's configuration describes it: tokenizers and sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator
from sglang.srt.runtime_context import get_model, get_schedule, get_spec

from ..config import Settings
from .text.translator import SpecialMap, Translator, read_override, refusal_of
from .text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)
SAMPLE = ("The harbour office opens at half past six. Mrs. Halloran keeps 214 keys there, and a cat.\n\n"
          "def total(rows):\n    return sum(row.price * row.count for row in rows)\n\n数字 12345. ¿Qué tal, Łódź?\n")
"""Text by which the tokens of two vocabularies are compared when a pool is sized."""
TEXT_TOKENS = 4096
"""The target's tokens of a running request, on average, that the draft's pool has room for. Longer texts fit as long as
others are shorter; a request without room has no drafts."""
LATENT_ONLY = frozenset({"flashmla", "trtllm_mla", "cutedsl_mla"})
HEADS_ONLY = frozenset({"trtllm_mha", "hpc_ops"})
ONE_FAMILY = frozenset({"dsa", "nsa", "qsa", "dsv4", "compressed", "minicpm_flashattn", "minicpm_flashinfer",
                        "llada2_cfg_flashinfer"})
"""sglang's attention backends that serve models with multi-head latent attention, without it, and of one family."""
FITS_ALL = "triton"


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
            refuse_recurrent(role, its)
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

    def pool_tokens(self, target: Any, draft: Any, free: int | None) -> int:
        """Size of the draft's pool, in its tokens: enough for the text that the target's pool will hold, and no more
        than the running requests need where each has a text of TEXT_TOKENS.

        Args:
            target: sglang's model runner.
            draft: the `DraftRunner`. The weights of both are loaded and their pools are not made.
            free: bytes for both pools; None where an operator gave the size of the target's.
        """
        ratio = max(self.draft_tokens_per_target_token, 0.25) * 1.1
        given = get_schedule().max_total_tokens if free is None else shared_tokens(target, draft, ratio, free)
        text = min(self.draft_config.context_len, int(TEXT_TOKENS * ratio))
        most = get_schedule().max_running_requests * text
        return max(min(int(given * ratio), most), get_schedule().page_size * 2)

    def summary(self, translator: Translator) -> str:
        kind = "the same tokenizer" if translator.identity else (
            f"vocabularies of {len(translator.target.pieces)} and {len(translator.draft.pieces)}, "
            f"{self.draft_tokens_per_target_token:.2f} draft tokens for one of the target")
        return f"target {get_model().model_path}, draft {get_spec().speculative_draft_model_path}: {kind}"


def refuse_recurrent(role: str, config: Any) -> None:
    """Raises ValueError for a model that cannot go back to an earlier token.

    Args:
        role: target or draft.
        config: sglang's.
    """
    if mambaish_config(config) is not None:
        raise ValueError(f"--speculative-algorithm UAG: the {role} model keeps a recurrent state, which cannot go back "
                         "to an earlier token after a rejected draft; accepted: attention only")


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


def free_memory(target: Any) -> int | None:
    """Bytes that are free for pools beside the weights that are loaded, the least of all ranks. Every rank has to ask.

    Returns:
        None where an operator gave the size of the target's pool.

    Raises:
        ValueError: the weights leave no memory.
    """
    if get_schedule().max_total_tokens is not None:
        return None
    target.init_kv_cache_configurator()
    return int(target.kv_cache_configurator._profile_available_bytes(target.pre_model_load_memory))


def shared_tokens(target: Any, draft: Any, ratio: float, free: int) -> int:
    """Tokens that the target's pool can hold if the draft's holds `ratio` times as many, in so many bytes.

    sglang's own accounts say how many tokens fit where one pool has all of the memory. They know what each layer keeps
    of a token: heads, a latent, quantized values.
    """
    account = target.kv_cache_configurator
    return max(int(1 / (1 / tokens_in(account, free) + ratio / draft.tokens_in(free))), 1)


def tokens_in(account: Any, memory: int) -> int:
    """Tokens that so many bytes hold, by one of sglang's accounts."""
    return int(create_memory_pool_configurator(account).calculate_pool_sizes(memory, get_schedule().page_size)
               .max_total_num_tokens)


def draft_attention(named: str | None, target: str, *, latent: bool) -> str:
    """The draft's attention backend: the one that the operator named, else the target's where it can serve the draft.

    Args:
        named: `--speculative-draft-attention-backend`.
        target: the target's.
        latent: whether the draft keeps a latent instead of heads (MLA).

    Raises:
        ValueError: the named one cannot serve the draft.
    """
    others = HEADS_ONLY if latent else LATENT_ONLY
    if named in others:
        raise ValueError(f"--speculative-draft-attention-backend {named}: not for this draft, which has "
                         f"{'' if latent else 'no '}multi-head latent attention; accepted: {FITS_ALL}, for example")
    if named is None and target in others | ONE_FAMILY:
        logger.warning("UAG: the target's attention backend %s is not for the draft, which is served with %s; "
                       "--speculative-draft-attention-backend names another", target, FITS_ALL)
        return FITS_ALL
    return named or target
