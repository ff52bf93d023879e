"""What drafts of a batch promise: their speed-up, and what they would tell.

The rule is theorem 3.8 of Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding"
(2023). With acceptance rate a, a draft of k tokens gives 1 + a + ... + a^k tokens on average. It takes draft(k) +
verify(k) plain steps of the target. Their quotient is the expected speed-up. The rate is not known: `acceptance.py`
says how likely each is, and the tokens are expected over all of them.

The n requests of a batch share a step. If the m requests that promise most have drafts of k tokens, then

    speed-up(m, k) = (n + sum over them of E[a + ... + a^k]) / (n * (draft(m, k) + verify(k)))
    draft(m, k)    = (extend(m) + (k * steps_per_token - 1) * step(m)) / plain(n)
    verify(k)      = target(n, k + 1) / plain(n)

with the measured seconds of `step_times.py`. A draft that costs nothing, such as one that is looked up in the text,
has draft(m, k) = 0: everybody may have one, of another length.

A draft also tells something. If the rate a was known, each of the steps that follow would gain best(a) - 1, or nothing
where that is negative. So knowing it is worth E[max(best(a) - 1, 0)] for each step that the request is expected to go
on (expected value of perfect information; Howard, "Information Value Theory", 1966).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .acceptance import RATES, Population
from .step_times import Floats, StepTimes

_AHEAD = 32  # steps, at least, for which a request is expected to go on; one that went on for longer goes on as long
_DOUBT = 2048  # steps without drafts after which they may have become twice as fast


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
class Choice:
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


class _Offer(NamedTuple):
    """What a request's source promises: `tokens` [width] are expected of a draft, by length."""

    source: int
    stats: RequestStats
    tokens: Floats


class SpeedUps:
    """Speed-ups of a server's drafts.

    Args:
        width: positions of the widest verification.
        fixed: whether every step of the target has that many.
        times: measured seconds of steps.
    """

    def __init__(self, width: int, fixed: bool, times: StepTimes) -> None:
        self._width, self._fixed, self._times = width, fixed, times
        self._lengths = np.arange(width, dtype=np.float64)
        self._tokens = (RATES[:, None] ** self._lengths).cumsum(axis=1) - 1  # [rates, width] expected of a draft
        self.populations: dict[str, Population] = {}  # by source

    def population(self, stats: RequestStats) -> Population:
        return self.populations.setdefault(stats.source, Population())

    def belief(self, stats: RequestStats) -> Floats:
        """[rates], of a request; that of the population where it is new."""
        return self.population(stats).belief if stats.belief is None else stats.belief

    def choices(self, requests: Sequence[Sequence[RequestStats]], batch: int) -> list[Choice]:
        """For each number of requests for which the model drafts, the drafts of the largest speed-up.

        What the draft has to read for a request is paid over the steps that are expected to follow.
        """
        times, plain = self._times, self._times.plain(batch)
        model, free = self._offers(requests)
        read = {i: times.read(offer.stats.behind) / plain for i, offer in model.items()}
        rent = {i: read[i] / offer.stats.ahead for i, offer in model.items()}
        nothing = np.zeros(self._width)
        worth = {i: offer.tokens - free[i].tokens if i in free else offer.tokens for i, offer in model.items()}
        order = sorted(model, key=lambda i: batch * rent[i] - float(worth[i][-1]))
        target = times.target(batch) / plain
        widest = self._width if self._fixed else min(2 * times.widest(batch), self._width)
        choices = []
        for count in _counts(len(order)):
            who = order[:count]
            others = [i for i in free if i not in who]
            if not who and not others:
                continue
            draft = self._draft(batch, [model[i].stats.steps_per_token for i in who])
            k = np.arange(1, widest) if who else np.zeros(1, int)
            k_free = np.arange(0 if who else 1, widest) if others else np.zeros(1, int)
            costs = draft[k] + target[np.maximum(k, k_free[:, None])]  # [lengths of free drafts, of the model's]
            tokens = sum((model[i].tokens for i in who), nothing)[k] + sum((free[i].tokens for i in others), nothing)[
                k_free, None]
            speed_ups = (1 + tokens / batch) / (costs + sum(rent[i] for i in who))
            row, column = divmod(int(speed_ups.argmax()), len(k))
            planned = {i: Planned(model[i].source, int(k[column])) for i in who}
            if k_free[row]:
                planned |= {i: Planned(free[i].source, at_most(free[i].stats.most, int(k_free[row]))) for i in others}
            loss = float(costs[row, column] - 1 - tokens[row, column] / batch) + sum(read[i] for i in who)
            choices.append(Choice(float(speed_ups[row, column]), planned, loss, draft + target))
        return choices

    def information(self, choice: Choice, requests: Sequence[Sequence[RequestStats]], batch: int, idle: int) -> float:
        """Plain steps that knowing the rates of the requests that draft would save.

        Args:
            idle: steps since the last draft: drafts may be faster by now.
        """
        drafting = [requests[i][planned.source] for i, planned in choice.planned.items()]
        if not drafting:
            return 0.0
        tokens = len(drafting) / batch * self._tokens[:, 1:]
        speed_up = ((1 + tokens) / choice.costs[1:]).max(axis=1) * (1 + idle / _DOUBT)
        gains = np.maximum(speed_up - 1, 0.0)
        return sum(float(self.belief(stats) @ gains) * stats.ahead for stats in drafting) / len(drafting)

    def _offers(self, requests: Sequence[Sequence[RequestStats]]) -> tuple[dict[int, _Offer], dict[int, _Offer]]:
        """By request, the best of its sources that cost steps, and of those that cost nothing."""
        offers: tuple[dict[int, _Offer], dict[int, _Offer]] = {}, {}
        for i, sources in enumerate(requests):
            for j, stats in enumerate(sources):
                tokens = self.belief(stats) @ self._tokens
                if stats.most is not None:
                    tokens = tokens[np.minimum(np.arange(self._width), stats.most)]
                kind = offers[not stats.steps_per_token]
                if tokens[-1] > (kind[i].tokens[-1] if i in kind else 0.0):
                    kind[i] = _Offer(j, stats, tokens)
        return offers

    def _draft(self, batch: int, steps_per_token: Sequence[float]) -> Floats:
        """[width] plain steps that the model's drafts of these requests take, by length; 0 until that is measured."""
        steps = np.ceil(self._lengths * max(steps_per_token, default=0.0))
        draft = self._times.draft(len(steps_per_token), steps) if steps_per_token else None
        return np.zeros(self._width) if draft is None else draft / self._times.plain(batch)


def at_most(most: int | None, length: int) -> int:
    return length if most is None else min(most, length)


def _counts(requests: int) -> list[int]:
    """For how many requests the model may draft: none, powers of two, and all."""
    return sorted({0, requests, *(1 << k for k in range(requests.bit_length()))})
