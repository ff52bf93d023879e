"""From a batch to what is verified for it: each request's draft tokens, and what steps took."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from .draft_state import NO_TOKENS, Counts, DraftState
from .drafter import Drafter

FORGOTTEN_AFTER = 64
"""Steps after which a request that is in no batch, one that ended in its prefill say, loses its state."""


class _Launched(NamedTuple):
    """The target's step that was launched last."""

    kind: Literal["plain", "verify"]
    batch: int
    width: int
    start: float
    began: float  # its draft
    requests: list[Counts]


@dataclass
class DraftRequest:
    """One request in one step.

    Attributes:
        output: ids of the response so far, those included that the engine has not processed yet.
        max_tokens: tokens that the draft model may propose, the budget aside.
        max_forced: tokens that a forced sequence may have in one step.
        state: its state of drafting; None where it may not be drafted for.
        lookahead: what its think budget does next; None where it has none.
    """

    req: Any
    output: Sequence[int]
    max_tokens: int
    max_forced: int
    state: DraftState | None = None
    lookahead: Any = None

    @classmethod
    def of(cls, req: Any, unprocessed: Sequence[int], width: int) -> DraftRequest:
        """A request with nothing drafted.

        Args:
            unprocessed: tokens that the engine has not added to the response yet.
            width: of the widest verification.
        """
        output = req.output_ids + array("q", unprocessed) if unprocessed else req.output_ids
        left = req.sampling_params.max_new_tokens - len(output) - 1
        think = getattr(req, "think", None)
        lookahead = think.outlook(output) if think is not None else None
        return cls(req, output, max(min(width - 1, left), 0) if may_draft(req) else 0,
                   0 if samples_token_by_token(req) else width - 1, lookahead=lookahead)

    @property
    def limit(self) -> int:
        """Tokens that the draft model may propose: none from the budget's limit on."""
        left = None if self.lookahead is None else self.lookahead.left
        return self.max_tokens if left is None else min(self.max_tokens, left)

    def complete(self, tokens: Sequence[int]) -> list[int]:
        """The draft tokens as they can stand in the output: where a budget forces ids, these."""
        return list(tokens) if self.lookahead is None else self.lookahead.complete(tokens, self.max_forced)


