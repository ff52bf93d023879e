"""Drafts of the draft model for a batch: what it reads, what it writes, and what that means to the target."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from ..config import MODEL
from .decode_loop import DecodeLoop, DraftSequence, mean_length
from .draft_runner import DraftRunner
from .draft_state import NO_TOKENS, Counts, DraftState, DraftTokens
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .speed_up import RequestStats
from .text.draft_context import DraftContext
from .text.proposal import END

logger = logging.getLogger(__name__)
POOL, CONTEXT, CATCHING_UP, FAILED = "pool", "context", "catching_up", "failed"
MAX_FAILURES = 8
"""Steps whose drafting may fail before there is no more of it: a draft costs drafts, never a request."""


class Drafter:
    """Drafts of all requests by the draft model.

    Args:
        new_context: makes the draft's context of a new request.
        ends: the draft's ids after which it writes nothing.
        runner: the draft model.
        lengths: how many tokens to draft.
        chunk: most ids that the draft reads in one step before it writes.
        watched: whether each token is looked at as it is written; by default where the device is waited for anyway.

    Attributes:
        seconds: that the draft's forwards took in the last step.
    """

    def __init__(self, new_context: Callable[[], DraftContext], ends: set[int], runner: DraftRunner,
                 lengths: LengthControl | FixedLengths, chunk: int, watched: bool | None = None) -> None:
        self._new_context, self._runner, self.lengths = new_context, runner, lengths
        self._chunk = chunk
        self._watched = torch.device(runner.device).type == "cpu" if watched is None else watched
        self._decode_loop = DecodeLoop(runner, lengths, ends, self._watched)
        self._states: dict[str, DraftState] = {}
        self._failures = 0
        self.seconds = 0.0

    def state(self, rid: str, counts: Counts | None = None) -> DraftState:
        """The request's, made when it is first seen; with these counts, if they are given."""
        if rid not in self._states:
            self._states[rid] = DraftState(self._new_context(), Counts())
        state = self._states[rid]
        state.counts = counts or state.counts
        return state

    def close(self, rids: Sequence[str]) -> None:
        """Forget requests that have left. Only between forwards."""
        for rid in rids:
            state = self._states.pop(rid, None)
            if state is not None:
                self._release(state)

    @property
    def rids(self) -> set[str]:
        return set(self._states)

    def prefill(self, states: Sequence[DraftState]) -> None:
        """Let the draft read prompts beside the target, at most a chunk of them. A later step reads the rest."""
        if self.lengths.off or self._failures >= MAX_FAILURES:
            return
        try:
            for state in states:
                state.translate()
            self._read([s for s in states if s.context.unavailable_reason is None
                        and self.lengths.worth_reading(len(s.missing)) and self._reserve(s)], self._chunk)
        except Exception as error:
            self._failed(states, error)

    def offer(self, state: DraftState, length: int) -> RequestStats | None:
        """The request's record, with what a draft of it costs now; None where there are no more drafts.

        Args:
            length: tokens of the target in the request's text.
        """
        if self._failures >= MAX_FAILURES:
            return None
        try:
            state.stats.steps_per_token = state.context.steps_for(8) / 8
            state.stats.behind = state.num_missing(length)
        except Exception as error:
            self._failed([state], error)
            return None
        return state.stats

    def draft(self, states: Sequence[DraftState], wanted: Sequence[int], batch: int) -> list[DraftTokens]:
        """Draft tokens of each request; none where the draft does not work.

        Args:
            wanted: [n] tokens of the target that are planned.
            batch: requests of the target's step, those included that may not draft.
        """
        self.seconds = 0.0
        if not any(wanted):
            return [NO_TOKENS] * len(states)
        try:
            return self._draft(states, wanted, batch)
        except Exception as error:
            self._failed(states, error)
        return [NO_TOKENS] * len(states)

    def _draft(self, states: Sequence[DraftState], wanted: Sequence[int], batch: int) -> list[DraftTokens]:
        chosen = [(state, want) for state, want in zip(states, wanted, strict=True) if want]
        for state, _ in chosen:
            state.translate()
        start = time.perf_counter()
        sequences = self._ready(chosen)
        if sequences:
            self._decode_loop.run(sequences, batch)
        self.seconds = time.perf_counter() - start
        drafted = {id(s.state): self._translated(s) for s in sequences}
        return [drafted.get(id(state), NO_TOKENS) for state in states]

    def _failed(self, states: Sequence[DraftState], error: Exception) -> None:
        """Whatever the draft's cache holds by now is not to be trusted."""
        self._failures += 1
        for state in self._states.values():
            self._release(state)
        for state in states:
            state.counts.skip_reasons[FAILED] += 1
        logger.error("UAG: no drafts in this step, %s: %s", type(error).__name__, error, exc_info=self._failures == 1)
        if self._failures == MAX_FAILURES:
            logger.error("UAG: drafting failed %d times, there are no more drafts until a restart", MAX_FAILURES)

    def _release(self, state: DraftState) -> None:
        if state.row is not None:
            self._runner.pool.close(state.row)
            state.row = None

    def _ready(self, chosen: Sequence[tuple[DraftState, int]]) -> list[DraftSequence]:
        """Those whose draft can begin to write in this step. Others read on, or note why they cannot."""
        placed = []
        for state, want in chosen:
            cause = state.context.unavailable_reason
            if cause is None and not self._reserve(state, want):
                cause = CONTEXT if self._length(state, want) > self._runner.context_len else POOL
            if cause or not state.context.draft_ids:
                state.counts.skip_reasons[cause or "empty"] += 1
                self.lengths.unable(state.stats)
                if cause == CONTEXT:
                    self._release(state)
                continue
            placed.append((state, want))
        behind = [state for state, _ in placed if len(state.missing) > self._chunk // max(len(placed), 1)]
        if behind:
            self._read(behind, self._chunk)
        for state in behind:
            state.counts.skip_reasons[CATCHING_UP] += 1
        late = set(map(id, behind))
        return [DraftSequence(s, want, self._steps(s, want)) for s, want in placed if id(s) not in late]

    def _steps(self, state: DraftState, want: int) -> int:
        """Steps that the draft's context has room for, behind what the draft has read."""
        room = self._runner.context_len - len(state.context.draft_ids)
        return max(min(state.context.steps_for(want), room), 1)

    def _length(self, state: DraftState, want: int) -> int:
        return len(state.context.draft_ids) + (state.context.steps_for(want) if want else 0)

    def _reserve(self, state: DraftState, want: int = 0) -> bool:
        """Whether the draft has room for the request's text and what it may write."""
        length = self._length(state, want)
        if length > self._runner.context_len:
            return False
        if state.row is None:
            state.row = self._runner.pool.open()
        return state.row is not None and self._runner.pool.reserve(state.row, length)

    def _read(self, states: Sequence[DraftState], most: int) -> None:
        """Fill the draft's cache with confirmed text, its last id left out, at most `most` ids in all."""
        rows, parts = [], []
        for state in states:
            part = state.missing[: min(most, len(state.missing) - 1)]
            if part and state.row is not None:
                rows.append(state.row)
                parts.append(part)
                state.counts.draft_forwards += 1
                most -= len(part)
        if rows:
            start = time.perf_counter()
            self._runner.extend(rows, parts)
            if self._watched:
                self.lengths.timed("draft_extend", len(rows), mean_length(parts), time.perf_counter() - start)

    def _translated(self, s: DraftSequence) -> DraftTokens:
        """What the draft wrote, in the target's tokens."""
        context, counts = s.state.context, s.state.counts
        start, before = time.perf_counter(), context.num_encoded
        proposal = context.propose(s.written, s.max_tokens)
        counts.translation_seconds += time.perf_counter() - start
        counts.translated += context.num_encoded - before
        counts.draft_tokens += len(s.written)
        if proposal.cause:
            counts.skip_reasons[proposal.cause] += 1
        n = len(proposal.ids)
        cut_short = not n or proposal.cause not in (None, END)
        last = len(s.confidence) - 1
        confidence = tuple(s.confidence[min(-(-proposal.used * (j + 1) // n) - 1, last)] for j in range(n))
        return DraftTokens(proposal.ids, n + cut_short, confidence, MODEL, s.state.stats)
