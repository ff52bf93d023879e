"""One request between steps: the text that its draft reads, its row in the draft's pool, and its counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import MODEL, SOURCES
from .draft_pool import DraftRow
from .speed_up import RequestStats
from .text.draft_context import DraftContext


@dataclass
class Counts:
    """What drafting did for one request. The client gets it as `meta_info["uag"]`."""

    proposed: int = 0  # tokens of the target that were drafted, by any source
    forced: int = 0  # tokens that a think budget forces, submitted as drafts
    rounds: int = 0  # steps with a draft
    draft_forwards: int = 0  # forwards of the draft that the request took part in
    draft_tokens: int = 0  # tokens that the draft wrote
    translated: int = 0  # tokens encoded again, in both directions
    translation_seconds: float = 0.0
    draft_seconds: float = 0.0  # of the draft's forwards, in steps that the request was in
    target_seconds: float = 0.0  # of the target's forwards, sampling included
    round_seconds: float = 0.0  # of whole steps
    skip_reasons: Counter[str] = field(default_factory=Counter)  # steps without a draft or with a shorter one, by cause
    launched: int = 0  # steps of any kind
    last: tuple[int, int] = (0, 0)  # tokens that were drafted and that a budget forces, in the last step
    source: str = MODEL  # of the last step's draft
    judged: bool = True  # whether the outcome of that draft was counted
    proposed_by: Counter[str] = field(default_factory=Counter)  # `proposed`, by source
    accepted_by: Counter[str] = field(default_factory=Counter)  # those that were accepted

    def launch(self, proposed: int, forced: int, source: str = MODEL) -> None:
        """Count a step that is sent into verification.

        Args:
            source: of the tokens that are proposed.
        """
        self.launched += 1
        self.last, self.source, self.judged = (proposed, forced), source, not proposed
        if proposed or forced:
            self.proposed += proposed
            self.forced += forced
            self.rounds += proposed > 0
            self.proposed_by[source] += proposed

    def judge(self, accepted: int) -> None:
        """Count the outcome of the last step: so many of its draft tokens stand in the output."""
        if not self.judged:
            self.accepted_by[self.source] += min(accepted, self.last[0])
            self.judged = True

    def result(self, accepted: int, verified: int) -> dict[str, Any]:
        """What the client is told.

        Args:
            accepted: draft tokens that stand in the output.
            verified: steps whose outcome was used. Under overlap scheduling a request that ends has one more step in
                flight, which is not counted.
        """
        unused = self.launched > verified
        proposed, forced = self.last if unused else (0, 0)
        proposed_by, accepted_by = +self.proposed_by, +self.accepted_by
        if unused:
            proposed_by[self.source] -= proposed
        elif not self.judged:  # what a budget forces is accepted
            before = accepted_by.total() + self.forced - self.last[1]
            accepted_by[self.source] += max(min(accepted - before, self.last[0]), 0)
        rounds, proposed, forced = self.rounds - (proposed > 0), self.proposed - proposed, self.forced - forced
        submitted = proposed + forced
        return {"proposed": proposed, "forced": forced, "accepted": accepted, "rounds": rounds,
                "proposed_by": {source: proposed_by[source] for source in SOURCES},
                "accepted_by": {source: accepted_by[source] for source in SOURCES},
                "draft_forwards": self.draft_forwards, "draft_tokens": self.draft_tokens,
                "translated_tokens": self.translated, "translation_us": round(self.translation_seconds * 1e6),
                "draft_us": round(self.draft_seconds * 1e6), "target_us": round(self.target_seconds * 1e6),
                "round_us": round(self.round_seconds * 1e6),
                "rejections": {**self.skip_reasons, "verification": max(submitted - accepted, 0)}}


@dataclass(frozen=True)
class DraftTokens:
    """What a source proposes for one request in one step, in the target's tokens.

    Attributes:
        ids: the draft tokens.
        requested: tokens that the source was to give; one more than `ids` where it gave less. 0: it was not asked.
        confidence: probability that the draft model gave to its text, up to each of `ids`.
        source: its name.
        stats: of the request's drafts of this source.
    """

    ids: tuple[int, ...] = ()
    requested: int = 0
    confidence: tuple[float, ...] = ()
    source: str = MODEL
    stats: RequestStats | None = None

    def cut(self, length: int) -> DraftTokens:
        """The first `length` tokens of it. That the rest is not verified is not the draft's fault."""
        if length >= len(self.ids):
            return self
        return replace(self, ids=self.ids[:length], requested=length, confidence=self.confidence[:length])


NO_TOKENS = DraftTokens()


@dataclass(eq=False)
class DraftState:
    """What the draft model knows of one request between steps.

    Attributes:
        context: the draft's view of the confirmed text.
        num_confirmed: tokens of the target that were confirmed.
        untranslated: those at their end that `context` lacks. Nothing is translated while nothing is drafted.
        row: its row in the draft's pool; None where it has none yet, or none was free.
    """

    context: DraftContext
    counts: Counts
    stats: RequestStats = field(default_factory=RequestStats)
    num_confirmed: int = 0
    untranslated: list[int] = field(default_factory=list)
    row: DraftRow | None = None

    def confirm(self, ids: Sequence[int]) -> None:
        """Note what the target confirmed."""
        self.untranslated += ids
        self.num_confirmed += len(ids)

    def translate(self) -> None:
        """Translate what was confirmed, and forget what the draft's cache holds of another text."""
        if not self.untranslated:
            return
        start, before = time.perf_counter(), self.context.num_encoded
        self.context.confirm(self.untranslated)
        self.untranslated.clear()
        if self.row is not None:
            held, now = self.row.ids, self.context.draft_ids
            same = min(self.context.num_unchanged, len(held))
            while same < min(len(held), len(now)) and held[same] == now[same]:
                same += 1
            del held[same:]
        self.counts.translation_seconds += time.perf_counter() - start
        self.counts.translated += self.context.num_encoded - before

    def num_missing(self, length: int) -> float:
        """About how many of the draft's ids its cache lacks, of a text of `length` tokens of the target."""
        known = len(self.context.draft_ids) - (len(self.row.ids) if self.row else 0)
        return known + (len(self.untranslated) + length - self.num_confirmed) * self.stats.steps_per_token

    @property
    def missing(self) -> list[int]:
        """The ids that the draft has to read before it writes; its last one at least, as only forwards give logits."""
        ids = self.context.draft_ids
        return ids[min(len(self.row.ids) if self.row else 0, max(len(ids) - 1, 0)) :]

    def take_missing(self) -> list[int]:
        """What is missing. The cache then ends before it: a last id that was read is read again, at its position."""
        assert self.row is not None
        missing = self.missing
        del self.row.ids[len(self.context.draft_ids) - len(missing) :]
        return missing
