"""A server in numbers: what rounds take and what is accepted are known, and an oracle that knows them plans best."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp, prod
from operator import mul

from sglang_ext.uag.lengths import LengthControl
from sglang_ext.uag.speed_up import RequestStats
from sglang_ext.uag.step_times import Kind

LOW, HIGH = 0.2, 0.95
"""The draft's probability of a token that it is not sure of, and of one that it is."""


@dataclass(frozen=True)
class Machine:
    """Seconds of each step.

    Attributes:
        plain: target's step of one request; each further token adds `token` of it, and beyond `full` tokens the
            step is bound by computing and grows in proportion.
        jump: more of a step over more than one position, as where one position has a kernel of its own.
        extend, step: the draft's, of one request; each further token adds `token` of an extension, `more` of a step.
        host: of every step under this control, drafts or none, as part of a plain one.
        noise: standard deviation of a step's logarithm; one step in a hundred takes 2.5 times as long besides.
        drift: so much longer takes everything in every other hundred of steps.
    """

    plain: float = 1.0
    extend: float = 0.12
    step: float = 0.1
    token: float = 0.005
    more: float = 0.005
    full: int = 10**9
    jump: float = 0.0
    host: float = 0.0
    noise: float = 0.0
    drift: float = 0.0

    def target(self, batch: int, width: int) -> float:
        tokens = batch * width
        wide = 1 + self.jump * (width > 1) + self.token * (tokens - 1)
        return self.plain * wide * max(tokens / self.full, 1)

    def draft_extend(self, batch: int, tokens: float) -> float:
        return self.extend * (1 + self.token * (batch * tokens - 1))

    def draft_step(self, batch: int) -> float:
        return self.step * (1 + self.more * (batch - 1))

    def round(self, batch: int, lengths: Sequence[int]) -> float:
        """Seconds of a step with drafts of these lengths, for requests of which the draft has read all."""
        drafting = sum(map(bool, lengths))
        if not drafting:
            return self.target(batch, 1)
        return (self.draft_extend(drafting, 2) + (max(lengths) - 1) * self.draft_step(drafting)
                + self.target(batch, max(lengths) + 1))

    def disturbed(self, seconds: float, chance: random.Random, number: int) -> float:
        """Seconds that a step takes in the round of this number, if it takes so many on a quiet machine."""
        if self.noise:
            seconds *= exp(chance.gauss(0, self.noise)) * (2.5 if chance.random() < 0.01 else 1.0)
        return seconds * (1 + self.drift * (number // 100 % 2))

    def slowness(self, rounds: int) -> float:
        """Times as long as on a quiet machine that so many rounds take."""
        disturbed = exp(self.noise**2 / 2) * 1.015 if self.noise else 1.0
        return disturbed * (1 + self.drift * sum(n // 100 % 2 for n in range(rounds)) / rounds)


GPU = Machine()
CPU = Machine(token=0.05)  # reads slowly
EXPENSIVE_DRAFT = Machine(plain=0.080, extend=0.070, step=0.050, token=0.1, more=0.1)  # as big as the target
BOUND = Machine(full=24)
SHARED_CPU = Machine(plain=0.021, extend=0.0033, step=0.0019, token=0.03, more=0.1, jump=0.2, host=0.01, noise=0.06,
                     drift=0.2)
"""As measured with a target of 135M and a draft of 2.6M parameters on two busy cores."""

Truth = Callable[[int, int], float]
"""Acceptance of a drafted token: of a request, after so many of its tokens."""


@dataclass
class Outcome:
    """Tokens and seconds of a run, over all requests."""

    tokens: int = 0
    seconds: float = 0.0
    lengths: list[list[int]] = field(default_factory=list)  # [rounds] of each request

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def serve(machine: Machine, truth: Truth, batch: int, rounds: int, seed: int = 0, width: int = 8,
          control: LengthControl | None = None, prompt: int = 0, response: int = 10**9) -> Outcome:
    """Rounds of a fixed batch under control.

    A request that has all of its `response` makes room for the next one, whose `prompt` the draft reads at once if
    drafting is on, and else before its first draft. The first prompts are read in no time, as nothing is known then.
    """
    server = Server(machine, control or LengthControl(width), batch, random.Random(seed))
    outcome = Outcome()
    if prompt:
        server.timed("draft_extend", 1, prompt, machine.draft_extend(1, prompt))
    for _ in range(rounds):
        for k in range(batch):
            if server.written[k] >= response:
                outcome.seconds += server.replace(k, prompt)
        before = sum(server.written) + server.done
        outcome.seconds += server.round(truth)
        outcome.lengths.append(server.lengths)
        outcome.tokens += sum(server.written) + server.done - before
    return outcome


class Server:
    """A batch of requests, and the control.

    The draft's probability of a token is right: of its tokens with probability p, p are accepted. The tokens of a
    request whose acceptance is a have a high probability or a low one, and a on average.
    """

    def __init__(self, machine: Machine, control: LengthControl, batch: int, chance: random.Random) -> None:
        self.machine, self.control, self.chance = machine, control, chance
        self.requests = [RequestStats() for _ in range(batch)]
        self.number = list(range(batch))  # of each request
        self.written = [0] * batch
        self.behind = [0.0] * batch
        self.lengths: list[int] = []
        self.done = self.rounds = 0

    def replace(self, k: int, prompt: int) -> float:
        """The next request in place of one. Returns seconds."""
        self.done += self.written[k]
        self.requests[k], self.number[k], self.written[k] = RequestStats(), self.number[k] + len(self.number), 0
        self.behind[k] = float(prompt)
        if not prompt or not self.control.worth_reading(prompt):
            return 0.0
        self.behind[k] = 0.0
        return self.timed("draft_extend", 1, prompt, self.machine.draft_extend(1, prompt))

    def timed(self, kind: Kind, batch: int, width: int, seconds: float) -> float:
        seconds = self.machine.disturbed(seconds, self.chance, self.rounds)
        self.control.timed(kind, batch, width, seconds)
        return seconds

    def round(self, truth: Truth) -> float:
        """One step of the target, and the draft's before it. Returns seconds."""
        self.rounds += 1
        batch = len(self.requests)
        for request, behind in zip(self.requests, self.behind, strict=True):
            request.behind = behind
        self.lengths = self.control.plan(self.requests, batch)
        drafts: list[list[float]] = [[] for _ in self.requests]  # probability of each token
        seconds = self.write(drafts, truth) if any(self.lengths) else 0.0
        width = 1 + max(map(len, drafts))
        seconds += self.timed("plain" if width == 1 else "verify", batch, width, self.machine.target(batch, width))
        for k, draft in enumerate(drafts):
            accepted = next((j for j, p in enumerate(draft) if self.chance.random() >= p), len(draft))
            self.control.observe(self.requests[k], len(draft), accepted, list(accumulate(draft, mul)))
            self.written[k] += accepted + 1
            self.behind[k] = 0.0 if draft else self.behind[k] + 1
        self.lengths = list(map(len, drafts))
        return seconds + self.machine.host * self.machine.plain

    def write(self, drafts: list[list[float]], truth: Truth) -> float:
        """Fill drafts as far as their next step pays. Returns seconds."""
        active, batch = [k for k, length in enumerate(self.lengths) if length], len(drafts)
        ids = ceil(sum(self.behind[k] + 2 for k in active) / len(active))
        seconds = self.timed("draft_extend", len(active), ids, self.machine.draft_extend(len(active), ids))
        while True:
            for k in active:
                drafts[k].append(self.certainty(truth(self.number[k], self.written[k])))
            active = [k for k in active if len(drafts[k]) < self.lengths[k]
                      and self.control.worth_going_on(prod(drafts[k]), len(drafts[k]), batch)]
            if not active:
                return seconds
            seconds += self.timed("draft_step", len(active), 1, self.machine.draft_step(len(active)))

    def certainty(self, acceptance: float) -> float:
        """The draft's probability of a token: high or low, `acceptance` on average."""
        if not LOW < acceptance < HIGH:
            return acceptance
        return HIGH if self.chance.random() < (acceptance - LOW) / (HIGH - LOW) else LOW


def expected(acceptance: float, length: int) -> float:
    return sum(acceptance**j for j in range(1, length + 1))


def best_lengths(machine: Machine, acceptance: Sequence[float], width: int) -> tuple[list[int], float]:
    """The oracle's lengths, and its tokens a second: the same length for the most promising requests."""
    batch = len(acceptance)
    order = sorted(range(batch), key=lambda k: -acceptance[k])
    best = [0] * batch, batch / machine.target(batch, 1)
    for count in range(1, batch + 1):
        for length in range(1, width):
            lengths = [length if k in order[:count] else 0 for k in range(batch)]
            tokens = batch + sum(expected(acceptance[k], length) for k in order[:count])
            speed = tokens / machine.round(batch, lengths)
            if speed > best[1]:
                best = lengths, speed
    return best


def oracle(machine: Machine, truth: Truth, batch: int, rounds: int, seed: int = 0, width: int = 8) -> Outcome:
    """Rounds of a batch under lengths that are best for the truth of the moment."""
    chance = random.Random(seed)
    written = [0] * batch
    outcome = Outcome()
    known: dict[tuple[float, ...], list[int]] = {}
    for _ in range(rounds):
        now = tuple(truth(k, written[k]) for k in range(batch))
        if now not in known:
            known[now] = best_lengths(machine, now, width)[0]
        outcome.seconds += machine.round(batch, known[now])
        for k, length in enumerate(known[now]):
            accepted = next((j for j in range(length) if chance.random() >= now[k]), length)
            written[k] += accepted + 1
            outcome.tokens += accepted + 1
    return outcome
