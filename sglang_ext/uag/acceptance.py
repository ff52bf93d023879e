"""How likely each acceptance rate of a request's drafts is.

A draft token is accepted with the request's rate, one of `RATES`. What the rates of requests are is learned from the
requests (empirical Bayes; Robbins, "An Empirical Bayes Approach to Statistics", 1956): a new request is expected to be
like those before it. If some of them were accepted nearly always and some hardly ever, one verified token tells which
of both a new one is.

    after a draft, of which `accepted` tokens were accepted and the next one was refused or not:
        belief(a)  ~  belief(a) * a^accepted * (1 - a)^refused
    at each step, as the text may become another:
        belief    +=  _CHANGE * (population - belief)
    and at each draft, so that each request counts by what its drafts changed in all:
        population += (belief after - belief before) * max(_LEARNING, 1 / (2 + changes so far))

What is known of the population fades towards knowing nothing, all rates alike, with steps of any kind.
"""

from __future__ import annotations

import numpy as np

from .step_times import Floats

_NUM_RATES = 10
_CHANGE = 1 / 512  # probability that a request's text becomes another, in one step
_LEARNING = 1 / 16  # weight of a request in the population, at least: the first ones count for more
_FORGETTING = 1 / 8192  # of the population, in one step
_LEAST = 1e-4  # probability of a rate
RATES: Floats = (np.arange(_NUM_RATES) + 0.5) / _NUM_RATES
"""[rates], ascending."""


class Population:
    """Acceptance rates of the requests so far, for drafts of one source.

    Attributes:
        belief: [rates], probability of each for a new request.
    """

    def __init__(self) -> None:
        self.belief: Floats = np.full(_NUM_RATES, 1 / _NUM_RATES)
        self._changes = 0.0  # probability that was moved from some rates to others; about one for a request

    def pass_by(self, steps: int) -> None:
        """So many steps were made."""
        self.belief = 1 / _NUM_RATES + (self.belief - 1 / _NUM_RATES) * (1 - _FORGETTING) ** steps

    def approached(self, belief: Floats, steps: int) -> Floats:
        """A request's belief after so many steps in which nothing was learned of it."""
        approached: Floats = self.belief + (belief - self.belief) * (1 - _CHANGE) ** steps
        return approached

    def learn(self, before: Floats, after: Floats) -> None:
        """A draft changed what is known of a request."""
        change = (after - before) * max(_LEARNING, 1 / (2 + self._changes))
        self._changes += float(np.abs(after - before).sum()) / 2
        self.belief = _normal(np.maximum(self.belief + change, _LEAST))


def posterior(belief: Floats, accepted: int, refused: bool) -> Floats:
    """The belief after a draft.

    Args:
        accepted: tokens from the first on.
        refused: whether the next one was refused.
    """
    return _normal(np.maximum(belief * RATES**accepted * (1 - RATES) ** refused, 1e-300))


def _normal(weights: Floats) -> Floats:
    normal: Floats = weights / weights.sum()
    return normal
