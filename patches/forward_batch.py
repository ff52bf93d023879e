"""`ForwardBatch.init_new`: which slots get a new row with this forward.

The host knows the requests here. What must be written is collected now. `sampling.py` writes it on the forward stream,
right before the step's logits are masked: an earlier step may still use a slot that has changed hands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang_ext.budget.kernels import ask
from sglang_ext.budget.kernels.layout import NOT_FORCING, WORDS, BudgetState, Tables, Word

from sglang_ext.budget import service
from sglang_ext.budget.ends import End

_EMPTY = [0] * WORDS
_EMPTY[Word.CURSOR] = NOT_FORCING
Holder = tuple[Any, int]
"""A request's `Thinking`, and how often the request was retracted."""


class ThinkDevice:
    """The budget's tensors beside one target model runner, and which slots hold a row, as the host knows it.

    Args:
        receives: whether requests come here without a prefill, from another server.
    """

    def __init__(self, slots: int, device: torch.device | str, receives: bool = False) -> None:
        admission = service.current()
        assert admission.automaton is not None
        self.state = BudgetState.allocate(slots, admission.automaton.program, admission.stride, device)
        self.tables = Tables.from_host(admission.automaton, device)
        self.missing = torch.tensor(admission.automaton.bytewise.missing, dtype=torch.int32).to(device)
        self.held: list[Holder | None] = [None] * slots  # whose row was last written to each slot
        self.receives = receives
        self._nodes = self.state.allocate_nodes(0, 0)

    def nodes(self, requests: int, width: int) -> torch.Tensor:
        """Room for the nodes of a verification, as `walk` takes it; it grows to the largest one."""
        if self._nodes.numel() < requests * width * WORDS:
            self._nodes = self.state.allocate_nodes(requests, width)
        return self._nodes


Sent = list[tuple[Any, End]]
"""Ends that a step takes along, each with the `Thinking` of its request."""


@dataclass
class Staged:
    """Rows to write before a step: all on the host until `flush`.

    Attributes:
        holders: [k], each slot, and whose row it gets; None: it is cleared.
        slots: [k] int64.
        words: [k, WORDS] int32.
        places: [m] int64, indices into the program.
        ids: [m] int32, what goes there.
        ends: ends asked for that the words hold, each with its request.
    """

    holders: list[tuple[int, Holder | None]]
    slots: torch.Tensor
    words: torch.Tensor
    places: torch.Tensor
    ids: torch.Tensor
    ends: Sent

    def flush(self, target: ThinkDevice) -> None:
        """Write the rows, on the current stream. Only now do the slots count as written: a batch that samples nothing
        (a prefill alone) never comes here."""
        for slot, holder in self.holders:
            target.held[slot] = holder
        state, device = target.state, target.state.words.device
        slots, words, places, ids = (
            t.to(device, non_blocking=True) for t in (self.slots, self.words, self.places, self.ids)
        )
        state.words[slots] = words
        state.program[places] = ids


def init_new(original: Callable[..., Any], cls: type, batch: Any, model_runner: Any, *args: Any, **kwargs: Any) -> Any:
    forward_batch = original(cls, batch, model_runner, *args, **kwargs)
    device = getattr(model_runner, "think_device", None)
    forward_batch.think_active = device is not None and any(getattr(r, "think", None) is not None for r in batch.reqs)
    forward_batch.think_staged = forward_batch.think_asks = None
    if device is not None:
        here = device.receives and batch.forward_mode.is_decode()
        forward_batch.think_staged = arrivals(batch, device) if here else _stage(_entering(batch, device), device)
        if not batch.forward_mode.is_target_verify():
            forward_batch.think_asks = asks(batch, device)
    return forward_batch


def arrivals(batch: Any, device: ThinkDevice) -> Staged | None:
    """Rows of decoding requests that had no prefill here: their KV came by prefill/decode disaggregation.

    The prefill server's part of the response, its first token, is replayed. Whether that was an EOS replaced by the end
    marker is not known here: such an end counts as the model's own.
    """
    return _stage([req for req in batch.reqs if device.held[int(req.kv.req_pool_idx)] != holder_of(req)], device)


