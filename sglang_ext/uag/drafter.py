"""Drafting for a batch: what the draft reads of each request, what it writes, and what that means to the target."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from .decode_loop import Clock, Writer, Writing, mean_length
from .draft_runner import DraftRunner
from .draft_state import Counts, Drafting
from .lengths import FixedLengths, LengthControl
from .text.draft_context import DraftContext
from .text.proposal import END

logger = logging.getLogger(__name__)
POOL, CONTEXT, CATCHING_UP, FAILED = "pool", "context", "catching_up", "failed"
MOST_FAILURES = 8
"""Rounds whose drafting may fail before there is no more of it: a draft costs drafts, never a request."""


class Drafter:
    """Drafts of all requests, in one batch.

    Args:
        new_context: makes the draft's context of a new request.
        ends: the draft's ids after which it writes nothing.
        runner: the draft model.
        control: how many tokens to draft.
        chunk: most tokens that the draft reads in one round before it writes.
        watched: whether each token is looked at as it is written; by default where the device is waited for anyway.

    Attributes:
        seconds: that the draft's forwards took in the last round.
    """

    def __init__(self, new_context: Callable[[], DraftContext], ends: set[int], runner: DraftRunner,
                 control: LengthControl | FixedLengths, chunk: int, watched: bool | None = None) -> None:
        self._new_context, self._runner, self.control = new_context, runner, control
        self._chunk = chunk
        self._watched = torch.device(runner.device).type == "cpu" if watched is None else watched
        self._writing = Writing(runner, control, ends)
        self._open: dict[str, Drafting] = {}
        self._failures = 0
        self.seconds = 0.0

    def drafting(self, rid: str) -> Drafting:
        """The request's, made when it is first seen."""
        if rid not in self._open:
            self._open[rid] = Drafting(self._new_context(), Counts())
        return self._open[rid]

    def close(self, rids: Sequence[str]) -> None:
        """Forget requests that have left. Only between forwards."""
        for rid in rids:
            drafting = self._open.pop(rid, None)
            if drafting is not None:
                self._leave(drafting)

    @property
    def rids(self) -> set[str]:
        return set(self._open)

    def prefill(self, draftings: Sequence[Drafting]) -> None:
        """Let the draft read prompts beside the target, at most a chunk of them; a later round reads the rest."""
        if self.control.off or self._failures >= MOST_FAILURES:
            return
        try:
            for d in draftings:
                d.read()
            self._read([d for d in draftings if d.reading.unavailable_reason is None and self._placed(d)], self._chunk)
        except Exception as error:
            self._failed(draftings, error)

    def draft(self, draftings: Sequence[Drafting], most: Sequence[int], batch: int) -> list[tuple[int, ...]]:
        """Tokens of the target for each request, none where drafting does not pay or does not work.

        Args:
            draftings: those that may draft.
            most: [n] tokens that a draft may have.
            batch: requests of the target's step, those included that may not draft.
        """
        self.seconds = 0.0
        if self._failures < MOST_FAILURES:
            try:
                return self._draft(draftings, most, batch)
            except Exception as error:
                self._failed(draftings, error)
        return [()] * len(draftings)

    def observe(self, drafting: Drafting, accepted: int) -> None:
        """So many tokens of the request's last draft were accepted."""
        if drafting.asked:
            self.control.observe(drafting.stats, drafting.proposed, min(accepted, drafting.proposed),
                                 drafting.confidence, asked=drafting.asked)
        drafting.refused()

    def _draft(self, draftings: Sequence[Drafting], most: Sequence[int], batch: int) -> list[tuple[int, ...]]:
        for d in draftings:
            d.stats.steps_per_token = d.reading.steps_for(8) / 8
            d.stats.behind = d.behind
        planned = self.control.plan([d.stats for d in draftings], batch)
        wanted = [min(length, limit) for length, limit in zip(planned, most, strict=True)]
        for d, want in zip(draftings, wanted, strict=True):
            if want:
                d.read()
        start = time.perf_counter()
        writers = self._ready([(d, want) for d, want in zip(draftings, wanted, strict=True) if want])
        if writers and self._watched:
            self._writing.watched(writers, batch)
        elif writers:
            self._writing.unwatched(writers, self._runner.device)
        self.seconds = time.perf_counter() - start if any(wanted) else 0.0
        chains = {id(w.drafting): self._translate(w) for w in writers}
        return [chains.get(id(d), ()) for d in draftings]

    def _failed(self, draftings: Sequence[Drafting], error: Exception) -> None:
        """Whatever the draft's cache holds by now is not to be trusted."""
        self._failures += 1
        for d in self._open.values():
            self._leave(d)
        for d in draftings:
            d.counts.none[FAILED] += 1
            d.refused()
        logger.error("UAG: no drafts in this round, %s: %s", type(error).__name__, error, exc_info=self._failures == 1)
        if self._failures == MOST_FAILURES:
            logger.error("UAG: drafting failed %d times, there are no more drafts until a restart", MOST_FAILURES)

    def _leave(self, drafting: Drafting) -> None:
        if drafting.row is not None:
            self._runner.close(drafting.row)
            drafting.row = None

    def _ready(self, wanted: Sequence[tuple[Drafting, int]]) -> list[Writer]:
        """Those whose draft can begin to write in this round; others read on, or say why not."""
        placed = []
        for drafting, most in wanted:
            cause = drafting.reading.unavailable_reason
            if cause is None and not self._placed(drafting, most):
                cause = self._why(drafting, most)
            if cause or not drafting.reading.draft_ids:
                drafting.counts.none[cause or "empty"] += 1
                self.control.unable(drafting.stats)
                if cause == CONTEXT:
                    self._leave(drafting)
                continue
            placed.append((drafting, most))
        behind = [d for d, _ in placed if len(d.missing) > self._chunk // max(len(placed), 1)]
        if behind:
            self._read(behind, self._chunk)
        for d in behind:
            d.counts.none[CATCHING_UP] += 1
        late = set(map(id, behind))
        return [Writer(d, most, self._steps(d, most)) for d, most in placed if id(d) not in late]

    def _steps(self, drafting: Drafting, most: int) -> int:
        """Steps that fit behind what the draft has read."""
        room = self._runner.context - len(drafting.reading.draft_ids)
        return max(min(drafting.reading.steps_for(most), room), 1)

    def _placed(self, drafting: Drafting, most: int = 0) -> bool:
        """Whether the draft has room for the request's text and what it may write."""
        length = self._length(drafting, most)
        if length > self._runner.context:
            return False
        if drafting.row is None:
            drafting.row = self._runner.open()
        return drafting.row is not None and self._runner.reserve(drafting.row, length)

    def _why(self, drafting: Drafting, most: int) -> str:
        return CONTEXT if self._length(drafting, most) > self._runner.context else POOL

    def _length(self, drafting: Drafting, most: int) -> int:
        return len(drafting.reading.draft_ids) + (drafting.reading.steps_for(most) if most else 0)

    def _read(self, draftings: Sequence[Drafting], most: int) -> None:
        """Fill the draft's cache with confirmed text, its last token left out, at most this many tokens in all."""
        rows, parts = [], []
        for d in draftings:
            part = d.missing[: min(most, len(d.missing) - 1)]
            if part and d.row is not None:
                rows.append(d.row)
                parts.append(part)
                d.counts.draft_forwards += 1
                most -= len(part)
        if rows:
            clock = Clock("cpu")
            clock.mark()
            self._runner.extend(rows, parts)
            clock.mark()
            if self._watched:
                self.control.timed("draft_extend", len(rows), mean_length(parts), clock.seconds()[0])

    def _translate(self, w: Writer) -> tuple[int, ...]:
        d = w.drafting
        start, before = time.perf_counter(), d.reading.num_encoded
        proposal = d.reading.propose(w.written, w.most)
        d.counts.translation_seconds += time.perf_counter() - start
        d.counts.translated += d.reading.num_encoded - before
        d.counts.draft_tokens += len(w.written)
        if proposal.cause:
            d.counts.none[proposal.cause] += 1
        n = len(proposal.ids)
        cut_short = not n or proposal.cause not in (None, END)
        d.proposed, d.asked = n, n + cut_short
        d.confidence = [w.survivals[min(-(-proposal.used * (j + 1) // n), len(w.survivals)) - 1] for j in range(n)]
        return proposal.ids
