"""One request's state of drafting: the text that its draft reads, its row in the draft's pool, and its counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .draft_pool import DraftRow
from .speed_up import RequestStats
from .text.draft_context import DraftContext


@dataclass
class Counts:
    """What drafting did for one request. The client gets it as `meta_info["uag"]`."""

    proposed: int = 0  # tokens of the target that the draft model proposed
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
    last: tuple[int, int] = (0, 0)  # tokens that the draft proposed and that a budget forces, in the last step

    def launch(self, proposed: int, forced: int) -> None:
        """Count a step that is sent into verification."""
        self.launched += 1
        self.last = proposed, forced
        if proposed or forced:
            self.proposed += proposed
            self.forced += forced
            self.rounds += proposed > 0

    def result(self, accepted: int, verified: int) -> dict[str, Any]:
        """What the client is told.

        Args:
            accepted: draft tokens that stand in the output.
            verified: steps whose outcome was used. Under overlap scheduling a request that ends has one more step in
                flight, which is not counted.
        """
        proposed, forced = self.last if self.launched > verified else (0, 0)
        rounds, proposed, forced = self.rounds - (proposed > 0), self.proposed - proposed, self.forced - forced
        submitted = proposed + forced
        return {"proposed": proposed, "forced": forced, "accepted": accepted, "rounds": rounds,
                "draft_forwards": self.draft_forwards, "draft_tokens": self.draft_tokens,
                "translated_tokens": self.translated, "translation_us": round(self.translation_seconds * 1e6),
                "draft_us": round(self.draft_seconds * 1e6), "target_us": round(self.target_seconds * 1e6),
                "round_us": round(self.round_seconds * 1e6),
                "rejections": {**self.skip_reasons, "verification": max(submitted - accepted, 0)}}


@dataclass(frozen=True)
class DraftTokens:
    """What the draft model proposes for one request in one step, in the target's tokens.

    Attributes:
        ids: the draft tokens.
        requested: tokens that the draft model was run for; one more than `ids` where it gave less. 0: it did not run.
        confidence: probability that the draft gave to its text, up to each of `ids`.
    """

    ids: tuple[int, ...] = ()
    requested: int = 0
    confidence: tuple[float, ...] = ()

    def cut(self, length: int) -> DraftTokens:
        """The first `length` tokens of it. That the rest is not verified is not the draft's fault."""
        return self if length >= len(self.ids) else DraftTokens(self.ids[:length], length, self.confidence[:length])


NO_TOKENS = DraftTokens()


@dataclass(eq=False)
class DraftState:
    """One request's state between steps.

    Attributes:
        context: the draft's view of the confirmed text.
        num_confirmed: tokens of the target that were confirmed.
        untranslated: those at their end that `context` lacks. Nothing is translated while nothing is drafted.
        row: its row in the draft's pool; None where it has none yet, or none was free.
        submitted: what the draft proposed in the step whose outcome is not known yet.
    """

    context: DraftContext
    counts: Counts
    stats: RequestStats = field(default_factory=RequestStats)
    num_confirmed: int = 0
    untranslated: list[int] = field(default_factory=list)
    row: DraftRow | None = None
    submitted: DraftTokens = NO_TOKENS

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
