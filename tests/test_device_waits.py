"""No helper of a step makes the host wait for the device, seen without one: `device_watch` looks at every operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_watch import HostWait, fake_cuda
from engine_helpers import HELPERS as ENGINE
from step_helpers import HELPERS

ALL = {**HELPERS, **ENGINE}
WAITS = {
    "a number of the host for a place": lambda x, at: x.__setitem__(at, 1.0),
    "a mask for a place": lambda x, at: x.__setitem__(x > 0, 1.0),
    "numbers for a place": lambda x, at: x.__setitem__(slice(0, 2), torch.zeros(2)),
    "places of the host": lambda x, at: x[[1, 2]],
    "a tensor of numbers": lambda x, at: torch.tensor([1, 2], device="cuda"),
    "pageable memory": lambda x, at: torch.tensor([1, 2]).to("cuda", non_blocking=True),
    "a copy that is waited for": lambda x, at: torch.tensor([1, 2], pin_memory=True).to("cuda"),
    "a number": lambda x, at: x[0].item(),
    "numbers": lambda x, at: x.tolist(),
    "a condition": lambda x, at: bool(x[0] > 0),
    "all numbers": lambda x, at: x.cpu(),
    "places that are set": lambda x, at: x.nonzero(),
    "lengths of repetition": lambda x, at: torch.repeat_interleave(x, at),
    "a choice": lambda x, at: torch.where(x > 0, x, torch.tensor(0.0)),
}


class NoKernel:
    """Stands for a kernel: what Triton does with fake tensors is another test's."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: None


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("mask", "advance", "walk", "commit"):
        monkeypatch.setattr(sys.modules[f"sglang_ext.budget.kernels.{verb}"], f"_{verb}_kernel", NoKernel())


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ALL)
def test_a_helper_of_a_step_does_not_wait(name: str) -> None:
    with fake_cuda() as watch:
        ALL[name]("cuda")()
    assert watch.waits == 0


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_seen(name: str) -> None:
    act: Callable[[torch.Tensor, torch.Tensor], Any] = WAITS[name]
    with fake_cuda():
        x, at = torch.zeros(5, device="cuda"), torch.zeros(5, dtype=torch.int64, device="cuda")
        with pytest.raises(HostWait):
            act(x, at)


def test_what_does_not_wait_passes() -> None:
    with fake_cuda(waits=1) as watch:
        x = torch.zeros(5, device="cuda")
        x[1:3] = 5.0
        x += torch.tensor(1.0)
        x.copy_(torch.ones(5).pin_memory(), non_blocking=True)
        halves = torch.tensor([1, 2, 3, 4], pin_memory=True).split(2)
        x[halves[0].to("cuda", non_blocking=True)] = torch.where(x > 0, x, -1.0)[:2]
        x.masked_fill_(x > 0, 2.0)
        assert watch.waits == 0
        x.cpu()
    assert watch.waits == 1
