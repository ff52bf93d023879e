"""The batch's rows on the scores' device, and its state after each prefix of the sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..budget.admission import Admission
from ..budget.kernels import BudgetState, Tables
from ..budget.row import RequestRow


@dataclass(frozen=True)
class Draw:
    """What was decided about the token after a point."""

    wanted_eos: torch.Tensor  # [rows] bool, the end marker's id, if drawn, stands for EOS
    end_ids: torch.Tensor  # [rows] int64, that id


@dataclass(frozen=True)
class Point:
    """The state after a prefix of the sequences; nothing here is written again."""

    length: int
    state: BudgetState  # slot i is row i
    ended: torch.Tensor  # [rows] bool, the row's tokens are followed no more
    unpadded: torch.Tensor  # [rows, WORDS] int32, as `state.words` before the padding that the row ends in
    draw: Draw | None = None


class Rows:
    """The tables and the rows at their start, where the scores are."""

    def __init__(self, admission: Admission, requests: Sequence[RequestRow | None], device: torch.device) -> None:
        automaton = admission.automaton
        assert automaton is not None
        state = BudgetState.allocate(len(requests), automaton.program, admission.stride, "cpu")
        for i, request in enumerate(requests):
            if request is not None:
                start = state.program_start(i)
                state.words[i] = torch.tensor(request.to_slot(request.words, start), dtype=torch.int32)
                state.program[start : start + len(request.program)] = torch.tensor(request.program, dtype=torch.int32)
        self.state = replace(state, words=state.words.to(device), program=state.program.to(device))
        self.tables = Tables.from_host(automaton, device)
        self.rows = torch.tensor([i if r is not None else -1 for i, r in enumerate(requests)], device=device)
        self.eos_ids = self.tables.eos_ids.long()  # [n] int64
        self.first_eos = int(automaton.eos_ids[0]) if len(automaton.eos_ids) else -1
        self._generator: torch.Generator | None = None

    def start(self, length: int) -> Point:
        """The point after the prompts, `length` tokens each."""
        ended = torch.zeros_like(self.rows, dtype=torch.bool)
        return Point(length, self.state, ended, self.state.words)

    def uniform(self, n: int) -> torch.Tensor:
        """[n, 1] float32 in [0, 1), from a generator of our own: torch's, on which the draws of the rows without a
        budget depend, is only looked at once, for a seed."""
        where = self.rows.device
        if self._generator is None:
            with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
                seed = int(torch.randint(2**62, (), device=where))
            self._generator = torch.Generator(where).manual_seed(seed)
        return torch.rand(n, 1, device=where, generator=self._generator)
