"""What share of drafted tokens is accepted: of a request, over all of them, by position, and by the draft's own
confidence."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_PRIOR, _PRIOR_WEIGHT = 0.6, 2.0  # acceptance of a pair that nobody has seen, and the tokens that this counts for
_BORROWED = 2.0  # tokens that the pair's acceptance counts for in a request
_REQUEST_DECAY = 0.9  # of a request's counts at each draft
_FADE = 0.99  # of a request's counts in each round in which it drafts nothing
_MISSED = 1000.0  # ids that the draft would have to read that outweigh any promise
_DECAY = 0.97  # of the pair's counts at each draft
_PROFILE_WEIGHT = 5.0  # tokens at a position that the pair's acceptance counts for there
_BINS, _BIN_WEIGHT, _BIN_DECAY = 10, 4.0, 0.98
_ROUNDED = 1.001  # the highest confidence that is taken for 1

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class RequestStats:
    """What is known of one request. The control keeps it; the caller sets the first two.

    Attributes:
        steps_per_token: steps of the draft for a token of the target, as `Reading.steps_for` tells them.
        behind: ids of the draft that its cache lacks before its next draft. Every plan adds to it where it drafts
            nothing; set it where the draft did not read the prompt.
        alive: whether the last plan drafted for it.
        rounds: that it was planned for. It is expected to go on for as many: what is known of a length is its past.
    """

    steps_per_token: float = 1.0
    behind: float = 0.0
    alive: bool = True
    rounds: int = 0
    accepted: float = field(default=0.0, repr=False)  # decayed counts of its drafted tokens that were judged
    seen: float = field(default=0.0, repr=False)

    def rate(self, pair: float) -> float:
        """Acceptance of a token, leaning on the pair's."""
        return (self.accepted + pair * _BORROWED) / (self.seen + _BORROWED)

    @property
    def promise(self) -> float:
        """How much a probe may find: what was accepted, doubts in its favour, less what the draft has to read."""
        return (self.accepted + 1) / (self.seen + 1) - self.behind / _MISSED

    def count(self, asked: int, accepted: int) -> None:
        self.accepted = self.accepted * _REQUEST_DECAY + accepted
        self.seen = self.seen * _REQUEST_DECAY + min(accepted + 1, asked)

    def skip(self) -> None:
        """A round without a draft: the draft falls behind, and what was counted is forgotten slowly."""
        self.behind += self.steps_per_token
        self.accepted *= _FADE
        self.seen *= _FADE


class PairAcceptance:
    """Decayed counts over all requests.

    Attributes:
        seen: tokens that the counts stand for.
    """

    def __init__(self, longest: int) -> None:
        self.seen = 0.0
        self._accepted = 0.0
        self._hits = np.zeros(longest)  # at each position of a draft
        self._trials = np.zeros(longest)

    @property
    def rate(self) -> float:
        """Probability that a drafted token is accepted where those before it were."""
        return (self._accepted + _PRIOR * _PRIOR_WEIGHT) / (self.seen + _PRIOR_WEIGHT)

    def count(self, asked: int, accepted: int) -> None:
        """Count a draft that was asked for so many tokens, and of which so many were accepted."""
        judged = min(accepted + 1, asked)
        self._accepted = self._accepted * _DECAY + accepted
        self.seen = self.seen * _DECAY + judged
        self._hits *= _DECAY
        self._trials *= _DECAY
        self._hits[:accepted] += 1
        self._trials[:judged] += 1

    def doubt(self) -> None:
        """Something has changed: what was counted so far is worth half."""
        self._accepted /= 2
        self.seen /= 2
        self._hits /= 2
        self._trials /= 2

    def survival(self, rates: Floats) -> Floats:
        """Probability that a draft is accepted up to each position.

        Args:
            rates: [requests], acceptance of a token.

        Returns:
            [requests, positions].
        """
        rate = self.rate
        at = (self._hits + rate * _PROFILE_WEIGHT) / (self._trials + _PROFILE_WEIGHT)
        token: Floats = _probability(_odds(rates)[:, None] * (_odds(at) / _odds(np.array(rate)))[None, :])
        return token.cumprod(axis=1)


class Confidence:
    """What the draft's probability of its own text is worth: bins of it, with the acceptance that was measured.

    What is no probability counts as 0: a draft that computes NaN costs drafts, never a request.
    """

    def __init__(self) -> None:
        self._hits = np.zeros(_BINS)
        self._trials = np.zeros(_BINS)

    def count(self, confidence: float, accepted: bool) -> None:
        """Count a token: the probability of the draft up to it, and whether it was accepted."""
        k = self._bin(confidence)
        self._hits[k] = self._hits[k] * _BIN_DECAY + accepted
        self._trials[k] = self._trials[k] * _BIN_DECAY + 1

    def acceptance(self, confidence: float) -> float:
        """Probability that a draft of this confidence is accepted as a whole; the confidence itself until measured."""
        confidence = _valid(confidence)
        k = self._bin(confidence)
        return float((self._hits[k] + confidence * _BIN_WEIGHT) / (self._trials[k] + _BIN_WEIGHT))

    @staticmethod
    def _bin(confidence: float) -> int:
        return min(int(_valid(confidence) * _BINS), _BINS - 1)


def _valid(confidence: float) -> float:
    """Within 0 to 1; a product of float32 probabilities may be above 1 by rounding."""
    return min(confidence, 1.0) if 0 <= confidence <= _ROUNDED else 0.0


def _odds(probability: Floats) -> Floats:
    bounded = np.clip(probability, 1e-3, 1 - 1e-3)
    return bounded / (1 - bounded)


def _probability(odds: Floats) -> Floats:
    return odds / (1 + odds)
