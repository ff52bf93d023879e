"""Drafts of always the same length."""

from __future__ import annotations

from collections.abc import Sequence

from .speed_up import Planned, RequestStats, at_most
from .step_times import Kind


class FixedLengths:
    """`LengthControl` that always drafts as much as fits: to measure a pair, and to test that drafts change nothing.

    Args:
        width: of a verification, 1 + the tokens of a draft.
        fixed: as `LengthControl`'s; nothing depends on it here.
    """

    off = False

    def __init__(self, width: int, fixed: bool = False) -> None:
        self.width = width

    def plan(self, requests: Sequence[RequestStats], batch: int | None = None) -> list[int]:
        return [self.width - 1] * len(requests)

    def plan_sources(self, requests: Sequence[Sequence[RequestStats]], batch: int | None = None) -> list[Planned]:
        """The first source of each that has anything to give."""
        most = [[at_most(stats.most, self.width - 1) for stats in sources] for sources in requests]
        return [next((Planned(j, length) for j, length in enumerate(lengths) if length), Planned()) for lengths in most]

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Nothing is learned."""

    def unable(self, request: RequestStats) -> None:
        """Nothing is learned."""

    def worth_reading(self, ids: int) -> bool:
        return True

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Nothing is learned."""

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        return True
