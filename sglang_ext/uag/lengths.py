"""How many tokens to draft: for each request and the batch, the drafts of the largest speed-up (`speed_up.py`).

Where no speed-up reaches `_GAIN`, a draft is made if what it tells is worth more than what it loses. What such drafts
may lose is bounded as in conservative bandits (Wu, Shariff, Lattimore and Szepesvari, 2016): they are paid from
`_SHARE` of the time and from what drafts gained, of which no more than `_SAVED` plain steps are kept. The same share is
for plain steps that are made between drafts, so that what a plain step takes is known.

Nothing here reads a clock: the same calls give the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .acceptance import RATES, posterior
from .speed_up import Choice, Planned, RequestStats, SpeedUps
from .step_times import Kind, StepTimes, bucket

_GAIN = 1.02  # a draft must promise this speed-up
_SHARE = 1 / 96  # of the time, that drafts made to learn and plain steps made to be timed may lose
_SAVED = 1.5  # plain steps
_STILL = 16  # steps for which a decision not to draft stands, where nothing is learned
_CALIBRATION = 0.98, 2.0  # decay at each draft, and tokens that count for the draft's confidence being right


class LengthControl:
    """Draft lengths of one server.

    Args:
        width: positions of the widest verification, 1 + the most tokens of a draft.
        fixed: every step of the target has `width` positions, with drafts or without, as CUDA graphs have it.

    Raises:
        ValueError: `width` below 2.
    """

    def __init__(self, width: int, fixed: bool = False) -> None:
        if width < 2:
            raise ValueError(f"width {width}: accepted is 2 or more, a draft token and the one that follows it")
        self.width = width
        self._fixed = fixed
        self._times = StepTimes(width)
        self._speed_ups = SpeedUps(width, fixed, self._times)
        self._accepted = self._confident = 0.0  # tokens behind the first of a draft; those that its confidence promised
        self._last = Choice()
        self._drafting, self._rate = 1, 0.5  # requests for which the model drafts, and their acceptance rate
        self._batch = 1
        self._passed = 0  # steps since the last look
        self._idle = 0  # since the last draft
        self._untimed: dict[int, int] = {}  # steps with drafts since a plain one was timed, by batch bucket
        self._credit = _SAVED  # plain steps that drafts may lose
        self._price = 0.0  # that the probe would lose that is waited for
        self._nothing: tuple[int, ...] = ()  # requests for which nothing was drafted, while nothing was learned

    @property
    def off(self) -> bool:
        """Whether drafting does not pay, nor would for new requests: the draft need not read their prompts."""
        return not self.worth_reading(0)

    def worth_reading(self, ids: int) -> bool:
        """Whether drafts would pay for a new request of whose prompt the draft reads so many ids."""
        if not self._times.drafted:
            return True
        new = [[RequestStats(behind=float(ids))]] * self._batch
        return max(choice.speed_up for choice in self._speed_ups.choices(new, self._batch)) >= _GAIN

    def plan(self, requests: Sequence[RequestStats], batch: int | None = None) -> list[int]:
        """`plan_sources` where each request has one source. Returns tokens of the target to draft for each."""
        return [planned.length for planned in self.plan_sources([(request,) for request in requests], batch)]

    def plan_sources(self, requests: Sequence[Sequence[RequestStats]], batch: int | None = None) -> list[Planned]:
        """What to draft for each request in the next step; a plain step where all lengths are 0.

        Args:
            requests: those that may draft, each with its sources; at most one of them costs steps.
            batch: requests of the target's step; more where some may not draft.
        """
        self._batch = max(batch or 0, len(requests))
        self._passed += 1
        self._idle += 1
        self._pay(-_SHARE)
        for sources in requests:
            for stats in sources:
                stats.steps += 1
        self._last = self._choose(requests)
        planned = self._last.planned
        if planned:
            self._idle, self._nothing = 0, ()
            written = [self._speed_ups.belief(stats) for stats in (requests[i][p.source] for i, p in planned.items())
                       if stats.steps_per_token]
            if written:
                self._drafting, self._rate = len(written), float(np.mean(written, axis=0) @ RATES)
        return [planned.get(i, Planned()) for i in range(len(requests))]

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Count a verified draft.

        Args:
            proposed: tokens of the target that were drafted.
            accepted: how many of them, from the first on, were accepted.
            confidence: probability that the draft gave to its text up to each of the tokens, where it is known.
            asked: tokens that the draft was to give; more than `proposed` where it gave less. The first that is missing
                counts as refused. None: as many as were proposed.

        Raises:
            ValueError: more accepted than proposed, or more proposed than asked.
        """
        asked = proposed if asked is None else asked
        if not 0 <= accepted <= proposed:
            raise ValueError(f"accepted {accepted} of {proposed} proposed: accepted is 0 to {proposed}")
        if asked < proposed:
            raise ValueError(f"asked {asked}, {proposed} proposed: asked is {proposed} or more")
        if not asked:
            return
        self._nothing = ()
        before = self._speed_ups.belief(request)
        request.belief = posterior(before, accepted, accepted < asked)
        self._speed_ups.population(request).learn(before, request.belief)
        self._pay(-accepted / self._batch)
        if confidence:
            decay, _ = _CALIBRATION
            promised = float(before @ RATES) * sum(map(_probability, confidence[: asked - 1]))
            self._accepted = self._accepted * decay + max(accepted - 1, 0)
            self._confident = self._confident * decay + promised

    def unable(self, request: RequestStats) -> None:
        """A request that the plan drafts for could not begin. Others come first: it alone is expected to give less."""
        request.belief = posterior(self._speed_ups.belief(request), 0, True)
        self._nothing = ()

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count the time of a step.

        Args:
            kind: `plain` and `verify` of the target, `draft_extend` over what the draft has not read, `draft_step`.
            batch: requests in it.
            width: positions a request: of `verify` its width, of `draft_extend` the new ids, on average, else 1.
        """
        width = 1 if self._fixed and kind == "verify" else width
        self._times.add(kind, batch, width, seconds)
        plain = self._times.plain(self._batch)
        if kind == "plain" or (kind == "verify" and width == 1):
            self._untimed[bucket(batch)] = 0
        elif plain:
            self._pay(seconds / plain - (kind == "verify"))

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        """Whether a draft should take another step: its expected token against its share of what the step costs.

        Args:
            survival: probability that the draft gives to its text so far.
            steps_done: steps that it has taken.
            batch: requests of the target's step.
        """
        plain = self._times.plain(batch)
        if not steps_done or not plain:
            return True
        target, weight = self._times.target(batch), _CALIBRATION[1]
        narrow, wide = (target[min(steps_done + more, self.width - 1)] for more in (0, 1))
        cost = (self._times.step(self._drafting) + max(wide - narrow, 0.0)) / plain
        calibrated = self._rate * (self._accepted + weight) / (self._confident + weight)
        expected = min(calibrated, 1.0) * _probability(survival)
        return bool(self._drafting * expected > batch * cost * max(self._last.speed_up, 1.0))

    def _choose(self, requests: Sequence[Sequence[RequestStats]]) -> Choice:
        now = self._batch, *(id(stats) for sources in requests for stats in sources if stats.most != 0)
        if not requests or not self._times.plain(self._batch) or (now == self._nothing and self._passed < _STILL):
            return Choice()
        self._look(requests)
        choices = self._speed_ups.choices(requests, self._batch)
        best = max(choices, key=lambda choice: choice.speed_up, default=Choice())
        if best.speed_up >= _GAIN or (best.planned and best.loss < 0 and best.costs.max() <= 1):
            return Choice(best.speed_up) if self._plain_is_due(best.speed_up) else best
        self._nothing = now
        return self._probe(requests, choices)

    def _probe(self, requests: Sequence[Sequence[RequestStats]], choices: Sequence[Choice]) -> Choice:
        """Drafts that tell most beyond what they lose, of those that can be paid."""
        worth = [self._speed_ups.information(choice, requests, self._batch, self._idle) - choice.loss
                 for choice in choices]
        probes = [(more, choice) for more, choice in zip(worth, choices, strict=True) if more > 0]
        self._price = min((choice.loss for _, choice in probes), default=0.0)
        paid = [(more, choice.planned) for more, choice in probes if choice.loss <= self._credit]
        return Choice(1.0, max(paid, key=lambda probe: probe[0])[1]) if paid else Choice()

    def _look(self, requests: Sequence[Sequence[RequestStats]]) -> None:
        """What is known is older by the steps that were made since the last look."""
        for population in self._speed_ups.populations.values():
            population.pass_by(self._passed)
        for stats in (stats for sources in requests for stats in sources):
            steps = stats.steps - stats.looked_at
            stats.belief = self._speed_ups.population(stats).approached(self._speed_ups.belief(stats), steps)
            stats.looked_at = stats.steps
        self._passed = 0

    def _plain_is_due(self, speed_up: float) -> bool:
        """Whether this step is to be plain, so that what plain steps take is known: as often as `_SHARE` allows."""
        n = bucket(self._batch)
        due = not self._fixed and (n not in self._untimed or self._untimed[n] * _SHARE > speed_up - 1)
        self._untimed[n] = 0 if due else self._untimed.get(n, 0) + 1
        return due

    def _pay(self, steps: float) -> None:
        """Drafts cost so many plain steps; below 0 they gained some."""
        self._credit = max(min(self._credit - steps, max(_SAVED, self._price)), 0.0)


def _probability(p: float) -> float:
    """A product of float32 probabilities, which may be a little above 1. What is no probability counts as 0."""
    return min(p, 1.0) if 0 <= p < 1.001 else 0.0
