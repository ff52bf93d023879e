"""Verification: every place of a draft is sampled with the engine's own sampler, and the matching prefix is kept.

A draft that was translated has no probabilities in the target's tokens: it is a point mass. For a point mass, sampling
the target's distribution and keeping the draft where it agrees is exact rejection sampling, at any temperature and with
any truncation (Leviathan et al. 2023, with q = 1 at the draft). So greedy and sampled requests are the same here, and
CPU and GPU too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from ..patches.verification import Verification, report_words
from .draft import PAD, Draft, accept_index, full_mask


@dataclass(frozen=True)
class Verified:
    """The outcome of a verification.

    Attributes:
        forward: the target's result, with its logits.
        tokens: [n * width] int32, what the target wrote at each place.
        accept_lens: [n] int32, how many of them stand in the output.
        new_seq_lens: [n] int, tokens with keys and values of each request.
    """

    forward: Any
    tokens: torch.Tensor
    accept_lens: torch.Tensor
    new_seq_lens: torch.Tensor


class UagVerifyInput(NgramVerifyInput):
    """sglang's input of a verification, for chains. Its relay between steps serves as it is."""

    @property
    def tree_topk(self) -> int:
        """1, as of every chain: the budget then walks it without its parents."""
        return 1


class Verifier:
    """Verifications of one target.

    Args:
        runner: sglang's model runner of the target.
        broadcast: makes samples [n * width] int32 those of the first rank, in place.
    """

    def __init__(self, runner: Any, broadcast: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._runner, self._broadcast = runner, broadcast

    def input(self, batch: Any, draft: Draft) -> UagVerifyInput:
        """sglang's description of the draft."""
        index, following, siblings = draft.links()
        mask = full_mask(batch.seq_lens_cpu.tolist(), draft.width, self._runner.device) if self._reads_mask() else None
        return UagVerifyInput(
            draft_token=draft.tokens.flatten(), custom_mask=mask, positions=draft.positions(batch.seq_lens),
            retrieve_index=index, retrieve_next_token=following, retrieve_next_sibling=siblings,
            draft_token_num=draft.width, new_seq_lens=batch.seq_lens)

    def sample(self, batch: Any, logits_output: Any, draft: Draft, verify_input: UagVerifyInput
               ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the target writes at each place [n * width] int32, and how much of it stands [n] int32."""
        info = batch.sampling_info
        info.grammar_mask = self._grammar_mask(batch, draft) if batch.has_grammar else None
        thinking = Verification.begin(verify_input, batch)
        sampled = self._broadcast(sample(self._runner.sampler, info, logits_output, draft, verify_input.positions,
                                         thinking.apply if thinking else None, batch.return_logprob))
        info.grammar_mask = None
        accept_lens = draft.accept(sampled)
        if thinking is not None:
            sampled, accept_lens, _ = thinking.commit(sampled, accept_lens, accept_index(accept_lens, draft.width))
            report_words(logits_output, thinking.device, thinking.rows, accept_lens, thinking.ends)
        return sampled, accept_lens

    def _reads_mask(self) -> bool:
        """Whether the target's attention reads a mask. None on the CPU does; a backend that captured graphs tells."""
        if torch.device(self._runner.device).type == "cpu":
            return False
        mask = self._runner.attn_backend.verify_mask
        return mask is None or bool(mask.is_read)

    def _grammar_mask(self, batch: Any, draft: Draft) -> Any:
        """What each request's grammar allows after each of its tokens. The first token's id is not looked at."""
        chains = draft.on_host or [()] * len(draft.lengths)
        ids = torch.tensor([[0, *chain, *[0] * (draft.width - 1 - len(chain))] for chain in chains])
        lens = torch.tensor([1 + len(chain) for chain in chains])[:, None]
        steps = torch.arange(1, draft.width + 1)
        following = torch.where(steps < lens, steps, PAD)
        tree = GrammarTree.from_host(following, torch.full_like(following, -1), ids)
        return build_grammar_vocab_mask(reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info,
                                        device=self._runner.device, barrier=None)


def sample(sampler: Any, info: Any, logits_output: Any, draft: Draft, positions: torch.Tensor, mask: Any,
           keep_logits: bool) -> torch.Tensor:
    """Sample every place of a draft as a plain decoding step would sample it.

    Args:
        sampler: sglang's.
        info: its SamplingBatchInfo of the batch, unchanged by this.
        logits_output: with `next_token_logits` [n * width, vocab] of the target, which are used up. With `keep_logits`
            they are what was sampled from, before the temperature, as the logprobs of a verification are computed.
        positions: [n * width] int64.
        mask: called with the logits after everything else that changes them; None: nothing to do.

    Returns:
        [n * width] int32, PAD at padding.
    """
    logits = logits_output.next_token_logits
    _transform(logits, info, draft)
    if mask is not None:
        mask(logits)
    padded = draft.padded
    sampled_from = logits[draft.rows] if keep_logits or padded else logits
    drawn = sampler(LogitsProcessorOutput(next_token_logits=sampled_from), _expanded(info, draft), False, [], [],
                    positions[draft.rows] if padded else positions)
    if not padded:
        return drawn.int()
    sampled = torch.full_like(draft.tokens, PAD, dtype=torch.int32).flatten()
    sampled[draft.rows] = drawn.int()
    return sampled


def _transform(logits: torch.Tensor, info: Any, draft: Draft) -> None:
    """What the engine does to logits before it samples, custom processors included, on [n * width, vocab].

    A request with penalties or a custom processor has no draft: those depend on all of the output.
    """
    roots = logits.view(*draft.tokens.shape, -1)[:, 0]
    counted = info.acc_additive_penalties is not None or info.acc_scaling_penalties is not None
    orchestrator = info.penalizer_orchestrator
    if counted or (orchestrator is not None and orchestrator.is_required):
        penalties = replace(info)
        if not counted:
            penalties.update_penalties()
        changed = roots.clone()
        replace(penalties, penalizer_orchestrator=None, grammar_mask=None, logit_bias=None).apply_logits_bias(changed)
        roots.copy_(changed)
    if info.grammar_mask is not None:
        info.grammar_mask.apply(logits)
    if info.logit_bias is not None:
        logits.add_(info.logit_bias.repeat_interleave(draft.width, 0))
    if info.has_custom_logit_processor:
        changed = roots.clone()
        apply_custom_logit_processor(changed, info)
        roots.copy_(changed)


def _expanded(info: Any, draft: Draft) -> Any:
    """The sampling parameters of each place; what `_transform` did is not done again."""
    by_row = info.sampling_mask_batch_indices, info.sampling_support_logprobs_capture_indices
    if draft.width == 1 and not info.has_custom_logit_processor and all(rows is None for rows in by_row):
        return info
    owners = draft.owners
    seed = info.sampling_seed
    return replace(
        info, temperatures=info.temperatures[owners], top_ps=info.top_ps[owners], top_ks=info.top_ks[owners],
        min_ps=info.min_ps[owners], sampling_seed=None if seed is None else seed[owners], grammars=None,
        grammar_mask=None, penalizer_orchestrator=None, acc_additive_penalties=None, acc_scaling_penalties=None,
        logit_bias=None, has_custom_logit_processor=False, custom_params=None, custom_logit_processor=None,
        return_sampling_masks=None, return_sampling_support_logprobs=None, sampling_mask_batch_indices=None,
        sampling_support_logprobs_capture_indices=None, sampling_mask_top_ks=None)
