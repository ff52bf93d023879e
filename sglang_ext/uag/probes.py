"""Looking whether drafting pays by now, where it did not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

_SHARE = 0.015  # of the time, that probes may lose
_PATIENCE = 8.0  # probes refused in a row that halve the share, as far as it is credit
_LEAST = 0.25  # of it, that is left however many are refused
_SAVED = 4.0  # plain steps that may be saved up for a probe, and overdrawn until a draft is refused
_OVERDRAWN = 8.0  # plain steps that may be overdrawn by a probe that goes well


class Probed(Protocol):
    """A request. `behind`: ids that the draft has to read before its next draft."""

    behind: float


class Probes:
    """When to probe, and how much: one request and one token at first, twice as much each time it goes well.

    A probe that costs more than the credit may ever be is paid from savings of its own, which grow up to its price
    while it is refused. So it comes about however long the text is that the draft has to read, and cheap probes that
    come in between do not use up what is saved, neither for it nor all at once.

    Attributes:
        count: requests that the next probe drafts for.
        length: tokens of its drafts.
    """

    def __init__(self) -> None:
        self.count = self.length = 1
        self._credit = 0.0  # seconds that probes may lose
        self._savings = 0.0  # seconds that one may lose for which the credit is never enough
        self._step = 0.0  # seconds of a plain step
        self._price = 0.0  # seconds that the last probe that was asked for may lose
        self._fresh = True  # no draft was refused yet
        self._refused = 0  # probes in a row
        self._running: dict[Probed, tuple[float, float]] = {}  # not judged yet: seconds, `behind` when it began
        self._whole = self._judged = 0  # drafts of the last probe that were accepted as a whole, and all
        self._going_well = False

    def elapse(self, seconds: float) -> None:
        """A round begins: a plain step of it takes so long."""
        self._step = seconds
        earned = _SHARE * seconds
        if self._credit >= 0 and self._dear(self._price):
            self._savings = min(self._savings + earned, max(self._price, self._savings))
        else:
            earned *= max(_PATIENCE / (_PATIENCE + self._refused), _LEAST)
            self._credit = min(self._credit + earned, max(_SAVED * seconds, self._credit))

    def rescale(self, seconds: float) -> None:
        """What was a second so far, as nothing was measured, takes so many."""
        self._credit *= seconds
        self._savings *= seconds
        self._price *= seconds

    def settle(self) -> bool:
        """Look at the last probe; whether it went well. To be called once a round.

        What a request was not judged for, as the draft is still reading its text, is given back.
        """
        for request, (seconds, behind) in self._running.items():
            if behind:
                self._give_back(seconds * min(request.behind / behind, 1.0))
        self._going_well = self._judged > 0 and 2 * self._whole >= self._judged
        if self._going_well:
            self.count, self.length, self._refused = 2 * self.count, 2 * self.length, 0
        else:
            self.count = self.length = 1
            self._refused += self._judged > 0
        self._running = {}
        self._whole = self._judged = 0
        return self._going_well

    def affords(self, loss: float) -> bool:
        """Whether a probe that may lose so many seconds is to be made."""
        self._price = loss
        means = self._credit + (self._savings if self._dear(loss) else 0.0)
        overdraft = _OVERDRAWN if self._going_well else _SAVED if self._fresh else 0.0
        return means + overdraft * self._step >= loss

    def start(self, requests: Collection[Probed], loss: float) -> None:
        """A probe of these requests is made."""
        saved = min(loss, self._savings) if self._dear(loss) else 0.0
        self._savings -= saved
        self._credit -= loss - saved
        self._running = {request: (loss / len(requests), request.behind) for request in requests}

    def observe(self, request: Probed, whole: bool) -> None:
        """Count a draft, whether or not it belongs to a probe."""
        self._fresh &= whole
        if self._running.pop(request, None) is not None:
            self._judged += 1
            self._whole += whole

    def cancel(self, request: Probed) -> None:
        """A request was not drafted for: if it was in the last probe, it cost nothing and says nothing."""
        seconds, _ = self._running.pop(request, (0.0, 0.0))
        self._give_back(seconds)

    def _dear(self, loss: float) -> bool:
        return loss > _SAVED * self._step

    def _give_back(self, seconds: float) -> None:
        room = max(_SAVED * self._step - self._credit, 0.0)
        self._credit += min(seconds, room)
        self._savings += max(seconds - room, 0.0)
