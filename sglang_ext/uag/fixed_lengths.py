"""Drafts of one length, whatever comes of them: to measure a pair, and to test that drafts change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from .acceptance import RequestStats
from .step_times import Kind


class FixedLengths:
    """`LengthControl` that always drafts as much as fits.

    Args:
        width: of a verification, 1 + the tokens of a draft.
        fixed: as `LengthControl`'s; nothing depends on it here.
    """

    off = False

    def __init__(self, width: int, fixed: bool = False) -> None:
        self.width = width

    def plan(self, requests: Sequence[RequestStats], batch: int | None = None) -> list[int]:
        return [self.width - 1] * len(requests)

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Nothing is learned."""

    def unable(self, request: RequestStats) -> None:
        """Nothing is learned."""

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Nothing is learned."""

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        return True