@dataclass
class Asks:
    """Ends that rows on the device are asked for: all on the host until `flush`.

    Attributes:
        asks, writes: as `kernels.ask` takes them.
        ends: the same ends, each with its request.
    """

    asks: torch.Tensor
    writes: torch.Tensor
    ends: Sent

    def flush(self, target: ThinkDevice) -> None:
        """Ask the rows, on the current stream, before the step that masks them."""
        device = target.state.words.device
        ask(self.asks.to(device, non_blocking=True), self.writes.to(device, non_blocking=True), target.missing,
            target.state)


def asks(batch: Any, device: ThinkDevice) -> Asks | None:
    """Ends of this batch's requests whose rows the device has; rows that are written anew hold theirs already."""
    rows: list[list[int]] = []
    writes: list[list[int]] = []
    ends: Sent = []
    for req in batch.reqs:
        think = getattr(req, "think", None)
        if think is None or not think.unsent():
            continue
        slot = int(req.kv.req_pool_idx)
        end, wall = think.send(req)
        start, shared = device.state.program_start(slot), device.state.shared
        place = wall.place + start - shared if wall.place >= shared else wall.place
        writes += [[start + i, token, len(rows)] for i, token in enumerate(wall.program or ())]
        rows.append([slot, int(end.reason), place, int(end.standing)])
        ends.append((think, end))
    if not rows:
        return None
    pin = device.state.words.device.type == "cuda"
    return Asks(torch.tensor(rows, dtype=torch.int64, pin_memory=pin),
                torch.tensor(writes, dtype=torch.int64, pin_memory=pin).view(-1, 3), ends)


def holder_of(req: Any) -> Holder | None:
    """Who holds a slot while this request has it; None for a request without a budget."""
    think = getattr(req, "think", None)
    return None if think is None else (think, req.retraction_count)


def _entering(batch: Any, device: ThinkDevice) -> list[Any]:
    """The requests whose prefill, or a chunk of it, this batch runs.

    Every chunk writes the row anew: a chunk that is not the last one samples a token that is thrown away.
    """
    reqs: list[Any] = batch.reqs[: _prefill_rows(batch)]
    return [req for req in reqs if getattr(req, "think", None) is not None
            or device.held[int(req.kv.req_pool_idx)] is not None]


def _stage(reqs: Sequence[Any], device: ThinkDevice) -> Staged | None:
    """Rows of these requests. One without a budget clears its slot."""
    holders: list[tuple[int, Holder | None]] = []
    words: list[list[int]] = []
    places: list[int] = []
    ids: list[int] = []
    ends: Sent = []
    state = device.state
    for req in reqs:
        slot = int(req.kv.req_pool_idx)
        think = getattr(req, "think", None)
        holders.append((slot, holder_of(req)))
        if think is None:
            words.append(_EMPTY)
            continue
        row, fresh, program, end = think.entering(req)
        start = state.program_start(slot)
        words.append(row.to_slot(fresh, start))
        places += range(start, start + len(program))
        ids += program
        ends += [(think, end)] if end is not None else []
    if not holders:
        return None
    pin = state.words.device.type == "cuda"
    return Staged(
        holders,
        torch.tensor([slot for slot, _ in holders], dtype=torch.int64, pin_memory=pin),
        torch.tensor(words, dtype=torch.int32, pin_memory=pin),
        torch.tensor(places, dtype=torch.int64, pin_memory=pin),
        torch.tensor(ids, dtype=torch.int32, pin_memory=pin),
        ends,
    )


def _prefill_rows(batch: Any) -> int:
    """How many requests of a batch are in their prefill. In a mixed batch the decoding ones come last; data parallel
    attention disguises a whole decoding batch as an extend."""
    mode = batch.forward_mode
    if not mode.is_extend_without_speculative():
        return 0
    if mode.is_mixed():
        return len(batch.reqs) - len(batch.mix_running_indices_cpu)
    return 0 if batch.decoding_reqs is not None else len(batch.reqs)
