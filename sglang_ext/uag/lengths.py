"""How many tokens to draft: for each request from its acceptance, for the batch from measured times; down to none.

A round with drafts takes the draft's extension and its steps, shared by the requests that draft, and one verification
as wide as the longest draft. The plan maximises the batch's expected confirmed tokens per second, against plain steps.
Where drafting does not pay, a probe finds out now and then whether it would by now; what probes lose is kept to a share
of all time. Nothing here reads a clock: the same calls give the same plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from .acceptance import Confidence, Floats, PairAcceptance
from .acceptance import RequestStats as RequestStats
from .probes import Probes
from .step_times import Costs as Costs
from .step_times import Kind, StepTimes, bucket

_INVESTED = 32.0  # rounds, at least, over which reading what the draft missed is expected to pay
_BEST = 0.98  # acceptance at which a probe must be able to pay
_BASELINE_ROUNDS = 256  # between two plain steps that are taken only to be timed
_STILL = 8  # rounds for which a decision not to draft stands where nothing is learned
_GAIN = 1.02  # a draft must promise this much more than plain steps


@dataclass(frozen=True)
class _Choice:
    """Drafts of `length` tokens for some requests."""

    rate: float  # confirmed tokens of the batch a second
    length: int = 0
    chosen: tuple[int, ...] = ()


class LengthControl:
    """Draft lengths of one server.

    Args:
        width: widest verification, 1 + the most tokens of a draft.
        costs: what steps are guessed to take until they are measured.
        fixed: every step of the target is `width` wide, drafts or none, as where CUDA graphs have that width.

    Raises:
        ValueError: `width` below 2.
    """

    def __init__(self, width: int, costs: Costs | None = None, fixed: bool = False) -> None:
        if width < 2:
            raise ValueError(f"width {width}: accepted is 2 or more, a draft token and the one that follows it")
        self.width = width
        self._fixed = fixed
        self._times = StepTimes(costs or Costs(), width if fixed else None)
        self._pair = PairAcceptance(width - 1)
        self._confidence = Confidence()
        self._probes = Probes()
        self._longest = 1  # tokens that a draft may have; grows as drafts are accepted whole
        self._speed = 1.0  # that the last plan promised, of plain steps'
        self._round = 0
        self._batch = 1  # of the last plan
        self._still: tuple[int, tuple[int, ...]] = (0, ())  # rounds left without a look, and of which requests
        self._baseline: dict[int, tuple[int, int]] = {}  # by batch bucket: round of the next plain step, rounds between

    @property
    def off(self) -> bool:
        """Whether drafting does not pay by what is known, and would not for new requests either: the draft need not
        read their prompts. A probe reads one when enough is saved up for it."""
        if self._speed > 1:
            return False
        new = [RequestStats()] * self._batch
        survival = self._survival(new) if self._pair.seen else self._at_best(new)
        best = self._best(new, survival, np.zeros(len(new)), self._batch)
        return best.rate * self._times.of("plain", self._batch) <= _GAIN * self._batch

    def plan(self, requests: Sequence[RequestStats], batch: int | None = None) -> list[int]:
        """Tokens of the target to draft for each request in the next round; a plain step where all are 0.

        Args:
            requests: those that may draft.
            batch: requests of the target's step; more where some may not draft.
        """
        lengths = [0] * len(requests)
        if requests:
            choice = self._choose(requests, max(batch or 0, len(requests)))
            for i in choice.chosen:
                lengths[i] = choice.length
        for request, length in zip(requests, lengths, strict=True):
            request.rounds += 1
            request.alive = length > 0
            if length:
                request.behind = 0.0
            else:
                request.skip()
        return lengths

    def observe(self, request: RequestStats, proposed: int, accepted: int, confidence: Sequence[float] = (),
                asked: int | None = None) -> None:
        """Count a verified draft.

        Args:
            proposed: tokens of the target that were drafted.
            accepted: how many of them, from the first on, were accepted.
            confidence: probability that the draft gave to its text up to each of the tokens, where it is known.
            asked: tokens that the draft was to give, where it ran for them: more than `proposed` if its text ended
                early, or ended within a character, or could not be translated. The first that is missing counts as
                refused. None: as many as were proposed.

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
        self._still = 0, ()
        self._probes.observe(request, accepted == asked)
        self._pair.count(asked, accepted)
        request.count(asked, accepted)
        if accepted == asked >= self._longest:
            self._longest = min(2 * self._longest, self.width - 1)
        for j, p in enumerate(confidence[:proposed]):
            self._confidence.count(p, j < accepted)

    def unable(self, request: RequestStats) -> None:
        """A request that the plan drafts for could not begin: nothing was paid or learned, but others come first."""
        request.alive = False
        self._still = 0, ()
        request.count(1, 0)
        self._probes.cancel(request)

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> None:
        """Count the time of a step.

        Args:
            kind: `plain` and `verify` of the target, `draft_extend` over what the draft has not read, `draft_step`.
            batch: requests in it.
            width: positions a request: of `verify` its width, of `draft_extend` the new ids, on average, else 1.
        """
        first, guessed = not self._times.anything(), self._times.of("plain", 1)
        self._times.add(kind, batch, width, seconds)
        if first:
            self._probes.rescale(self._times.of("plain", 1) / guessed)

    def worth_going_on(self, survival: float, steps_done: int, batch: int) -> bool:
        """Whether a draft should take another step.

        Args:
            survival: probability that the draft gives to its text so far.
            steps_done: steps that it has taken.
            batch: requests of the target's step.
        """
        if not steps_done:
            return True
        times = self._times
        wider = times.of("verify", batch, steps_done + 2) - times.of("verify", batch, steps_done + 1)
        cost = times.of("draft_step", batch) + max(wider, 0.0)
        return self._confidence.acceptance(survival) > cost * self._speed / times.of("plain", batch)

    def _choose(self, requests: Sequence[RequestStats], batch: int) -> _Choice:
        step = self._times.of("plain", batch)
        plain = batch / step
        self._round += 1
        self._batch = batch
        self._probes.elapse(step)
        if self._probes.settle():
            self._pair.doubt()
        if self._nothing_new(requests):
            return _Choice(plain)
        best = self._best(requests, self._survival(requests), self._to_read(requests), batch)
        if best.rate <= _GAIN * plain:
            self._speed, self._longest = 1.0, 1
            probe = self._probe(requests, batch, step)
            if not probe.length:
                self._still = _STILL, tuple(map(id, requests))
            return probe
        self._speed = best.rate / plain
        if self._baseline_due(batch):
            return _Choice(plain)
        length = min(best.length, self._longest)
        return _Choice(best.rate, self._times.trusted(batch, length + 1) - 1, best.chosen)

    def _nothing_new(self, requests: Sequence[RequestStats]) -> bool:
        """Whether the last decision stands, not to draft: looking at it anew costs a share of a short step."""
        left, asked = self._still
        self._still = left - 1, asked
        return left > 0 and asked == tuple(map(id, requests))

    def _survival(self, requests: Sequence[RequestStats]) -> Floats:
        """[requests, lengths] probability that a draft is accepted up to each position."""
        rate = self._pair.rate
        return self._pair.survival(np.array([r.rate(rate) for r in requests]))

    def _at_best(self, requests: Sequence[RequestStats]) -> Floats:
        """As `_survival`, for requests whose drafts are as good as can be."""
        return self._pair.survival(np.full(len(requests), _BEST))

    def _to_read(self, requests: Sequence[RequestStats]) -> Floats:
        """[requests] ids that the draft missed, a round: they are read once, for all rounds that are still expected.
        Nothing is invested in a pair that nobody has seen."""
        return np.array([r.behind / max(_INVESTED, r.rounds) if self._pair.seen else r.behind for r in requests])

    def _baseline_due(self, batch: int) -> bool:
        """Whether a plain step is to be taken only to know what it takes: now and then, ever more rarely."""
        due, gap = self._baseline.get(bucket(batch), (self._round, 1))
        if self._fixed or not self._times.anything() or self._round < due:
            return False
        self._baseline[bucket(batch)] = self._round + gap, min(gap * 16, _BASELINE_ROUNDS)
        return True

    def _best(self, requests: Sequence[RequestStats], survival: Floats, behind: Floats, batch: int) -> _Choice:
        """The best length, for those requests where it is worth most.

        Args:
            survival: [requests, lengths] probability that a draft is accepted up to each position.
            behind: [requests] ids that the draft reads in a round besides what was confirmed.
        """
        expected = np.cumsum(survival, axis=1)  # [requests, lengths], tokens accepted
        order = self._worthwhile(expected, behind, batch)
        gains = np.cumsum(expected[order], axis=0)  # [first requests, lengths]
        slowest = np.maximum.accumulate(np.array([requests[i].steps_per_token for i in order]))
        missed = np.cumsum(behind[order])
        verify = np.array([self._times.of("verify", batch, length + 1) for length in range(1, self.width)])
        best = _Choice(0.0)
        for count in _counts(len(order)):
            gain, steps = gains[count - 1], float(slowest[count - 1])
            read = 1 + (gain * steps + missed[count - 1]) / count
            rates = (batch + gain) / (verify + self._draft_seconds(count, steps, read))
            k = int(np.argmax(rates))
            if rates[k] > best.rate:
                best = _Choice(float(rates[k]), k + 1, tuple(order[:count]))
        return best

    def _worthwhile(self, expected: Floats, behind: Floats, batch: int) -> list[int]:
        """Requests in the order of what a first token is worth, less the plain tokens of the time for reading what the
        draft missed. Those are left out for which this is more than the longest draft brings."""
        tokens = batch / self._times.of("plain", batch)  # a second
        one = self._times.of("draft_extend", 1)
        reading = np.array([self._times.of("draft_extend", 1, ceil(1 + ids)) - one if ids else 0.0 for ids in behind])
        order: list[int] = np.argsort(reading * tokens - expected[:, 0], kind="stable").tolist()
        return [i for i in order if expected[i, -1] > reading[i] * tokens]

    def _draft_seconds(self, count: int, steps_per_token: float, read: Floats) -> Floats:
        """Seconds of the draft for each length; `read` is the ids a request that it has to read first."""
        extend = [self._times.of("draft_extend", count, ceil(ids)) for ids in read.tolist()]
        steps = np.maximum(np.ceil(np.arange(1, self.width) * steps_per_token), 1)  # the first comes with the reading
        return np.array(extend) + (steps - 1) * self._times.of("draft_step", count)

    def _probe(self, requests: Sequence[RequestStats], batch: int, step: float) -> _Choice:
        """Drafts for a few requests, if they may be afforded and could pay at all."""
        probes, plain = self._probes, _Choice(batch / step)
        order = sorted(range(len(requests)), key=lambda i: -requests[i].promise)
        count, length = min(probes.count, len(order)), min(probes.length, self.width - 1)
        while not probes.affords(loss := self._seconds([requests[i] for i in order[:count]], length, batch) - step):
            if count == 1:
                return plain
            count //= 2
        could = self._best(requests, self._at_best(requests), np.zeros(len(requests)), batch)
        if could.rate <= _GAIN * plain.rate:
            return plain
        probes.start([requests[i] for i in order[:count]], loss)
        return _Choice(plain.rate, length, tuple(order[:count]))

    def _seconds(self, chosen: Sequence[RequestStats], length: int, batch: int) -> float:
        """Seconds of a round in which these have drafts of this length, all that the draft missed is read."""
        read = 1 + sum(r.behind for r in chosen) / len(chosen)
        draft = self._draft_seconds(len(chosen), max(r.steps_per_token for r in chosen), np.full(self.width - 1, read))
        return float(draft[length - 1]) + self._times.of("verify", batch, length + 1)


def _counts(requests: int) -> list[int]:
    """How many requests may draft: powers of two, and all."""
    return sorted({requests, *(1 << k for k in range(requests.bit_length()))} - {0})
