"""A batch's requests as a round sees them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .drafting import Drafting


@dataclass
class Turn:
    """One request in a round.

    Attributes:
        output: ids of the response so far, those included that the engine has not processed yet.
        most: tokens that the draft model may write.
        room: tokens that a forced sequence may have in one round.
        drafting: its side of the draft; None where it may not draft.
        outlook: of its think budget, if it has one.
    """

    req: Any
    output: Sequence[int]
    most: int
    room: int
    drafting: Drafting | None = None
    outlook: Any = None

    @classmethod
    def of(cls, req: Any, unprocessed: Sequence[int], width: int) -> Turn:
        """A request's turn, with nothing drafted.

        Args:
            unprocessed: tokens that the engine has not added to the response yet.
            width: of the widest verification.
        """
        output = req.output_ids + array("q", unprocessed) if unprocessed else req.output_ids
        room = req.sampling_params.max_new_tokens - len(output) - 1
        think = getattr(req, "think", None)
        outlook = think.outlook(output) if think is not None else None
        return cls(req, output, max(min(width - 1, room), 0) if may_draft(req) else 0,
                   0 if _token_by_token(req) else width - 1, outlook=outlook)

    @property
    def limit(self) -> int:
        """Tokens that the draft model may write: none behind the budget's wall."""
        left = None if self.outlook is None else self.outlook.left
        return self.most if left is None else min(self.most, left)

    def complete(self, draft: Sequence[int]) -> list[int]:
        """The draft as it can stand: where a budget forces ids, these."""
        return list(draft) if self.outlook is None else self.outlook.complete(draft, self.room)


def unprocessed(batch: Any) -> list[Sequence[int]]:
    """Tokens of each request that are not in `output_ids` yet: overlap scheduling processes a result while the next
    forward runs. Waits for the last round to end.

    The relay holds each request's last round, which may have been processed since: a prefill may stand between. The
    length of the text tells.
    """
    lens = batch.seq_lens_cpu.tolist()  # without the last token, which has no keys and values yet
    missing = [n + 1 - len(req.origin_input_ids) - len(req.output_ids)
               for n, req in zip(lens, batch.reqs, strict=True)]
    if max(missing) <= 0:
        return [()] * len(lens)
    relay = batch.spec_info
    rows = torch.cat([relay.accept_tokens.view(len(lens), -1), relay.accept_lens[:, None]], 1).tolist()
    return [row[: row[-1]][-count:] if count > 0 else () for row, count in zip(rows, missing, strict=True)]


def ids_between(req: Any, output: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Ids `start` to `end` of prompt and output. Only these are copied."""
    prompt = req.origin_input_ids_unpadded
    if start >= len(prompt):
        return output[start - len(prompt) : end - len(prompt)]
    return [*prompt[start:end], *output[: max(end - len(prompt), 0)]]


def may_draft(req: Any) -> bool:
    """Whether a request can be drafted for."""
    return not (_token_by_token(req) or req.finished() or req.input_embeds is not None
                or req.multimodal_inputs is not None)


def _token_by_token(req: Any) -> bool:
    """Whether every token changes how the next is sampled: penalties and custom processors look at all of the output,
    which a verification does not have at each draft position."""
    params = req.sampling_params
    penalized = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    return bool(penalized or params.min_new_tokens or req.custom_logit_processor)
