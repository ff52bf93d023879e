"""How many tokens to draft: for each request from its acceptance rate, for the batch from measured times of steps.

The rule is theorem 3.8 of Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding"
(2023). With acceptance rate a, a draft of k tokens gives (1 - a^(k+1)) / (1 - a) = 1 + a + ... + a^k tokens on average.
It takes draft(k) + verify(k) plain steps of the target. Their quotient is the expected speed-up.

The n requests of a batch share a step. If the m most promising requests D have drafts of k tokens, then

    speed-up(m, k) = (n + sum over D of (a_i + ... + a_i^k)) / (n * (draft(m, k) + verify(n, k)))
    draft(m, k)    = (extend(m) + (k * steps_per_token - 1) * step(m)) / plain(n)
    verify(n, k)   = target(n, k + 1) / plain(n)

with the measured seconds of `step_times.py`. The control takes the m and k of the largest speed-up, and drafts nothing
where it is below `_GAIN`. The rate a_i is a moving average of the request, which leans on the average of all requests.

Where nothing is drafted, a probe drafts one token after `_FIRST_PROBE` plain steps, then after twice as many each time,
up to `_LAST_PROBE`. It waits longer where it would cost more than `_PROBE_SHARE` of the time since the last draft.

Nothing here reads a clock: the same calls give the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from .step_times import Kind, StepTimes

_GAIN = 1.02  # a draft must promise this speed-up
_PRIOR = 0.5  # acceptance rate of a pair that was never observed
_PRIOR_WEIGHT = 2.0  # judged tokens that `_PRIOR` counts for in the pair's rate, and the pair's in a request's
_DECAY = 0.95  # of an average's counts at each draft
_FADE = 0.95  # of a request's counts at each step without a draft: it then leans on the others again
_FIRST_PROBE, _LAST_PROBE = 16, 512  # plain steps before a probe
_PROBE_SHARE = 1 / 64  # of the time, that a probe may cost


@dataclass
class Average:
    """Moving average of a share: so many of so much."""

    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float) -> None:
        self.part = self.part * _DECAY + part
        self.whole = self.whole * _DECAY + whole

    def fade(self) -> None:
        self.part *= _FADE
        self.whole *= _FADE

    def rate(self, prior: float) -> float:
        return (self.part + prior * _PRIOR_WEIGHT) / (self.whole + _PRIOR_WEIGHT)


@dataclass(eq=False)
class RequestStats:
    """One request's drafts of one source. The caller sets the first two before each plan; the control keeps the rest.

    Attributes:
        steps_per_token: draft steps for a token of the target; 0 where a draft costs none.
        behind: ids of the draft that its cache lacks.
        acceptance: accepted of judged draft tokens. The first that is refused is judged, those after it are not.
    """

    steps_per_token: float = 1.0
    behind: float = 0.0
    acceptance: Average = field(default_factory=Average, repr=False)


@dataclass(frozen=True)
class _Choice:
    """Drafts of `length` tokens for some requests."""

    speed_up: float = 0.0
    length: int = 0
    chosen: tuple[int, ...] = ()


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
        self._lengths = np.arange(1, width, dtype=np.float64)
        self._times = StepTimes(width)
        self._pair = Average()  # accepted of judged tokens, of all requests
        self._next = Average()  # accepted tokens per probability that the draft gave to the text before them
        self._last = _Choice(1.0)
        self._batch = 1
        self._plain_steps = 0  # since the last draft
        self._wait, self._due = _FIRST_PROBE, 0  # plain steps between two probes, and before the next one
        self._nothing: tuple[int, ...] = ()  # requests for which nothing was drafted, while nothing was learned

    @property
    def off(self) -> bool:
        """Whether drafting does not pay, nor would for new requests: the draft need not read their prompts."""
        if self._last.speed_up > 1 or self._times.draft(1, self._lengths) is None:
            return False
        return self._best([RequestStats()] * self._batch, self._batch).speed_up < _GAIN

    def plan(self, requests: Sequence[RequestStats], batch: int | None = None) -> list[int]:
        """Tokens of the target to draft for each request in the next step; a plain step where all are 0.

        Args:
            requests: those that may draft.
            batch: requests of the target's step; more where some may not draft.
        """
        self._batch = max(batch or 0, len(requests))
        self._plain_steps += 1
        self._last = self._choose(requests) if requests else _Choice(1.0)
        lengths = [0] * len(requests)
        for i in self._last.chosen:
            lengths[i] = self._last.length
        for request, length in zip(requests, lengths, strict=True):
            if not length:
                request.acceptance.fade()
        return lengths

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
        for average in (request.acceptance, self._pair):
            average.add(accepted, min(accepted + 1, asked))
        if accepted == asked:  # a probe that went well is soon repeated
            self._wait, self._due = _FIRST_PROBE, min(self._due, _FIRST_PROBE)
        self._next.add(max(accepted - 1, 0), sum(map(_probability, confidence[: asked - 1])))

    def unable(self, request: RequestStats) -> None:
        """A request that the plan drafts for could not begin. Its turn cost nothing, and others come first."""
        request.acceptance.add(0, 1)
        self._nothing = ()
        self._plain_steps = max(self._plain_steps, self._due)

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count the time of a step.

        Args:
            kind: `plain` and `verify` of the target, `draft_extend` over what the draft has not read, `draft_step`.
            batch: requests in it.
            width: positions a request: of `verify` its width, of `draft_extend` the new ids, on average, else 1.
        """
        self._times.add(kind, batch, 1 if self._fixed and kind == "verify" else width, seconds)

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        """Whether a draft should take another step: its expected token against its share of what the step costs.

        Args:
            survival: probability that the draft gives to its text so far.
            steps_done: steps that it has taken.
            batch: requests of the target's step.
        """
        if not steps_done or not self._times.plain(batch):
            return True
        rows, target = max(len(self._last.chosen), 1), self._times.target(batch)
        narrow, wide = (target[min(steps_done + more, self.width - 1)] for more in (0, 1))
        cost = (self._times.step(rows) + max(wide - narrow, 0.0)) / self._times.plain(batch)
        expected = min(self._next.rate(self._pair.rate(_PRIOR)), 1.0) * _probability(survival)
        return bool(rows * expected > batch * cost * max(self._last.speed_up, 1.0))

    def _choose(self, requests: Sequence[RequestStats]) -> _Choice:
        now = self._batch, *map(id, requests)
        if not self._times.plain(self._batch) or (now == self._nothing and self._plain_steps < self._due):
            return _Choice(1.0)
        best = self._best(requests, self._batch)
        if best.speed_up >= _GAIN:
            self._plain_steps, self._wait, self._due = 0, _FIRST_PROBE, _FIRST_PROBE
            self._nothing = ()
            return best
        self._nothing = now
        return _Choice(1.0, 1, self._probe(requests) if self._plain_steps >= self._due else ())

    def _best(self, requests: Sequence[RequestStats], batch: int, rate: float | None = None) -> _Choice:
        """The length, and the requests, of the largest speed-up; with this acceptance rate of all, if it is given.

        What the draft has to read for a request is paid over as many steps as a probe waits for at first.
        """
        times, pair = self._times, self._pair.rate(_PRIOR)
        rates = np.array([r.acceptance.rate(pair) if rate is None else rate for r in requests])
        gains = (rates[:, None] ** self._lengths).cumsum(axis=1)  # [requests, lengths] tokens
        read = np.array([times.read(r.behind) if rate is None else 0.0 for r in requests]) / _FIRST_PROBE
        plain = times.plain(batch)
        order = np.argsort(read * batch / plain - gains[:, -1], kind="stable")
        gain, read = gains[order].cumsum(axis=0), read[order].cumsum()
        steps = np.maximum.accumulate(np.array([r.steps_per_token for r in requests])[order])
        verify = times.target(batch)[1:]
        widest = self.width if self._fixed else times.widest(batch)  # one more token than was ever verified is tried
        best = _Choice()
        for count in _counts(len(order)):
            draft = times.draft(count, np.ceil(self._lengths * steps[count - 1]))
            if draft is None:
                return best
            speed_ups = (1 + gain[count - 1] / batch) * plain / (draft + read[count - 1] + verify)
            k = int(np.argmax(speed_ups[:widest]))
            if speed_ups[k] > best.speed_up:
                best = _Choice(float(speed_ups[k]), k + 1, tuple(order[:count].tolist()))
        return best

    def _probe(self, requests: Sequence[RequestStats]) -> tuple[int, ...]:
        """Requests that draft one token to find out whether it pays by now, those first that have least to read."""
        times, plain = self._times, self._times.plain(self._batch)
        order = sorted(range(len(requests)), key=lambda i: requests[i].behind)
        draft = times.draft(len(order), self._lengths)
        if draft is None:  # nothing was ever drafted
            self._plain_steps = 0
            return tuple(order)
        shared = float(draft[0] + times.target(self._batch)[1]) - plain
        costs = shared + np.cumsum([times.read(requests[i].behind) for i in order])
        hopeless = self._best(requests, self._batch, rate=1.0).speed_up < _GAIN  # even if every token was accepted
        self._due = max(self._due, ceil(costs[0] / (_PROBE_SHARE * plain)), _LAST_PROBE * hopeless)
        if self._plain_steps < self._due:
            return ()
        affordable = int(np.searchsorted(costs, self._plain_steps * _PROBE_SHARE * plain, side="right"))
        self._wait = min(2 * self._wait, _LAST_PROBE)
        self._plain_steps, self._due = 0, self._wait
        return tuple(order[:affordable])


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

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Nothing is learned."""

    def unable(self, request: RequestStats) -> None:
        """Nothing is learned."""

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Nothing is learned."""

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        return True


def _probability(p: float) -> float:
    """A product of float32 probabilities, which may be a little above 1. What is no probability counts as 0."""
    return min(p, 1.0) if 0 <= p < 1.001 else 0.0


def _counts(requests: int) -> list[int]:
    """How many requests may draft: powers of two, and all."""
    return sorted({requests, *(1 << k for k in range(requests.bit_length()))} - {0})
