"""A plugin of sglang for tests: what the host does in each step of decoding, between one batch and the next.

Each iteration of the scheduler's loop is a line of the file `$STEP_COUNTER`: requests, whether a draft was verified,
operators that torch dispatched in all and outside the model's forward, and seconds of the thread. Where operators are
counted (`$STEP_COUNTER_OPERATORS`), the seconds are those of counting too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

FILE, OPERATORS = "STEP_COUNTER", "STEP_COUNTER_OPERATORS"


@dataclass(frozen=True)
class Step:
    """An iteration in which the target decoded.

    Attributes:
        requests: of the batch.
        drafted: whether some request had a draft.
        operators: how many were dispatched.
        outside: names of those outside the model's forward, in order.
        seconds: of the scheduler's thread.
    """

    requests: int
    drafted: bool
    operators: int
    outside: list[str]
    seconds: float


def plugin(folder: Path, file: Path, operators: bool = True) -> dict[str, str]:
    """Variables of a server with this plugin.

    Args:
        folder: empty, where the plugin's metadata is written.
        file: where the server writes its steps.
    """
    metadata = folder / "step_counter-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: step-counter\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nstep_counter = step_counter:register\n")
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, Path(__file__).parent))),
            "SGLANG_PLUGINS": "sglang_ext,step_counter", FILE: str(file), OPERATORS: str(int(operators))}


def steps(file: Path) -> list[Step]:
    """The decoding steps of a server, in order."""
    return [Step(**json.loads(line)) for line in file.read_text().splitlines()]


class Operators(TorchDispatchMode):
    """Counts what is dispatched, in all and outside the model's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.in_model = False
        self.clear()

    def clear(self) -> None:
        self.all, self.outside = 0, list[str]()

    def model(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A forward whose operators are not counted as outside."""

        @wraps(forward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.in_model = True
            try:
                return forward(*args, **kwargs)
            finally:
                self.in_model = False

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.all += 1
        if not self.in_model:
            self.outside.append(str(func))
        return func(*args, **(kwargs or {}))


class _Loop:
    """What the plugin keeps of the scheduler's loop."""

    def __init__(self) -> None:
        self.operators = Operators()
        self.drafted, self.batch, self.began = False, None, 0.0

    def begin(self, scheduler: Any) -> None:
        """The loop begins to run."""
        model = scheduler.tp_worker.model_runner.model
        model.forward = self.operators.model(model.forward)
        if os.environ[OPERATORS] == "1":
            self.operators.__enter__()

    def end_iteration(self) -> None:
        """Write down the iteration that ends here, if it decoded."""
        now, batch, operators = time.thread_time(), self.batch, self.operators
        if batch is not None:
            step = Step(batch, self.drafted, operators.all, operators.outside, now - self.began)
            with open(os.environ[FILE], "a") as file:
                file.write(json.dumps(asdict(step)) + "\n")

    def begin_iteration(self, batch: Any, began: float) -> None:
        decodes = batch is not None and batch.forward_mode.is_decode()
        self.batch = len(batch.reqs) if decodes else None
        self.drafted, self.began = False, began


def register() -> None:
    """Called by sglang in each of its processes."""
    from sglang.srt.managers.scheduler import Scheduler

    from sglang_ext.uag.draft import Draft

    loop, next_batch, of = _Loop(), Scheduler.get_next_batch_to_run, Draft.of.__func__

    def get_next_batch_to_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not loop.began:
            loop.begin(self)
        loop.end_iteration()
        began = time.thread_time()
        loop.operators.clear()
        plan = next_batch(self, *args, **kwargs)
        loop.begin_iteration(plan.batch_to_run, began)
        return plan

    def drafts(cls: type, chains: Any, *args: Any) -> Any:
        loop.drafted |= max(map(len, chains)) > 1
        return of(cls, chains, *args)

    Scheduler.get_next_batch_to_run = get_next_batch_to_run
    Draft.of = classmethod(drafts)
