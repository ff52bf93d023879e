"""A server in numbers: what rounds take and what is accepted are known, and an oracle that knows them plans best."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from sglang_ext.uag.lengths import LengthControl, RequestStats


@dataclass(frozen=True)
class Machine:
    """Seconds of each step.

    Attributes:
        plain: target's step of one request; each further token adds `token` of it, and beyond `full` tokens the
            step is bound by computing and grows in proportion.
        extend, step: the draft's, of one request; each further token adds `token` of an extension, `more` of a step.
    """

    plain: float = 1.0
    extend: float = 0.12
    step: float = 0.1
    token: float = 0.005
    more: float = 0.005
    full: int = 10**9

    def target(self, batch: int, width: int) -> float:
        tokens = batch * width
        return self.plain * (1 + self.token * (tokens - 1)) * max(tokens / self.full, 1)

    def draft_extend(self, batch: int, tokens: float) -> float:
        return self.extend * (1 + self.token * (batch * tokens - 1))

    def draft_step(self, batch: int) -> float:
        return self.step * (1 + self.more * (batch - 1))

    def round(self, batch: int, lengths: Sequence[int], behind: Sequence[float]) -> float:
        drafting = [k for k, length in enumerate(lengths) if length]
        if not drafting:
            return self.target(batch, 1)
        longest = max(lengths)
        return (self.draft_extend(len(drafting), sum(behind[k] + 2 for k in drafting) / len(drafting))
                + (longest - 1) * self.draft_step(len(drafting)) + self.target(batch, longest + 1))


GPU = Machine()
CPU = Machine(token=0.05)  # reads slowly
EXPENSIVE_DRAFT = Machine(plain=0.080, extend=0.070, step=0.050, token=0.1, more=0.1)  # as big as the target
BOUND = Machine(full=24)

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
    control = control or LengthControl(width)
    chance = random.Random(seed)
    requests = [RequestStats() for _ in range(batch)]
    number = list(range(batch))
    written = [0] * batch
    behind = [0.0] * batch
    outcome = Outcome()
    if prompt:
        read_prompt(control, machine, prompt)
    for _ in range(rounds):
        for k in range(batch):
            if written[k] >= response:
                requests[k], number[k], written[k] = RequestStats(), number[k] + batch, 0
                behind[k] = float(prompt)
                if not control.off:
                    outcome.seconds += read_prompt(control, machine, prompt)
                    behind[k] = 0.0
            requests[k].behind = behind[k]
        lengths = control.plan(requests, batch)
        outcome.lengths.append(lengths)
        outcome.seconds += machine.round(batch, lengths, behind)
        tell(control, machine, lengths, behind)
        for k, length in enumerate(lengths):
            accepted = accept(chance, truth(number[k], written[k]), length)
            written[k] += accepted + 1
            behind[k] = 0.0 if length else behind[k] + 1
            control.observe(requests[k], length, accepted)
            outcome.tokens += accepted + 1
    return outcome


def read_prompt(control: LengthControl, machine: Machine, prompt: int) -> float:
    seconds = machine.draft_extend(1, prompt)
    control.timed("draft_extend", 1, prompt, seconds)
    return seconds


def tell(control: LengthControl, machine: Machine, lengths: Sequence[int], behind: Sequence[float]) -> None:
    batch, drafting = len(lengths), [k for k, length in enumerate(lengths) if length]
    if not drafting:
        control.timed("plain", batch, 1, machine.target(batch, 1))
        return
    tokens = ceil(sum(behind[k] + 2 for k in drafting) / len(drafting))
    control.timed("draft_extend", len(drafting), tokens, machine.draft_extend(len(drafting), tokens))
    for _ in range(max(lengths) - 1):
        control.timed("draft_step", len(drafting), 1, machine.draft_step(len(drafting)))
    control.timed("verify", batch, max(lengths) + 1, machine.target(batch, max(lengths) + 1))


def accept(chance: random.Random, acceptance: float, length: int) -> int:
    accepted = 0
    while accepted < length and chance.random() < acceptance:
        accepted += 1
    return accepted


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
            speed = tokens / machine.round(batch, lengths, [0.0] * batch)
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
        outcome.seconds += machine.round(batch, known[now], [0.0] * batch)
        for k, length in enumerate(known[now]):
            accepted = accept(chance, now[k], length)
            written[k] += accepted + 1
            outcome.tokens += accepted + 1
    return outcome
