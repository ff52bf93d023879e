"""A request of the engine's as drafting sees it in one step, and the tokens that the host does not know yet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .sources import RequestState


@dataclass
class DraftRequest:
    """One request in one step.

    Attributes:
        output: ids of the response that the host knows.
        in_flight: ids after them that are on the device alone.
        max_tokens: tokens that the draft model may propose, the budget aside.
        max_forced: tokens that a forced sequence may have in one step.
        state: its state of drafting; None where it may not be drafted for.
        lookahead: what its think budget does after `output`; None where it has none.
        forced: ids that the budget forces after `output`.
    """

    req: Any
    output: Sequence[int]
    in_flight: int
    max_tokens: int
    max_forced: int
    state: RequestState | None = None
    lookahead: Any = None
    forced: Sequence[int] = ()

    @classmethod
    def of(cls, req: Any, unprocessed: Sequence[int], width: int, in_flight: int = 0) -> DraftRequest:
        """A request with nothing drafted.

        Args:
            unprocessed: known tokens that the engine has not added to the response yet.
            width: of the widest verification.
            in_flight: tokens after those, which are not known.
        """
        output = req.output_ids + array("q", unprocessed) if unprocessed else req.output_ids
        left = req.sampling_params.max_new_tokens - len(output) - in_flight - 1
        request = cls(req, output, in_flight, max(min(width - 1, left), 0) if may_draft(req) else 0,
                      0 if samples_token_by_token(req) else width - 1)
        think = getattr(req, "think", None)
        if think is not None:
            request.lookahead = think.lookahead(output)
            request.forced = request.complete(())
        return request

    @property
    def length(self) -> int:
        """Tokens of prompt and output, those in flight included."""
        return len(self.req.origin_input_ids_unpadded) + len(self.output) + self.in_flight

    @property
    def limit(self) -> int:
        """Tokens that the draft model may propose: none from the budget's limit on."""
        left = None if self.lookahead is None else self.lookahead.left
        return self.max_tokens if left is None else max(min(self.max_tokens, left - self.in_flight), 0)

    @property
    def needs_tokens(self) -> bool:
        """Whether this step depends on the ids in flight: a budget forces some by now, or a draft is being judged."""
        if self.lookahead is not None:
            left = self.lookahead.left
            if self.forced or (left is not None and left <= self.in_flight):
                return True
        return self.state is not None and self.state.submitted.requested > 0

    def complete(self, tokens: Sequence[int]) -> list[int]:
        """The draft tokens as they can stand in the output: where a budget forces ids, these."""
        return list(tokens) if self.lookahead is None else self.lookahead.complete(tokens, self.max_forced)


def num_in_flight(batch: Any) -> list[int]:
    """How many tokens of each request are not in `output_ids` yet: overlap scheduling processes a result while the next
    forward runs. The length of the text tells."""
    lens = batch.seq_lens_cpu.tolist()  # without the last token, which has no keys and values yet
    return [max(n + 1 - len(req.origin_input_ids) - len(req.output_ids), 0)
            for n, req in zip(lens, batch.reqs, strict=True)]


def tokens_in_flight(batch: Any) -> list[Sequence[int]]:
    """These tokens. Waits for the last step to end.

    The relay holds each request's last step, which may have been processed since: a prefill may stand between.
    """
    missing = num_in_flight(batch)
    if not any(missing):
        return [()] * len(missing)
    relay = batch.spec_info
    rows = torch.cat([relay.accept_tokens.view(len(missing), -1), relay.accept_lens[:, None]], 1).tolist()
    return [row[: row[-1]][-count:] if count else () for row, count in zip(rows, missing, strict=True)]


def ids_between(req: Any, output: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Ids `start` to `end` of prompt and output. Only these are copied."""
    prompt = req.origin_input_ids_unpadded
    if start >= len(prompt):
        return output[start - len(prompt) : end - len(prompt)]
    return [*prompt[start:end], *output[: max(end - len(prompt), 0)]]


def may_draft(req: Any) -> bool:
    """Whether a request can be drafted for."""
    return not (samples_token_by_token(req) or req.finished() or req.input_embeds is not None
                or req.multimodal_inputs is not None)


def samples_token_by_token(req: Any) -> bool:
    """Whether every token changes how the next is sampled: penalties and custom processors look at all of the output,
    which a verification does not have at each draft position."""
    params = req.sampling_params
    penalized = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    return bool(penalized or params.min_new_tokens or req.custom_logit_processor)
