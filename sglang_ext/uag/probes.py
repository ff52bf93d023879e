"""Looking whether drafting pays by now, where it did not."""

from __future__ import annotations

from collections.abc import Collection

_SHARE = 0.015  # of the time, that probes may lose
_SAVED = 4.0  # plain steps that may be saved up for a probe, and overdrawn by one that goes well


class Probes:
    """When to probe, and how much: one request and one token at first, twice as much each time it goes well.

    Attributes:
        count: requests that the next probe drafts for.
        length: tokens of its drafts.
    """

    def __init__(self) -> None:
        self.count = self.length = 1
        self._credit = 0.0  # seconds that probes may lose
        self._fresh = True  # nothing was probed yet
        self._running: set[int] = set()  # of the last probe, by identity
        self._whole = self._judged = 0  # drafts of the last probe that were accepted as a whole, and all
        self._going_well = False

    def elapse(self, seconds: float) -> None:
        """A round begins: a plain step of it takes so long."""
        self._credit = min(self._credit + _SHARE * seconds, max(_SAVED * seconds, self._credit))

    def settle(self) -> bool:
        """Look at the last probe; whether it went well. To be called once a round."""
        self._going_well = self._judged > 0 and 2 * self._whole >= self._judged
        if self._going_well:
            self.count, self.length = 2 * self.count, 2 * self.length
        else:
            self.count = self.length = 1
        self._running = set()
        self._whole = self._judged = 0
        return self._going_well

    def affords(self, loss: float, plain: float) -> bool:
        """Whether a probe that may lose so many seconds is to be made; a plain step takes `plain`."""
        return self._fresh or self._credit >= (-_SAVED * plain if self._going_well else loss)

    def start(self, requests: Collection[object], loss: float) -> None:
        """A probe of these requests is made."""
        self._credit -= loss
        self._fresh = False
        self._running = set(map(id, requests))

    def observe(self, request: object, whole: bool) -> None:
        """Count a draft, whether or not it belongs to a probe."""
        self._fresh = False
        if id(request) in self._running:
            self._judged += 1
            self._whole += whole
