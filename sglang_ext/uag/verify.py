"""Verification: every draft position is sampled with the engine's own sampler, and the matching prefix is kept.

A draft that was translated has no probabilities in the target's tokens: it is a point mass. For a point mass, sampling
the target's distribution and keeping the draft where it agrees is exact rejection sampling, at any temperature and with
any truncation (Leviathan et al. 2023, with q = 1 at the draft). So greedy and sampled requests are the same here, and
CPU and GPU too.

Tensors stay on the batch's device, and nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from ..patches.verification import Verification, report_words

PAD = -1


@dataclass(frozen=True)
class Chains:
    """The drafts of a batch, padded to one width.

    Attributes:
        tokens: [n, width] int64; first each request's last confirmed token, then its draft, then PAD.
        lengths: [n] int64, tokens that are no padding: 1 + drafted.
        rows: [m] int64, places in the flat [n * width] that are no padding, in order.
        owners: [m] int64, the request of each.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor
    owners: torch.Tensor

    @classmethod
    def of(cls, chains: Sequence[Sequence[int]], width: int, device: torch.device | str) -> Chains:
        """Lay out chains on the host and send them over in one piece.

        Args:
            chains: [n], each 1 to `width` ids.
        """
        if width == 1:
            tokens = _sent([token for (token,) in chains], device)
            places = torch.arange(len(chains), device=tokens.device)
            return cls(tokens[:, None], torch.ones_like(tokens), places, places)
        lengths = [len(chain) for chain in chains]
        flat = [token for chain in chains for token in (*chain, *[PAD] * (width - len(chain)))]
        rows = [i * width + j for i, length in enumerate(lengths) for j in range(length)]
        owners = [i for i, length in enumerate(lengths) for _ in range(length)]
        sizes = [len(flat), len(lengths), len(rows), len(owners)]
        tokens, lens, where, who = _sent([*flat, *lengths, *rows, *owners], device).split(sizes)
        return cls(tokens.view(len(chains), width), lens, where, who)

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def padded(self) -> bool:
        """Whether some chains are shorter than `width`."""
        return len(self.rows) < self.tokens.numel()

    @property
    def input_ids(self) -> torch.Tensor:
        """[n * width] int64 that can be embedded, padding included."""
        return self.tokens.clamp(min=0).flatten() if self.padded else self.tokens.flatten()

    def positions(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """[n * width] int64, from [n] tokens before the last confirmed one. Some models write to them in place."""
        if self.width == 1:
            return seq_lens.to(torch.int64, copy=True)
        steps = torch.arange(self.width, device=seq_lens.device)
        return (seq_lens.long()[:, None] + steps).flatten()

    def slots(self, table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[n * width] int64, the KV slots that the engine holds for these positions.

        Args:
            table: [requests, positions] int, the engine's slots of every request.
            rows: [n] int, each request's row of it.
            positions: [n * width] int64.
        """
        if self.width == 1:
            return table[rows, positions].long()
        return table[rows[:, None], positions.view(self.tokens.shape)].flatten().long()

    def links(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The chain as the tree that sglang's structures describe: index, next token and next sibling, [n, width]."""
        none = torch.full_like(self.tokens, -1)
        if self.width == 1:
            return self.rows[:, None], none, none
        n, width = self.tokens.shape
        steps = torch.arange(width, device=self.tokens.device)
        index = torch.arange(n * width, device=self.tokens.device).view(n, width)
        follows = steps + 1 < self.lengths[:, None]
        return index, torch.where(follows, steps + 1, -1), none

    def accept(self, sampled: torch.Tensor) -> torch.Tensor:
        """How many samples stand in the output: the drafts that agree, and the one after them.

        Args:
            sampled: [n * width] int, what the target wrote at each place.

        Returns:
            [n] int32, 1 to `lengths`.
        """
        if self.width == 1:
            return torch.ones_like(self.lengths, dtype=torch.int32)
        after = torch.arange(1, self.width, device=sampled.device)
        agrees = self.tokens[:, 1:] == sampled.view(self.tokens.shape)[:, :-1]
        agrees &= after < self.lengths[:, None]
        return (1 + agrees.int().cumprod(1).sum(1)).int()


def _sent(values: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Numbers of the host as int64 on a device, in one transfer that nothing waits for."""
    host = torch.tensor(values, dtype=torch.int64)
    if torch.device(device).type == "cpu":
        return host
    if torch.cuda.is_available():
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def accept_index(accept_lens: torch.Tensor, width: int) -> torch.Tensor:
    """[n, width] int32, places of the accepted samples in the flat [n * width], -1 behind them."""
    steps = torch.arange(width, device=accept_lens.device)
    start = torch.arange(len(accept_lens), device=accept_lens.device)[:, None] * width
    return torch.where(steps < accept_lens[:, None], start + steps, -1).int()


def full_mask(seq_lens: Sequence[int], width: int, device: torch.device | str) -> torch.Tensor:
    """The mask of chains as sglang's GPU backends read it: for each request [width, length + width] bool, flat.

    Args:
        seq_lens: [n] tokens before the chain, on the host.
    """
    lens = _sent(seq_lens, device)
    columns = lens + width
    starts = (columns.cumsum(0) - columns) * width
    row, later = torch.triu_indices(width, width, 1, device=device)
    hidden = starts[:, None] + row * columns[:, None] + lens[:, None] + later
    mask = torch.ones(width * sum(length + width for length in seq_lens), dtype=torch.bool, device=device)
    mask[hidden.flatten()] = False
    return mask


def sample(sampler: Any, info: Any, logits_output: Any, chains: Chains, positions: torch.Tensor, mask: Any,
           keep_logits: bool) -> torch.Tensor:
    """Sample every place of the chains as a plain decoding step would sample it.

    Args:
        sampler: sglang's.
        info: its SamplingBatchInfo of the batch, unchanged by this.
        logits_output: with `next_token_logits` [n * width, vocab] of the target, which are used up. With `keep_logits`
            they are what was sampled from, before the temperature, as the logprobs of a verification are computed.
        positions: [n * width] int64.
        mask: called with the logits after everything else that changes them; None: nothing to do.

    Returns:
        [n * width] int32, PAD where the chain is padding.
    """
    logits = logits_output.next_token_logits
    _transform(logits, info, chains)
    if mask is not None:
        mask(logits)
    padded = chains.padded
    sampled_from = logits[chains.rows] if keep_logits or padded else logits
    drawn = sampler(LogitsProcessorOutput(next_token_logits=sampled_from), _expanded(info, chains), False, [], [],
                    positions[chains.rows] if padded else positions)
    if not padded:
        return drawn.int()
    sampled = torch.full_like(chains.tokens, PAD, dtype=torch.int32).flatten()
    sampled[chains.rows] = drawn.int()
    return sampled


def _transform(logits: torch.Tensor, info: Any, chains: Chains) -> None:
    """What the engine does to logits before it samples, custom processors included, on [n * width, vocab].

    A request with penalties or a custom processor has no draft: those depend on all of the output.
    """
    roots = logits.view(*chains.tokens.shape, -1)[:, 0]
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
        logits.add_(info.logit_bias.repeat_interleave(chains.width, 0))
    if info.has_custom_logit_processor:
        changed = roots.clone()
        apply_custom_logit_processor(changed, info)
        roots.copy_(changed)


def _expanded(info: Any, chains: Chains) -> Any:
    """The sampling parameters of each place; what `_transform` did is not done again."""
    by_row = info.sampling_mask_batch_indices, info.sampling_support_logprobs_capture_indices
    if chains.width == 1 and not info.has_custom_logit_processor and all(rows is None for rows in by_row):
        return info
    owners = chains.owners
    seed = info.sampling_seed
    return replace(
        info, temperatures=info.temperatures[owners], top_ps=info.top_ps[owners], top_ks=info.top_ks[owners],
        min_ps=info.min_ps[owners], sampling_seed=None if seed is None else seed[owners], grammars=None,
        grammar_mask=None, penalizer_orchestrator=None, acc_additive_penalties=None, acc_scaling_penalties=None,
        logit_bias=None, has_custom_logit_processor=False, custom_params=None, custom_logit_processor=None,
        return_sampling_masks=None, return_sampling_support_logprobs=None, sampling_mask_batch_indices=None,
        sampling_support_logprobs_capture_indices=None, sampling_mask_top_ks=None)


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
            report_words(logits_output, thinking.device, thinking.rows, accept_lens)
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
