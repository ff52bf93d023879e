"""`eagle_sample`: the budget inside the verification that EAGLE, STANDALONE, NGRAM and their kin share.

Each draft node's row of logits is masked with the state after its ancestors, as the last thing before the draw; what
was accepted is then taken into the state, on the device and in the same stream. The grammar's mask is the last one that
sglang applies there, so the budget's comes as a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang_ext.budget.kernels import commit, parents_of, walk

from .forward_batch import Sent, ThinkDevice, arrivals, asks
from .sampling import report_words


@dataclass(frozen=True)
class Verification:
    """One verification of a batch's drafts; stands for sglang's grammar mask.

    Attributes:
        grammar_mask: sglang's own, or None.
        draft: [n, width] int, contiguous.
        parents: [n, width] int32, or None where every draft is a chain.
        rows: [n] int, slots.
        nodes: what `walk` leaves for `commit`.
        ends: ends that were asked for before it.
    """

    device: ThinkDevice
    grammar_mask: Any
    draft: torch.Tensor
    parents: torch.Tensor | None
    rows: torch.Tensor
    nodes: torch.Tensor
    ends: Sent

    @classmethod
    def begin(cls, verify_input: Any, batch: Any, grammar_mask: Any = None) -> Verification | None:
        """The budget's part in a verification; None where nobody in the batch has a budget."""
        device: ThinkDevice | None = getattr(batch.req_to_token_pool, "think_device", None)
        budgeted = device is not None and any(getattr(req, "think", None) is not None for req in batch.reqs)
        if device is None or not budgeted or batch.forward_mode.is_idle():
            return None
        ends: Sent = []
        for rows in (arrivals(batch, device) if device.receives else None, asks(batch, device)):
            if rows is not None:
                rows.flush(device)
                ends += rows.ends
        return cls.of(device, verify_input, batch, grammar_mask, ends)

    @classmethod
    def of(cls, device: ThinkDevice, verify_input: Any, batch: Any, grammar_mask: Any, ends: Sent) -> Verification:
        draft = verify_input.draft_token.reshape(len(batch.seq_lens), verify_input.draft_token_num).contiguous()
        chain = verify_input.tree_topk == 1
        parents = None if chain else parents_of(verify_input.retrieve_next_token, verify_input.retrieve_next_sibling)
        return cls(device, grammar_mask, draft, parents, batch.req_pool_indices, device.nodes(*draft.shape), ends)

    def apply(self, logits: torch.Tensor) -> None:
        """Mask the logits [n * width and more, vocab] in place, as `GrammarMask.apply` does."""
        if self.grammar_mask is not None:
            self.grammar_mask.apply(logits)
        walk(logits[: self.draft.numel()], self.draft, self.parents, self.rows, self.nodes, self.device.state,
             self.device.tables)

    def commit(self, predict: torch.Tensor, accept_lens: torch.Tensor,
               accept_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take what was accepted into the state; return what then stands in the output, in the same form.

        A sampled EOS that the end marker replaces ends the accepted path there, even if the draft foresaw the EOS.

        Args:
            predict: [n * width] int, the token sampled at each accepted node.
            accept_lens: [n] int, accepted nodes, the root included.
            accept_index: [n, depth] int, their places in `predict`, -1 behind them.
        """
        n, width = self.draft.shape
        start = torch.arange(0, n * width, width, device=predict.device)
        last = accept_index.gather(1, accept_lens.long()[:, None] - 1)[:, 0] - start
        commit(predict.view(n, width), last, self.parents, self.rows, self.nodes, self.device.state,
               self.device.tables)
        ends = accept_index == (last + start)[:, None]
        accept_lens = (ends.int().argmax(1) + 1).to(accept_lens.dtype)
        kept = torch.arange(accept_index.shape[1], device=predict.device) < accept_lens[:, None]
        return predict, accept_lens, torch.where(kept, accept_index, -1)


def eagle_sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any,
                 grammar_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    step = Verification.begin(verify_input, batch, grammar_mask)
    if step is None:
        return original(verify_input, batch, logits_output, grammar_mask, *args, **kwargs)
    sampled = original(verify_input, batch, logits_output, step, *args, **kwargs)
    predict, accept_lens, accept_index = step.commit(*sampled)
    report_words(logits_output, step.device, step.rows, accept_lens, step.ends)
    return predict, accept_lens, accept_index
