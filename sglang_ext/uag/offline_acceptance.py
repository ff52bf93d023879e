"""Rounds played without a server: how many of a draft's tokens a target accepts along what the target wrote.

The draft plays its part of every round: it reads its own tokenization of the confirmed text and goes on greedily until
its text makes the wanted tokens of the target. Those that equal the reply's next tokens are accepted, and the round
confirms one more, as verification does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .text.draft_context import DraftContext, draft_context
from .text.draft_text import common_prefix
from .text.proposal import Proposal
from .text.translator import Translator

_NOTHING = Proposal((), None, 0)


@dataclass(frozen=True)
class Played:
    """A text as the target reads it, and its greedy continuation, the end token included; ids of the target."""

    prompt: Sequence[int]
    reply: Sequence[int]


@dataclass
class Tally:
    """What rounds came to."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    draft_steps: int = 0

    def add(self, other: Tally) -> None:
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.draft_steps += other.draft_steps

    def summary(self) -> dict[str, float]:
        rounds = max(self.rounds, 1)
        return {"acceptance": round(self.accepted / max(self.proposed, 1), 4),
                "tokens_per_round": round(self.accepted / rounds + 1, 3),
                "draft_steps_per_round": round(self.draft_steps / rounds, 2), **asdict(self)}


def continue_greedily(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """What a model writes after each prompt, at most `tokens` ids, one batch for all.

    Args:
        model: a causal language model of transformers.
        prompts: ids, at least one each.
    """
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    new: list[list[int]] = out[:, width:].tolist()
    return new


def play(model: Any, translator: Translator, texts: Sequence[Played], width: int,
         confirmed: Callable[[int], object] | None = None) -> list[Tally]:
    """Play all texts side by side, until every reply is confirmed.

    Args:
        model: the draft, a causal language model of transformers.
        translator: of the pair.
        width: tokens of the target that are drafted in a round.
        confirmed: is told of tokens as they are confirmed.

    Returns:
        A tally for each text.
    """
    contexts = [draft_context(translator) for _ in texts]
    for context, text in zip(contexts, texts, strict=True):
        context.confirm(text.prompt)
    tallies = [Tally() for _ in texts]
    done = [0] * len(texts)
    while active := [k for k, text in enumerate(texts) if done[k] < len(text.reply)]:
        proposals = _propose(model, [contexts[k] for k in active], width)
        for k, proposal in zip(active, proposals, strict=True):
            wanted = texts[k].reply[done[k] :]
            proposed = proposal.ids[: len(wanted)]
            accepted = common_prefix(proposed, wanted)
            tallies[k].add(Tally(1, len(proposed), accepted, proposal.used))
            new = wanted[: accepted + 1]
            contexts[k].confirm(new)
            done[k] += len(new)
            if confirmed is not None:
                confirmed(len(new))
    return tallies


def _propose(model: Any, contexts: Sequence[DraftContext], width: int) -> list[Proposal]:
    able = [k for k, context in enumerate(contexts) if context.unavailable_reason is None and context.draft_ids]
    out = [_NOTHING] * len(contexts)
    if able:
        steps = 2 * max(contexts[k].steps_for(width) for k in able)
        for k, new in zip(able, continue_greedily(model, [contexts[k].draft_ids for k in able], steps), strict=True):
            out[k] = contexts[k].propose(new, width)
    return out
