"""How many tokens to draft: for each request from its acceptance rate, for the batch from measured times of steps.

The rule is theorem 3.8 of Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding"
(2023). With acceptance rate a, a draft of k tokens gives 1 + a + ... + a^k tokens on average. It takes draft(k) +
verify(k) plain steps of the target. Their quotient is the expected speed-up. The rate is not known: `acceptance.py`
says how likely each is, and the tokens are expected over all of them.

The n requests of a batch share a step. If the m requests that promise most have drafts of k tokens, then

    speed-up(m, k) = (n + sum over them of E[a + ... + a^k]) / (n * (draft(m, k) + verify(k)))
    draft(m, k)    = (extend(m) + (k * steps_per_token - 1) * step(m)) / plain(n)
    verify(k)      = target(n, k + 1) / plain(n)

with the measured seconds of `step_times.py`. The control takes the m and k of the largest speed-up. A draft that costs
nothing, such as one that is looked up in the text, has draft(m, k) = 0: everybody may have one, of another length.

Where no speed-up reaches `_GAIN`, a draft may still tell something. If the rate a was known, each of the steps that
follow would gain best(a) - 1, or nothing where that is negative. A draft is made if what this is worth in the steps
that the request is expected to go on, E[max(best(a) - 1, 0)] each, is more than what the draft loses (expected value
of perfect information; Howard, "Information Value Theory", 1966). What such drafts may lose is bounded as in
conservative bandits (Wu et al., 2016): they are paid from `_SHARE` of the time and from what drafts gained, of which no
more than `_SAVED` plain steps are kept.

Nothing here reads a clock: the same calls give the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .acceptance import RATES, Population, posterior
from .step_times import Floats, Kind, StepTimes, bucket

_GAIN = 1.02  # a draft must promise this speed-up
_SHARE = 1 / 64  # of the time, that drafts made to learn and plain steps made to be timed may lose
_SAVED = 1.0  # plain steps
_AHEAD = 32  # steps, at least, for which a request is expected to go on; one that went on for longer goes on as long
_DOUBT = 2048  # steps without drafts after which they may have become twice as fast
_STILL = 16  # steps for which a decision not to draft stands, where nothing is learned
_CALIBRATION = 0.98, 2.0  # decay at each draft, and tokens that count for the draft's confidence being right


@dataclass(eq=False)
class RequestStats:
    """One request's drafts of one source. The caller sets the first four before each plan; the control keeps the rest.

    Attributes:
        steps_per_token: draft steps for a token of the target; 0 where a draft costs nothing.
        behind: ids of the draft that its cache lacks.
        source: whose drafts they are. What is known of a source's drafts is not told of another's.
        most: tokens that it can give now; None: as many as are wanted.
        belief: [rates] probability of each acceptance rate; None until the first plan.
        steps: since the request began; those at which `belief` was looked at.
    """

    steps_per_token: float = 1.0
    behind: float = 0.0
    source: str = "draft"
    most: int | None = None
    belief: Floats | None = field(default=None, repr=False)
    steps: int = field(default=0, repr=False)
    looked_at: int = field(default=0, repr=False)

    @property
    def ahead(self) -> int:
        """Steps that are expected to follow."""
        return max(_AHEAD, self.steps)


class Planned(NamedTuple):
    """A request's draft: which of its sources, and how many tokens; none where `length` is 0."""

    source: int = 0
    length: int = 0


@dataclass(frozen=True)
class _Choice:
    """Drafts for some requests.

    Attributes:
        planned: by request.
        loss: plain steps that it takes, less the tokens a request that are expected of it.
        costs: [width] plain steps of this many drafts, by length.
    """

    speed_up: float = 1.0
    planned: dict[int, Planned] = field(default_factory=dict)
    loss: float = 0.0
    costs: Floats = field(default_factory=lambda: np.ones(1))


