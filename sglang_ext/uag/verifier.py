"""Verification on the engine's side: how sglang describes chains, grammars, its sampler, and the think budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from ..patches.verification import Verification, report_words
from .verify import PAD, Chains, accept_index, full_mask, sample


class UagVerifyInput(NgramVerifyInput):
    """sglang's input of a verification, for chains; its relay between rounds serves as it is.

    With a mask, a chain is a tree like any of NGRAM's, for which sglang captures its graphs.
    """

    @property
    def tree_topk(self) -> int:
        return 1 if self.custom_mask is None else -1


class Verifier:
    """Verifications of one target.

    Args:
        runner: sglang's model runner of the target.
        agree: makes samples [n * width] int32 those of all ranks, in place.
    """

    def __init__(self, runner: Any, agree: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._runner, self._agree = runner, agree

    def input(self, batch: Any, chains: Chains) -> UagVerifyInput:
        """sglang's description of the chains."""
        index, following, siblings = chains.links()
        on_gpu = torch.device(self._runner.device).type != "cpu"
        mask = full_mask(batch.seq_lens_cpu.tolist(), chains.width, self._runner.device) if on_gpu else None
        return UagVerifyInput(
            draft_token=chains.tokens.flatten(), custom_mask=mask, positions=chains.positions(batch.seq_lens),
            retrieve_index=index, retrieve_next_token=following, retrieve_next_sibling=siblings,
            draft_token_num=chains.width, new_seq_lens=batch.seq_lens)

    def sample(self, batch: Any, logits_output: Any, chains: Chains, on_host: Sequence[Sequence[int]],
               verify_input: UagVerifyInput) -> tuple[torch.Tensor, torch.Tensor]:
        """What the target writes at each place [n * width] int32, and how much of it stands [n] int32."""
        grammar = self._grammar_mask(batch, on_host, chains.width) if batch.has_grammar else None
        batch.sampling_info.grammar_mask = grammar
        thinking = Verification.begin(verify_input, batch)
        sampled = self._agree(sample(
            self._runner.sampler, batch.sampling_info, logits_output, chains, verify_input.positions,
            thinking.apply if thinking else None, batch.return_logprob))
        batch.sampling_info.grammar_mask = None
        accept_lens = chains.accept(sampled)
        if thinking is not None:
            sampled, accept_lens, _ = thinking.commit(sampled, accept_lens, accept_index(accept_lens, chains.width))
            report_words(logits_output, thinking.device, thinking.rows, accept_lens, thinking.ends)
        return sampled, accept_lens

    def _grammar_mask(self, batch: Any, on_host: Sequence[Sequence[int]], width: int) -> Any:
        """What each request's grammar allows after each token of its chain."""
        ids = torch.tensor([[*chain, *[0] * (width - len(chain))] for chain in on_host], dtype=torch.int64)
        lens = torch.tensor([len(chain) for chain in on_host])[:, None]
        steps = torch.arange(1, width + 1)
        following = torch.where(steps < lens, steps, PAD)
        tree = GrammarTree.from_host(following, torch.full_like(following, -1), ids)
        return build_grammar_vocab_mask(reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info,
                                        device=self._runner.device, barrier=None)
