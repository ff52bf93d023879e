"""One request's side of drafting: the text that its draft has read, its place in the draft's pool, and its counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .draft_runner import DraftRow
from .lengths import RequestStats
from .text.draft_context import DraftContext


@dataclass
class Counts:
    """What drafting did for one request; goes to the client as `meta_info["uag"]`."""

    proposed: int = 0  # tokens of the target that the draft model wrote
    forced: int = 0  # tokens that a think budget forces, submitted as drafts
    rounds: int = 0  # rounds with a draft
    draft_forwards: int = 0  # forwards of the draft that the request took part in
    draft_tokens: int = 0  # tokens that the draft wrote
    translated: int = 0  # tokens encoded again, both directions
    translation_seconds: float = 0.0
    draft_seconds: float = 0.0  # of the draft's forwards, in rounds that the request was in
    target_seconds: float = 0.0  # of the target's, sampling included
    round_seconds: float = 0.0  # of whole rounds
    none: Counter[str] = field(default_factory=Counter)  # rounds without a draft, or with a shorter one, by cause
    launched: int = 0  # rounds of any kind
    last: tuple[int, int] = (0, 0)  # tokens that the draft model wrote and that a budget forces, in the last of them

    def launch(self, proposed: int, forced: int) -> None:
        """Count a round that is sent into verification."""
        self.launched += 1
        self.last = proposed, forced
        self.proposed += proposed
        self.forced += forced
        self.rounds += proposed > 0

    def result(self, accepted: int, verified: int) -> dict[str, Any]:
        """What the client is told.

        Args:
            accepted: drafted tokens that stand in the output.
            verified: rounds whose outcome was used. Under overlap scheduling, a request that ends has one more in
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
                "rejections": {**self.none, "verification": max(submitted - accepted, 0)}}


@dataclass(eq=False)
class Drafting:
    """One request's side of the draft.

    Attributes:
        reading: the draft's view of the confirmed text.
        taken: tokens of the target that were confirmed.
        backlog: those at their end that the reading does not have yet: nothing is translated while nothing is drafted.
        row: its place in the draft's pool; None: none yet, or none free.
        proposed: tokens that the draft model had in the last round's chain.
        asked: tokens that the draft which it wrote for that round was meant to give; 0: it wrote none.
        confidence: [proposed] probability that the draft gave to its text up to each of them.
    """

    reading: DraftContext
    counts: Counts
    stats: RequestStats = field(default_factory=RequestStats)
    taken: int = 0
    backlog: list[int] = field(default_factory=list)
    row: DraftRow | None = None
    proposed: int = 0
    asked: int = 0
    confidence: Sequence[float] = ()

    def confirm(self, ids: Sequence[int]) -> None:
        """Note what the target confirmed."""
        self.backlog += ids
        self.taken += len(ids)

    def read(self) -> None:
        """Translate what was confirmed; what the draft's cache holds of another text is forgotten."""
        if not self.backlog:
            return
        start, before = time.perf_counter(), self.reading.num_encoded
        self.reading.confirm(self.backlog)
        self.backlog.clear()
        if self.row is not None:
            held, now = self.row.ids, self.reading.draft_ids
            same = min(self.reading.num_unchanged, len(held))
            while same < min(len(held), len(now)) and held[same] == now[same]:
                same += 1
            del held[same:]
        self.counts.translation_seconds += time.perf_counter() - start
        self.counts.translated += self.reading.num_encoded - before

    @property
    def behind(self) -> float:
        """About how many tokens of the confirmed text the draft has not read."""
        known = len(self.reading.draft_ids) - (len(self.row.ids) if self.row else 0)
        return known + len(self.backlog) * self.stats.steps_per_token

    @property
    def missing(self) -> list[int]:
        """What the draft has to read before it can write; its last token at least, as only a forward gives logits."""
        ids = self.reading.draft_ids
        return ids[min(len(self.row.ids) if self.row else 0, max(len(ids) - 1, 0)) :]

    def take_missing(self) -> list[int]:
        """What is missing. The cache of a request that has a place ends before it: a last token that was read already
        is read again, in the same position."""
        assert self.row is not None
        missing = self.missing
        del self.row.ids[len(self.reading.draft_ids) - len(missing) :]
        return missing

    def submit(self, tokens: int) -> None:
        """So many tokens of what the draft proposed go into verification."""
        if tokens < self.proposed:  # the rest is no fault of the draft's
            self.proposed = self.asked = tokens

    def refused(self) -> None:
        """Nothing comes of the last round's draft."""
        self.proposed = self.asked = 0
