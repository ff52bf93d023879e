"""The draft model's decode loop, for all requests of a step together.

On the CPU the host waits for each step anyway. So it looks at each token, and ends a draft where its next step would
not pay. On a GPU it launches all steps, and waits once, for all tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .draft import to_device
from .draft_pool import DraftRow
from .draft_runner import DraftRunner
from .draft_state import DraftState
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .step_times import Kind


@dataclass
class DraftSequence:
    """A request while its draft is written.

    Attributes:
        max_tokens: tokens of the target that are wanted.
        steps: most tokens that the draft writes.
        written: tokens of the draft.
        confidence: the draft's probability of its text up to each of them.
    """

    state: DraftState
    max_tokens: int
    steps: int
    written: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    @property
    def row(self) -> DraftRow:
        """Its row in the draft's pool. A sequence has one."""
        assert self.state.row is not None
        return self.state.row

    def add(self, token: int, probability: float) -> None:
        self.state.counts.draft_forwards += 1
        self.written.append(token)
        self.confidence.append(probability * (self.confidence[-1] if self.confidence else 1.0))


class DecodeLoop:
    """Writes the drafts of a step.

    Args:
        runner: the draft model.
        lengths: says whether another step pays, and is told how long steps take.
        ends: the draft's ids after which nothing is written.
        watched: whether each token is looked at as it is written.
    """

    def __init__(self, runner: DraftRunner, lengths: LengthControl | FixedLengths, ends: set[int], watched: bool
                 ) -> None:
        self._runner, self._lengths, self._ends, self._watched = runner, lengths, ends, watched

    def run(self, sequences: Sequence[DraftSequence], batch: int) -> None:
        """Write the draft of each sequence.

        Args:
            batch: requests of the target's step.
        """
        if self._watched:
            self._run_watched(sequences, batch)
        else:
            self._run_unwatched(sequences)

    def _run_watched(self, sequences: Sequence[DraftSequence], batch: int) -> None:
        active = list(sequences)
        tokens: torch.Tensor | None = None
        while active:
            start = time.perf_counter()
            kind: Kind = "draft_extend" if tokens is None else "draft_step"
            if tokens is None:
                width, logits = self._read(active)
            else:
                width, logits = 1, self._runner.decode([s.row for s in active], tokens)
                for s in active:
                    s.row.ids.append(s.written[-1])
            tokens, probabilities = greedy(logits)
            on_host = zip(active, tokens.tolist(), probabilities.tolist(), strict=True)
            self._lengths.timed(kind, len(active), width, time.perf_counter() - start)
            for s, token, probability in on_host:
                s.add(token, probability)
            kept = [i for i, s in enumerate(active) if self._continues(s, batch)]
            active, tokens = [active[i] for i in kept], tokens[kept]

    def _continues(self, s: DraftSequence, batch: int) -> bool:
        if len(s.written) >= s.steps or s.written[-1] in self._ends:
            return False
        return (self._lengths.worth_going_on(s.confidence[-1], len(s.written), batch)
                and self._runner.pool.reserve(s.row, len(s.row.ids) + 1))

    def _run_unwatched(self, sequences: Sequence[DraftSequence]) -> None:
        for s in sequences:
            s.steps = self._reserved_steps(s)
        active = sorted(sequences, key=lambda s: -s.steps)  # those with fewer steps leave at the end
        clock = Clock(self._runner.device)
        clock.mark()
        width, logits = self._read(active)
        written = [greedy(logits)]
        clock.mark()
        if active[0].steps > 1:
            inputs = self._runner.decode_inputs([s.row for s in active], active[0].steps - 1)
            for step in range(1, active[0].steps):
                size = sum(1 for s in active if s.steps > step)
                written.append(greedy(self._runner.decode_step(inputs, step - 1, written[-1][0][:size])))
        clock.mark()
        self._take(active, written)
        reading, steps = clock.seconds()
        self._lengths.timed("draft_extend", len(active), width, reading)
        if len(written) > 1:
            self._lengths.timed("draft_step", len(active), 1, steps / (len(written) - 1))

    def _take(self, active: Sequence[DraftSequence], written: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Wait for what was written: for each step, tokens and probabilities of the first sequences."""
        tokens, probabilities = (torch.cat(part).double() for part in zip(*written, strict=True))
        ids, odds = torch.stack([tokens, probabilities]).tolist()
        start = 0
        for step, _ in written:
            end = start + len(step)
            for s, token, probability in zip(active, ids[start:end], odds[start:end], strict=False):
                s.add(int(token), probability)
            start = end
        for s in active:
            s.row.ids += s.written[:-1]

    def _read(self, sequences: Sequence[DraftSequence]) -> tuple[int, torch.Tensor]:
        """Let the draft read what it lacks: by a decode step, which has a graph, where that is one id of each request.

        Returns:
            The ids a request, and logits [n, vocab] after the last ones.
        """
        missing, rows = [s.state.take_missing() for s in sequences], [s.row for s in sequences]
        if max(map(len, missing)) > 1:
            return mean_length(missing), self._runner.extend(rows, missing)
        logits = self._runner.decode(rows, to_device([ids[0] for ids in missing], self._runner.device))
        for row, ids in zip(rows, missing, strict=True):
            row.ids += ids
        return 1, logits

    def _reserved_steps(self, s: DraftSequence) -> int:
        """Steps that the pool has slots for, behind the text. The last token written needs none."""
        held = len(s.state.context.draft_ids)
        if self._runner.pool.reserve(s.row, held + s.steps - 1):
            return s.steps
        return max(min(s.steps, s.row.slots - held + 1), 1)


def mean_length(parts: Sequence[Sequence[int]]) -> int:
    """Ids of a part, on average, rounded up."""
    return -(-sum(map(len, parts)) // len(parts))


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row, int64, and its probability, float32; 0 where the draft computed no numbers."""
    logits = logits.float()
    top, tokens = logits.max(-1)
    return tokens, (top - logits.logsumexp(-1)).exp().nan_to_num(0.0)


class Clock:
    """Marks in a device's work, and the seconds between them.

    On a GPU marks are events. Nothing waits for them: their times are read after a later wait of the step.
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
