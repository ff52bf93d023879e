"""From a batch to what is verified for it: each request's draft tokens, and what steps took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from .draft_request import DraftRequest, ids_between, may_draft, num_in_flight, tokens_in_flight
from .draft_state import NO_TOKENS, Counts
from .sources import Plan, RequestState, Sources

FORGOTTEN_AFTER = 64
"""Steps after which a request that is in no batch, one that ended in its prefill say, loses its state."""


class _Launched(NamedTuple):
    """The target's step that was launched last.

    `pipelined`: the step before it was still running.
    """

    kind: Literal["plain", "verify"]
    batch: int
    width: int
    start: float
    began: float  # its draft
    draft_seconds: float
    requests: list[Counts]
    pipelined: bool


class Proposer:
    """Draft tokens for the engine's batches. It runs on the first rank alone.

    A step in which nobody drafts and nothing is forced does not wait for the step before it: the last tokens stay on
    the device, and what was confirmed is looked at when it is needed.

    Args:
        sources: of drafts.
        width: of the widest verification.
        fixed_width: whether every verification has that width.
        overlap: whether the engine schedules a step while the one before it runs.
    """

    def __init__(self, sources: Sources, width: int, *, fixed_width: bool, overlap: bool) -> None:
        self._sources, self._width, self._fixed_width, self._overlap = sources, width, fixed_width, overlap
        self._launched: _Launched | None = None
        self._step = 0
        self._left: list[str] = []  # requests that ended since the last forward
        self._seen: dict[str, tuple[int, Any]] = {}  # the last step in which a request was here, and the request

    def clear(self) -> None:
        """Forget every request."""
        self._forget({*self._sources.rids, *self._left})
        self._sources.clear()
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
        """The target reads prompts. Let the draft model read them too."""
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
            if state.num_confirmed > len(req.origin_input_ids_unpadded) + len(req.output_ids):
                state = self._renewed(req)  # a retraction dropped tokens that were in flight
            state.submitted = NO_TOKENS  # what became of it is not known
            state.confirm(ids_between(req, req.output_ids, state.num_confirmed, req.extend_end))
            states.append(state)
        self._sources.prefill(states)

    def propose(self, batch: Any) -> list[list[int]] | None:
        """Tokens to verify now, [n] chains of 1 to `width` ids: each request's last token, and its draft tokens. None
        where nobody drafts and nothing is forced."""
        requests = self._requests(batch, num_in_flight(batch) if self._overlap else None)
        pending = any(request.in_flight for request in requests)
        if pending and any(request.needs_tokens for request in requests):
            requests, pending = self._known(batch), False
        self.measure(ended=not pending)
        began = time.perf_counter()
        if not pending:
            self._observe(requests)
        plans = self._plans(requests)
        if pending and any(plan.length for plan in plans):
            requests, pending = self._known(batch), False
            plans = [_cut(plan, request) for plan, request in zip(plans, requests, strict=True)]
        drafts = [list(request.forced) for request in requests]
        seconds = self._draft(requests, plans, drafts) if any(plan.length for plan in plans) else 0.0
        self._launch(requests, drafts, began, seconds, pending)
        if not any(drafts):
            return None
        return [[int(request.output[-1]), *draft] for request, draft in zip(requests, drafts, strict=True)]

    def measure(self, *, ended: bool) -> None:
        """Note how long the last step took.

        Args:
            ended: whether it has ended. On the CPU it has right away; on a GPU where this step waited for its tokens.
                Else the time between two launches is known, which is a step's where both were pipelined.
        """
        launched, self._launched = self._launched, None
        if launched is None or launched.pipelined is ended:
            return
        now = time.perf_counter()
        self._sources.lengths.timed(launched.kind, launched.batch, launched.width, now - launched.start)
        for counts in launched.requests:
            counts.draft_seconds += launched.draft_seconds
            counts.target_seconds += now - launched.start
            counts.round_seconds += now - launched.began

    def _forget(self, rids: Iterable[str]) -> None:
        rids = list(rids)
        self._sources.close(rids)
        for rid in rids:
            self._seen.pop(rid, None)

    def _state(self, req: Any) -> RequestState:
        self._seen[req.rid] = self._step, req
        state = self._sources.state(req.rid, len(req.origin_input_ids_unpadded), getattr(req, "uag", None))
        req.uag = state.counts  # they outlive a state that is lost by retraction
        return state

    def _renewed(self, req: Any) -> RequestState:
        """A new state of a request, whose old one has read another text."""
        self._forget([req.rid])
        return self._state(req)

    def _requests(self, batch: Any, in_flight: Sequence[int] | None) -> list[DraftRequest]:
        """The batch's requests, as far as the host knows them."""
        counts = in_flight if in_flight is not None else [0] * len(batch.reqs)
        return [self._with_state(DraftRequest.of(req, (), self._width, count))
                for req, count in zip(batch.reqs, counts, strict=True)]

    def _known(self, batch: Any) -> list[DraftRequest]:
        """The batch's requests with all their tokens. Waits for the last step to end."""
        return [self._with_state(DraftRequest.of(req, late, self._width))
                for req, late in zip(batch.reqs, tokens_in_flight(batch), strict=True)]

    def _with_state(self, request: DraftRequest) -> DraftRequest:
        if may_draft(request.req):
            request.state = self._state(request.req)
        return request

    def _observe(self, requests: Sequence[DraftRequest]) -> None:
        """Learn from the drafts of the last step. A state has confirmed all that stood before its draft."""
        for request in requests:
            if request.state is not None and request.state.submitted.requested:
                self._sources.observe(request.state, max(request.length - request.state.num_confirmed - 1, 0))

    def _plans(self, requests: Sequence[DraftRequest]) -> list[Plan]:
        """[n] what is to be drafted; nothing where a budget forces some."""
        plans = [Plan()] * len(requests)
        asked = [(i, request) for i, request in enumerate(requests)
                 if request.state is not None and not request.forced and request.limit]
        states = [self._confirmed(request) for _, request in asked]
        planned = self._sources.plan(states, [request.length for _, request in asked], len(requests)) if asked else []
        for plan, (i, request) in zip(planned, asked, strict=True):
            plans[i] = _cut(plan, request)
        return plans

    def _draft(self, requests: Sequence[DraftRequest], plans: Sequence[Plan], drafts: list[list[int]]) -> float:
        """Put the sources' tokens into `drafts`. Those that a budget forces are a draft that needs no source.

        Returns:
            Seconds of the draft model's forwards.
        """
        chosen = [(i, request, self._confirmed(request)) for i, request in enumerate(requests) if plans[i].length]
        written, seconds = self._sources.draft([state for _, _, state in chosen], [plans[i] for i, _, _ in chosen],
                                               len(requests))
        for (i, request, state), tokens in zip(chosen, written, strict=True):
            drafts[i] = request.complete(tokens.ids)
            state.submitted = tokens.cut(sum(1 for a, b in zip(drafts[i], tokens.ids, strict=False) if a == b))
        return seconds

    def _confirmed(self, request: DraftRequest) -> RequestState:
        """The request's state, with all of its tokens confirmed that the host knows."""
        state, known = request.state, request.length - request.in_flight
        assert state is not None
        if state.num_confirmed > request.length:
            request.state = state = self._renewed(request.req)
        if known > state.num_confirmed:
            state.confirm(ids_between(request.req, request.output, state.num_confirmed, known))
        return state

    def _launch(self, requests: Sequence[DraftRequest], drafts: Sequence[Sequence[int]], began: float,
                draft_seconds: float, pipelined: bool) -> None:
        counts = []
        for request, draft in zip(requests, drafts, strict=True):
            if request.state is not None:
                counts.append(request.state.counts)
                proposed = len(request.state.submitted.ids)
                counts[-1].launch(proposed, len(draft) - proposed, request.state.submitted.source)
        longest = 1 + max(map(len, drafts))
        self._launched = _Launched("plain" if longest == 1 else "verify", len(drafts),
                                   self._width if self._fixed_width else longest, time.perf_counter(), began,
                                   draft_seconds, counts, pipelined)


def _cut(plan: Plan, request: DraftRequest) -> Plan:
    """The plan, as far as the request may be drafted for."""
    return plan._replace(length=min(plan.length, request.limit))
