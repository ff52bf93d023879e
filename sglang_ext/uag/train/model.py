"""The draft model and its training, which goes on where it was interrupted."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from ...training import labelled_logits, muon_and_adamw, step
from .data import Rows

_DECAY_FROM = 0.5
"""The rate is constant up to this share of the training, then falls to nothing along a cosine."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the draft. Few wide layers: a layer costs a fixed time a step, width costs little."""

    vocabulary: int = 3072
    hidden: int = 256
    feed_forward: int = 1024
    layers: int = 2
    heads: int = 4
    positions: int = 2048

    def build(self, tokenizer: Any) -> LlamaForCausalLM:
        """A new model in float32 with random weights from torch's generator, embeddings tied."""
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=self.hidden, intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.heads,
            max_position_embeddings=self.positions, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    `steps`: 0 = as many as fit in `minutes` of training, over all starts; the result then depends on the machine's
    speed. `batch`: rows of a step. `length`: tokens of a row. `rate`: the highest, reached after `warm_up` steps.
    `drills`: first steps that practise copying alone. `saved_every`: steps between two states on disk.
    """

    steps: int = 0
    minutes: float = 30
    batch: int = 4
    length: int = 1024
    rate: float = 3e-3
    warm_up: int = 40
    drills: int = 1000
    saved_every: int = 50

    def share(self, step: int, seconds: float) -> float:
        """How much of the training is done, 0 to 1."""
        done = step / self.steps if self.steps else seconds / (60 * self.minutes)
        return min(done, 1.0)

    def learning_rate(self, step: int, share: float) -> float:
        """Rate of a step, counted from 0."""
        rate = self.rate * min(1.0, (step + 1) / self.warm_up)
        falling = max(0.0, (share - _DECAY_FROM) / (1 - _DECAY_FROM))
        return rate * 0.5 * (1 + math.cos(math.pi * falling))


class Training:
    """A model, its optimizers and how far they are.

    Args:
        model: the new model, in float32.
        rows: what it is trained on.
        plan: for how long.
        path: file of the state between starts.
        recipe: whatever else the state depends on; a state of another recipe is refused.

    Raises:
        ValueError: the state in `path` is of another plan or recipe.
    """

    def __init__(self, model: LlamaForCausalLM, rows: Rows, plan: Plan, path: Path, recipe: str) -> None:
        self.model, self._rows, self._plan, self._path = model.train(), rows, plan, path
        self._recipe = {**asdict(plan), "recipe": recipe}
        self.losses: list[float] = []  # nats a token of a reply, by step
        self.seconds = 0.0
        self._optimizers = muon_and_adamw(model, rates=(1.0, 1.0), weight_decay=0.05, beta2=0.95)
        if path.exists():
            self._load()

    def run(self) -> None:
        """Train to the plan's end."""
        plan = self._plan
        total = plan.steps or None
        with tqdm(total=total, initial=len(self.losses), desc="draft trains", unit="step") as bar:
            batches = self._rows.batches(plan.batch, plan.drills, skip=len(self.losses))
            while (share := plan.share(len(self.losses), self.seconds)) < 1:
                start = time.monotonic()
                loss = self._step(*map(torch.from_numpy, next(batches)), share=share)
                self.losses.append(loss)
                self.seconds += time.monotonic() - start
                bar.set_postfix(loss=f"{sum(self.losses[-20:]) / len(self.losses[-20:]):.3f}", done=f"{share:.0%}")
                bar.update()
                if len(self.losses) % plan.saved_every == 0:
                    self._save()
        self._save()

    def _step(self, ids: torch.Tensor, labels: torch.Tensor, *, share: float) -> float:
        """One update from [batch, length] ids and labels; returns the loss before it."""
        loss = reply_loss(self.model, ids, labels)
        loss.backward()
        step(self.model, self._optimizers, self._plan.learning_rate(len(self.losses), share))
        return loss.item()

    def _save(self) -> None:
        fresh = self._path.with_suffix(".part")
        torch.save({"model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self._optimizers],
                    "losses": self.losses, "seconds": self.seconds, "recipe": self._recipe}, fresh)
        os.replace(fresh, self._path)

    def _load(self) -> None:
        state = torch.load(self._path, weights_only=True)
        if state["recipe"] != self._recipe:
            raise ValueError(f"{self._path} was trained on other texts, in another shape or by another plan: repeat "
                             "its options, or remove the file to train anew on the texts that are there")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.losses, self.seconds = state["losses"], state["seconds"]


def reply_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats, of the positions that have a label; 0 where none has.

    Args:
        ids: [batch, length] int64.
        labels: [batch, length] int64, IGNORED where there is no loss.
    """
    logits, wanted = labelled_logits(model, ids, labels)
    total = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
    return total / max(len(wanted), 1)
