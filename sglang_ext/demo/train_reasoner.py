"""Train the small reasoner on a CPU: `python -m sglang_ext.demo.train_reasoner --out DIR [--seed N] [--steps N]`.

Worker processes of one thread each share every step. They meet once a step, so that a busy core delays them less than
threads that meet at every operator. Equal seeds and steps give equal weights on equal machines. Times and quality are
on the model card in `models/reasoner`.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any, Final

import torch
import torch.multiprocessing as mp
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ..training import labelled_logits, muon_and_adamw, step
from .reasoner.data import SequenceMaker, batches
from .reasoner.tokenizer import CONTEXT, END_OF_TEXT, IM_END, VOCABULARY, build_tokenizer, save_tokenizer

STEPS: Final = 5000
WORKERS: Final = 2
TOKENS: Final = 2048
"""Tokens of a worker's batch."""
MATRIX_RATE: Final = 0.006
VECTOR_RATE: Final = 0.003
"""Learning rates of Muon, for the layers' matrices, and of AdamW, for the embedding and the norms."""
_WARM_UP: Final = 100
_CONSTANT: Final = 0.4
_RAMP: Final = 0.12
"""Shares of the steps until the learning rate starts to fall and until questions have their full size."""


@dataclass(frozen=True)
class Job:
    """A training run.

    Attributes:
        seed: decides the tokenizer, the first weights and the data.
        steps: optimizer steps.
        tokens: tokens of a worker's batch, padding included.
        workers: processes of one thread each.
    """

    seed: int = 0
    steps: int = STEPS
    tokens: int = TOKENS
    workers: int = WORKERS


class _Gradients:
    """Gradients averaged over the workers, through shared memory.

    Attributes:
        shared: [workers, parameters] float32
        barrier: all workers meet here, once before a row is read by others and once before it is written again
    """

    def __init__(self, workers: int, parameters: int, context: Any) -> None:
        self.shared = torch.zeros(workers, parameters).share_memory_()
        self.barrier: Barrier = context.Barrier(workers, timeout=600)

    def average(self, rank: int, model: torch.nn.Module) -> None:
        """Replace the model's gradients by their mean over all workers."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        self.shared[rank] = torch.cat([g.flatten() for g in gradients])
        self.barrier.wait()
        mean = self.shared.mean(0)
        self.barrier.wait()
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def config(end: int, pad: int) -> LlamaConfig:
    """The model's shape. Heads of 64, as not every GPU attention kernel serves smaller ones."""
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=5, num_attention_heads=2,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, bos_token_id=None, eos_token_id=end,
        pad_token_id=pad)


def train(out: Path, job: Job) -> list[float]:
    """Train a model and write it, with its tokenizer, as a Hugging Face folder in bfloat16.

    Returns:
        The first worker's loss of each step, in nats a token.

    Raises:
        threading.BrokenBarrierError: another worker ended early.
    """
    context = mp.get_context("spawn")
    gradients = _Gradients(job.workers, sum(p.numel() for p in _fresh_model(job).parameters()), context)
    others = [context.Process(target=_work, args=(rank, job, gradients), daemon=True) for rank in range(1, job.workers)]
    for process in others:
        process.start()
    model, losses = _work(0, job, gradients)
    for process in others:
        process.join()
    _save(model, out)
    save_tokenizer(build_tokenizer(job.seed), out)
    return losses


def _fresh_model(job: Job) -> LlamaForCausalLM:
    tokenizer = build_tokenizer(job.seed)
    torch.manual_seed(job.seed)
    return LlamaForCausalLM(config(tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)))


def _work(rank: int, job: Job, gradients: _Gradients) -> tuple[LlamaForCausalLM, list[float]]:
    """One worker's part: batches of its own, steps in common. Only the first worker shows progress."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = _fresh_model(job)
    optimizers = muon_and_adamw(model, (MATRIX_RATE, VECTOR_RATE), weight_decay=0.01, beta2=0.98)
    maker = SequenceMaker(build_tokenizer(job.seed), Random(f"{job.seed} {rank}"))
    losses = []
    with tqdm(total=job.steps, unit="step") if rank == 0 else nullcontext() as progress:
        for number, (ids, labels) in enumerate(batches(maker, job.steps, job.tokens, int(job.steps * _RAMP))):
            losses.append(_backward(model, ids, labels))
            gradients.average(rank, model)
            step(model, optimizers, _schedule(number, job.steps))
            if progress is not None:
                progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
                progress.update()
    return model, losses


def _schedule(step: int, steps: int) -> float:
    """Share of the full learning rate: warm-up, constant, then a cosine to zero."""
    warm = min(1.0, (step + 1) / _WARM_UP)
    done = max(0.0, step / steps - _CONSTANT) / (1 - _CONSTANT)
    return warm * 0.5 * (1 + math.cos(math.pi * done))


def _backward(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> float:
    """Gradients of the mean loss over the positions that have one; returns the loss."""
    logits, wanted = labelled_logits(model, ids, labels)
    loss = torch.nn.functional.cross_entropy(logits, wanted)
    loss.backward()
    return loss.item()


def _save(model: LlamaForCausalLM, out: Path) -> None:
    model.generation_config = GenerationConfig(eos_token_id=model.config.eos_token_id, do_sample=False,
                                               pad_token_id=model.config.pad_token_id)
    model.to(torch.bfloat16).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sglang_ext.demo.train_reasoner", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    train(args.out, Job(seed=args.seed, steps=args.steps))


if __name__ == "__main__":
    main()