@dataclass(frozen=True)
class _Offers:
    """What the sources of a batch's requests promise: of each request the best that costs steps, and the best of those
    that cost nothing; -1 where it has none.

    Attributes:
        tokens: [2, requests, width] expected of a draft, by length.
        source: [2, requests].
    """

    tokens: Floats
    source: list[list[int]]


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
        self._lengths = np.arange(width, dtype=np.float64)
        self._tokens = (RATES[:, None] ** self._lengths).cumsum(axis=1) - 1  # [rates, width] expected of a draft
        self._times = StepTimes(width)
        self._populations: dict[str, Population] = {}
        self._accepted = self._confident = 0.0  # tokens behind the first of a draft; those that its confidence promised
        self._last = _Choice()
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
        if self._last.speed_up > 1 or self._times.draft(1, self._lengths) is None:
            return False
        new = [[RequestStats()]] * self._batch
        return max(choice.speed_up for choice in self._choices(new, self._batch)) < _GAIN

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
            written = [self._known(stats) for stats in (requests[i][p.source] for i, p in planned.items())
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
        before = self._known(request)
        request.belief = posterior(before, accepted, accepted < asked)
        self._population(request).learn(before, request.belief)
        self._pay(-accepted / self._batch)
        if confidence:
            decay, _ = _CALIBRATION
            promised = float(before @ RATES) * sum(map(_probability, confidence[: asked - 1]))
            self._accepted = self._accepted * decay + max(accepted - 1, 0)
            self._confident = self._confident * decay + promised

    def unable(self, request: RequestStats) -> None:
        """A request that the plan drafts for could not begin. Others come first: it alone is expected to give less."""
        request.belief = posterior(self._known(request), 0, True)
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

    def _choose(self, requests: Sequence[Sequence[RequestStats]]) -> _Choice:
        now = self._batch, *(id(stats) for sources in requests for stats in sources if stats.most != 0)
        if not requests or not self._times.plain(self._batch) or (now == self._nothing and self._passed < _STILL):
            return _Choice()
        self._look(requests)
        choices = self._choices(requests, self._batch)
        best = max(choices, key=lambda choice: choice.speed_up, default=_Choice())
        if best.speed_up >= _GAIN or (best.planned and best.loss < 0 and best.costs.max() <= 1):
            return _Choice(best.speed_up) if self._plain_is_due(best.speed_up) else best
        self._nothing = now
        worth = [self._information(choice, requests) - choice.loss for choice in choices]
        probe = choices[int(np.argmax(worth))] if worth and max(worth) > 0 else _Choice()
        self._price = probe.loss
        return _Choice(1.0, probe.planned) if probe.loss <= self._credit else _Choice()

    def _look(self, requests: Sequence[Sequence[RequestStats]]) -> None:
        """What is known is older by the steps that were made since the last look."""
        for population in self._populations.values():
            population.pass_by(self._passed)
        for stats in (stats for sources in requests for stats in sources):
            steps = stats.steps - stats.looked_at
            stats.belief = self._population(stats).approached(self._known(stats), steps)
            stats.looked_at = stats.steps
        self._passed = 0

    def _plain_is_due(self, speed_up: float) -> bool:
        """Whether this step is to be plain, so that what plain steps take is known: as often as `_SHARE` allows."""
        n = bucket(self._batch)
        due = not self._fixed and (n not in self._untimed or self._untimed[n] * _SHARE > speed_up - 1)
        self._untimed[n] = 0 if due else self._untimed.get(n, 0) + 1
        return due

    def _information(self, choice: _Choice, requests: Sequence[Sequence[RequestStats]]) -> float:
        """Plain steps that knowing the rates of the requests that draft would save."""
        drafting = [requests[i][planned.source] for i, planned in choice.planned.items()]
        if not drafting:
            return 0.0
        tokens = len(drafting) / self._batch * self._tokens[:, 1:]
        speed_up = ((1 + tokens) / choice.costs[1:]).max(axis=1) * (1 + self._idle / _DOUBT)
        gains = np.maximum(speed_up - 1, 0.0)
        return sum(float(self._known(stats) @ gains) * stats.ahead for stats in drafting) / len(drafting)

    def _choices(self, requests: Sequence[Sequence[RequestStats]], batch: int) -> list[_Choice]:
        """For each number of requests for which the model drafts, the drafts of the largest speed-up.

        What the draft has to read for a request is paid over the steps that are expected to follow.
        """
        times, plain, offers = self._times, self._times.plain(batch), self._offers(requests)
        (model, free), (model_source, free_source) = offers.tokens, offers.source
        able = [i for i, source in enumerate(model_source) if source >= 0]
        stats = {i: requests[i][model_source[i]] for i in able}
        read = {i: times.read(stats[i].behind) / plain for i in able}
        rent = {i: read[i] / stats[i].ahead for i in able}
        order = sorted(able, key=lambda i: batch * rent[i] + free[i, -1] - model[i, -1])
        target = times.target(batch) / plain
        widest = self.width if self._fixed else min(2 * times.widest(batch), self.width)
        choices = []
        for count in _counts(len(order)):
            who = order[:count]
            others = [i for i, source in enumerate(free_source) if source >= 0 and i not in who]
            if not who and not others:
                continue
            draft = self._draft(batch, [stats[i].steps_per_token for i in who])
            k = np.arange(1, widest) if who else np.zeros(1, int)
            k_free = np.arange(0 if who else 1, widest)[:, None] if others else np.zeros((1, 1), int)
            costs = draft[k] + target[np.maximum(k, k_free)]  # [lengths of free drafts, of the model's]
            tokens = 1 + (free[others].sum(axis=0)[k_free] + model[who].sum(axis=0)[k]) / batch
            speed_ups = tokens / (costs + sum(rent[i] for i in who))
            at = np.unravel_index(int(np.argmax(speed_ups)), speed_ups.shape)
            length, length_free = int(k[at[1]]), int(k_free[at[0], 0])
            planned = {i: Planned(model_source[i], length) for i in who}
            if length_free:
                planned |= {i: Planned(free_source[i], _at_most(requests[i][free_source[i]].most, length_free))
                            for i in others}
            loss = float(costs[at] - tokens[at]) + sum(read[i] for i in who)
            choices.append(_Choice(float(speed_ups[at]), planned, loss, draft + target))
        return choices

    def _offers(self, requests: Sequence[Sequence[RequestStats]]) -> _Offers:
        tokens = np.zeros((2, len(requests), self.width))
        source = [[-1] * len(requests), [-1] * len(requests)]
        for i, sources in enumerate(requests):
            for j, stats in enumerate(sources):
                most = _at_most(stats.most, self.width - 1)
                gain = (self._known(stats) @ self._tokens)[np.minimum(np.arange(self.width), most)]
                free = int(not stats.steps_per_token)
                if most and gain[-1] > tokens[free, i, -1]:
                    tokens[free, i], source[free][i] = gain, j
        return _Offers(tokens, source)

    def _draft(self, batch: int, steps_per_token: Sequence[float]) -> Floats:
        """[width] plain steps that the model's drafts of these requests take, by length; 0 until that is measured."""
        steps = np.ceil(self._lengths * max(steps_per_token, default=0.0))
        draft = self._times.draft(len(steps_per_token), steps) if steps_per_token else None
        return np.zeros(self.width) if draft is None else draft / self._times.plain(batch)

    def _population(self, stats: RequestStats) -> Population:
        return self._populations.setdefault(stats.source, Population())

    def _known(self, stats: RequestStats) -> Floats:
        return self._population(stats).belief if stats.belief is None else stats.belief

    def _pay(self, steps: float) -> None:
        """Drafts cost so many plain steps; below 0 they gained some."""
        self._credit = max(min(self._credit - steps, max(_SAVED, self._price)), 0.0)


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
        most = [[_at_most(stats.most, self.width - 1) for stats in sources] for sources in requests]
        return [next((Planned(j, length) for j, length in enumerate(lengths) if length), Planned()) for lengths in most]

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Nothing is learned."""

    def unable(self, request: RequestStats) -> None:
        """Nothing is learned."""

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Nothing is learned."""

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        return True


def _at_most(most: int | None, length: int) -> int:
    return length if most is None else min(most, length)


def _probability(p: float) -> float:
    """A product of float32 probabilities, which may be a little above 1. What is no probability counts as 0."""
    return min(p, 1.0) if 0 <= p < 1.001 else 0.0


def _counts(requests: int) -> list[int]:
    """For how many requests the model may draft: none, powers of two, and all."""
    return sorted({0, requests, *(1 << k for k in range(requests.bit_length()))})
