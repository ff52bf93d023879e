"""How the draft writes: watched token by token, or all steps with one wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .draft_runner import DraftRow, DraftRunner
from .draft_state import Drafting
from .lengths import FixedLengths, LengthControl
from .step_times import Kind


@dataclass
class Writer:
    """A request while its draft is written.

    Attributes:
        most: tokens of the target wanted.
        steps: of the draft, at most.
        survivals: probability of what is written, up to each token.
    """

    drafting: Drafting
    most: int
    steps: int
    written: list[int] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)

    @property
    def row(self) -> DraftRow:
        """Its place, which a writer has."""
        assert self.drafting.row is not None
        return self.drafting.row

    def add(self, token: int, chance: float) -> None:
        self.written.append(token)
        self.survivals.append(chance * (self.survivals[-1] if self.survivals else 1.0))


class Clock:
    """Marks in a device's work, and the seconds between them.

    A GPU is not waited for: its marks are events, which tell their times once something later was waited for.
    """

    def __init__(self, device: Any) -> None:
        self._gpu = torch.device(device).type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Between each mark and the next."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [a.elapsed_time(b) / 1000 if self._gpu else b - a for a, b in pairs]


class Writing:
    """Drafts of a round.

    Args:
        runner: the draft model.
        control: whether another step pays, and what is told how long they take.
        ends: the draft's ids after which nothing is written.
    """

    def __init__(self, runner: DraftRunner, control: LengthControl | FixedLengths, ends: set[int]) -> None:
        self._runner, self._control, self._ends = runner, control, ends

    def watched(self, writers: Sequence[Writer], batch: int) -> None:
        """Look at every token as it is written, and end each draft where its next step would not pay.

        Args:
            batch: requests of the target's step.
        """
        going = list(writers)
        tokens: torch.Tensor | None = None
        while going:
            clock = Clock("cpu")
            clock.mark()
            kind: Kind = "draft_extend" if tokens is None else "draft_step"
            if tokens is None:
                width, logits = self._read(going)
            else:
                width, logits = 1, self._runner.decode([w.row for w in going], tokens, 0)
                for w in going:
                    w.row.ids.append(w.written[-1])
            tokens, chances = choose(logits)
            host = zip(going, tokens.tolist(), chances.tolist(), strict=True)
            clock.mark()
            self._control.timed(kind, len(going), width, clock.seconds()[0])
            for w, token, chance in host:
                w.drafting.counts.draft_forwards += 1
                w.add(token, chance)
            keep = [i for i, w in enumerate(going) if self._goes_on(w, batch)]
            going, tokens = [going[i] for i in keep], tokens[keep]

    def unwatched(self, writers: Sequence[Writer], device: Any) -> None:
        """All the steps of every draft, and one wait for what was written."""
        for w in writers:
            w.steps = self._room(w)
        going = sorted(writers, key=lambda w: -w.steps)  # those with fewer steps drop off at the end
        clock = Clock(device)
        clock.mark()
        width, logits = self._read(going)
        tokens, chances = choose(logits)
        clock.mark()
        written, certain, sizes = [tokens], [chances], [len(going)]
        for step in range(1, going[0].steps):
            size = sum(1 for w in going if w.steps > step)
            logits = self._runner.decode([w.row for w in going[:size]], tokens[:size], step - 1)
            tokens, chances = choose(logits)
            written.append(tokens)
            certain.append(chances)
            sizes.append(size)
        clock.mark()
        ids, odds = torch.stack([torch.cat(written).double(), torch.cat(certain).double()]).cpu().split(1)
        start = 0
        for size in sizes:
            for w, token, chance in zip(going, ids[0, start : start + size].tolist(),
                                        odds[0, start : start + size].tolist(), strict=False):
                w.drafting.counts.draft_forwards += 1
                w.add(int(token), chance)
            start += size
        for w in going:
            w.row.ids += w.written[:-1]
        reading, steps = clock.seconds()
        self._control.timed("draft_extend", len(going), width, reading)
        if len(sizes) > 1:
            self._control.timed("draft_step", len(going), 1, steps / (len(sizes) - 1))

    def _read(self, writers: Sequence[Writer]) -> tuple[int, torch.Tensor]:
        """Let the draft read what it misses: how many ids a request, and logits [n, vocab]."""
        missing = [w.drafting.take_missing() for w in writers]
        return mean_length(missing), self._runner.extend([w.row for w in writers], missing)

    def _room(self, w: Writer) -> int:
        """Steps that its place has room for behind the text: the last token written needs none."""
        held = len(w.drafting.reading.draft_ids)
        if self._runner.reserve(w.row, held + w.steps - 1):
            return w.steps
        return max(min(w.steps, w.row.slots - held + 1), 1)

    def _goes_on(self, w: Writer, batch: int) -> bool:
        if len(w.written) >= w.steps or w.written[-1] in self._ends:
            return False
        return (self._control.worth_going_on(w.survivals[-1], len(w.written), batch)
                and self._runner.reserve(w.row, len(w.row.ids) + 1))


def mean_length(parts: Sequence[Sequence[int]]) -> int:
    """Ids of a part, on average, rounded up."""
    return -(-sum(map(len, parts)) // len(parts))


def choose(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row, int64, and its probability, float32; 0 where the draft computed no numbers."""
    logits = logits.float()
    top, tokens = logits.max(-1)
    return tokens, (top - logits.logsumexp(-1)).exp().nan_to_num(0.0)