class Proposer:
    """Draft tokens for the engine's batches. It runs on the first rank alone.

    Args:
        drafter: drafts of all requests.
        width: of the widest verification.
        fixed_width: whether every verification has that width.
        overlap: whether the engine schedules a step while the one before it runs.
    """

    def __init__(self, drafter: Drafter, width: int, *, fixed_width: bool, overlap: bool) -> None:
        self._drafter, self._width, self._fixed_width, self._overlap = drafter, width, fixed_width, overlap
        self._launched: _Launched | None = None
        self._step = 0
        self._left: list[str] = []  # requests that ended since the last forward
        self._seen: dict[str, tuple[int, Any]] = {}  # the last step in which a request was here, and the request

    def clear(self) -> None:
        """Forget every request."""
        self._forget({*self._drafter.rids, *self._left})
        self._left.clear()

    def note_finished(self, rid: str) -> None:
        self._left.append(rid)

    def begin(self, batch: Any) -> None:
        """A forward begins: forget the requests that have left. sglang tells of those that end while they decode, not
        of those that end in their prefill or are aborted while they wait."""
        self._step += 1
        here = {req.rid for req in batch.reqs}
        self._forget([*self._left, *(
            rid for rid, (seen, req) in self._seen.items()
            if rid not in here and (req.finished() or self._step - seen > FORGOTTEN_AFTER))])
        self._left.clear()

    def read_prompts(self, batch: Any) -> None:
        """The target reads prompts. Let the draft read them too."""
        self._launched = None  # the next step waits for this forward too
        if not batch.forward_mode.is_extend():
            return
        states = []
        for req in batch.reqs:
            if not may_draft(req):
                continue
            if req.sampling_params.max_new_tokens <= 1:  # nothing will be drafted: the prompt need not be read
                req.uag = Counts()
                continue
            state = self._state(req)
            state.submitted = NO_TOKENS  # what was in flight when the request was retracted is not known
            state.confirm(ids_between(req, req.output_ids, state.num_confirmed, req.extend_end))
            states.append(state)
        self._drafter.prefill(states)

    def propose(self, batch: Any) -> list[list[int]]:
        """[n] chains of 1 to `width` ids to verify now: each request's last token, and its draft tokens."""
        unprocessed = tokens_in_flight(batch) if self._overlap else [()] * len(batch.reqs)
        self.measure()
        began = time.perf_counter()
        requests = self._requests(batch, unprocessed)
        drafts = self._drafts(requests)
        longest = 1 + max(map(len, drafts))
        counts = [request.state.counts for request in requests if request.state is not None]
        self._launched = _Launched("plain" if longest == 1 else "verify", len(drafts),
                                   self._width if self._fixed_width else longest, time.perf_counter(), began, counts)
        return [[int(request.output[-1]), *draft] for request, draft in zip(requests, drafts, strict=True)]

    def measure(self) -> None:
        """Note how long the last step took, once it has ended: on the CPU right away, on a GPU when the next step has
        its tokens."""
        if self._launched is not None:
            kind, batch, width, start, began, requests = self._launched
            now = time.perf_counter()
            self._drafter.lengths.timed(kind, batch, width, now - start)
            for counts in requests:
                counts.draft_seconds += self._drafter.seconds
                counts.target_seconds += now - start
                counts.round_seconds += now - began
            self._launched = None

    def _forget(self, rids: Iterable[str]) -> None:
        rids = list(rids)
        self._drafter.close(rids)
        for rid in rids:
            self._seen.pop(rid, None)

    def _state(self, req: Any) -> DraftState:
        self._seen[req.rid] = self._step, req
        state = self._drafter.state(req.rid)
        req.uag = state.counts = getattr(req, "uag", state.counts)  # they outlive a state lost by retraction
        return state

    def _requests(self, batch: Any, unprocessed: Sequence[Sequence[int]]) -> list[DraftRequest]:
        """The batch's requests, with what was confirmed since the last step."""
        requests = []
        for req, late in zip(batch.reqs, unprocessed, strict=True):
            request = DraftRequest.of(req, late, self._width)
            if may_draft(req):
                request.state = self._confirm(req, request.output)
            requests.append(request)
        return requests

    def _confirm(self, req: Any, output: Sequence[int]) -> DraftState:
        prompt = req.origin_input_ids_unpadded
        state = self._state(req)
        if state.num_confirmed > len(prompt) + len(output):  # retraction dropped tokens that were in flight
            self._forget([req.rid])
            state = self._state(req)
        new = ids_between(req, output, state.num_confirmed, len(prompt) + len(output))
        state.confirm(new)
        self._drafter.observe(state, max(len(new) - 1, 0))
        return state

    def _drafts(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Draft tokens. A sequence that the budget forces is a draft that needs no model."""
        drafts = [request.complete(()) for request in requests]
        asked = [(i, request, request.state) for i, request in enumerate(requests)
                 if request.state is not None and not drafts[i] and request.limit]
        states = [state for _, _, state in asked]
        planned = self._drafter.plan(states, [state.num_confirmed for state in states], len(requests))
        wanted = [min(plan, request.limit) for plan, (_, request, _) in zip(planned, asked, strict=True)]
        written = self._drafter.draft(states, wanted, len(requests))
        for (i, request, state), tokens in zip(asked, written, strict=True):
            drafts[i] = request.complete(tokens.ids)
            state.submitted = tokens.cut(sum(1 for a, b in zip(drafts[i], tokens.ids, strict=False) if a == b))
        for request, draft in zip(requests, drafts, strict=True):
            if request.state is not None:
                proposed = len(request.state.submitted.ids)
                request.state.counts.launch(proposed, len(draft) - proposed)
        return drafts


def tokens_in_flight(batch: Any) -> list[Sequence[int]]:
    """Tokens of each request that are not in `output_ids` yet: overlap scheduling processes a result while the next
    forward runs. Waits for the last step to end.

    The relay holds each request's last step, which may have been processed since: a prefill may stand between. The
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
    return not (samples_token_by_token(req) or req.finished() or req.input_embeds is not None
                or req.multimodal_inputs is not None)


def samples_token_by_token(req: Any) -> bool:
    """Whether every token changes how the next is sampled: penalties and custom processors look at all of the output,
    which a verification does not have at each draft position."""
    params = req.sampling_params
    penalized = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    return bool(penalized or params.min_new_tokens or req.custom_logit_processor)
