"""`launch.py` whose schedulers write down, by their own clock, when steps start and when ends are asked for.

`step_clock.py FILE [flags of launch.py]`: rank N of its schedulers appends lines of JSON to FILE.N. `read` reads them.
The schedulers have to be forked from this program, as those of a test run are.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAUNCH = Path(__file__).parent.parent / "launch.py"


@dataclass
class Clock:
    """What one rank wrote down.

    Attributes:
        steps: each step's start in seconds, and the ids of its requests.
        deadlines: each request's deadline, on the same clock.
        asked: step before which an end was asked for, the request's id and the end's reason.
    """

    steps: list[tuple[float, list[str]]] = field(default_factory=list)
    deadlines: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[int, str, int]] = field(default_factory=list)

    def steps_after(self, rid: str) -> int:
        """How many of a request's steps start after its deadline."""
        return sum(rid in rids for start, rids in self.steps if start > self.deadlines[rid])

    def steps_before(self, rid: str) -> int:
        """The other ones: the prefill among them, which brings the first token."""
        return sum(rid in rids for start, rids in self.steps if start <= self.deadlines[rid])


def read(file: Path, rank: int = 0) -> Clock:
    """What a rank has written down so far."""
    clock = Clock()
    for line in Path(f"{file}.{rank}").read_text().splitlines():
        kind, *rest = json.loads(line)
        if kind == "step":
            clock.steps.append((rest[0], rest[1]))
        elif kind == "deadline":
            clock.deadlines[rest[0]] = rest[1]
        else:
            clock.asked.append((len(clock.steps), rest[0], rest[1]))
    return clock


def write_down(file: str) -> None:
    """Put the writing around the places where sglang starts a step, and a deadline or an end is noted."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import get_parallel
    from sglang_ext.patches import thinking

    from sglang_ext.budget.ends import Deadlines

    run_batch, add, ask = Scheduler.run_batch, Deadlines.add, thinking.Thinking.ask

    def write(*values: Any) -> None:
        with Path(f"{file}.{get_parallel().tp_rank}").open("a") as lines:
            lines.write(json.dumps(values) + "\n")

    def step(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        write("step", time.perf_counter(), [req.rid for req in batch.reqs])
        return run_batch(self, batch, *args, **kwargs)

    def deadline(self: Any, when: float, request: Any) -> None:
        write("deadline", request.rid, when)
        add(self, when, request)

    def asked(self: Any, end: Any) -> str:
        write("asked", self.rid, int(end.reason))
        return ask(self, end)

    _set(Scheduler, "run_batch", step)
    _set(Deadlines, "add", deadline)
    _set(thinking.Thinking, "ask", asked)
    _name_requests(thinking.Thinking)


def _name_requests(kind: Any) -> None:
    """Let a request's budget know the request's id, from its first row on."""
    row = kind.row

    def named(self: Any, req: Any) -> Any:
        self.rid = req.rid
        return row(self, req)

    kind.rid = ""
    _set(kind, "row", named)


def _set(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


if __name__ == "__main__":
    write_down(sys.argv[1])
    sys.argv = [str(LAUNCH), *sys.argv[2:]]
    runpy.run_path(str(LAUNCH), run_name="__main__")
