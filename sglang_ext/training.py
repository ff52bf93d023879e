"""What the trainings of small models share: a byte-level tokenizer, the optimizers, and the loss.

The demo reasoner (`demo/train_reasoner.py`) and drafts (`uag/train/`) are trained with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

IGNORED = -100
"""Label of a position without loss."""


def byte_level_bpe(texts: Iterable[str], size: int, special: Sequence[AddedToken], *, digits: bool) -> Tokenizer:
    """Train byte-level BPE over all 256 bytes.

    Args:
        size: ids of the vocabulary: special tokens first, then the bytes, then the merges.
        digits: whether every digit is a token of its own.
    """
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def muon_and_adamw(model: torch.nn.Module, rates: tuple[float, float], weight_decay: float, beta2: float
                   ) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, which needs far fewer tokens than AdamW does; AdamW for the rest.

    Args:
        rates: the highest learning rates of the two.
        weight_decay: of the matrices.
        beta2: of AdamW.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    made: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rates[0], weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rates[1], betas=(0.9, beta2), weight_decay=0.0)]
    for optimizer in made:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return made


def step(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], share: float) -> None:
    """One update by the gradients that are there, at `share` times each optimizer's highest rate."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def labelled_logits(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model predicts where there is loss, in bfloat16, and what stands there.

    Args:
        model: a causal language model of transformers.
        ids: [batch, length] int64.
        labels: [batch, length] int64, IGNORED where there is no loss.

    Returns:
        [labelled, vocab] float32 logits and [labelled] int64 labels.
    """
    wanted = labels[:, 1:]
    chosen = wanted != IGNORED
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[chosen])
    return logits.float(), wanted[chosen]
