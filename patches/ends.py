"""`Scheduler`: ends that are asked for come to their requests.

A client's wish comes as a control message, like an abort: every rank of every scheduler gets it. Deadlines are looked
at where sglang looks at its own timeouts, on the one rank that receives requests, and travel with what that rank
received: all ranks act on them in the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from sglang_ext.budget.kernels.layout import Outcome

from sglang_ext.budget.contract import ARRIVAL
from sglang_ext.budget.ends import End

from . import choices
from .thinking import deadlines

_requests: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Requests of this scheduler, by their id."""


def note_request(req: Any, arrived: Any) -> None:
    """Know a new request by its id, and its deadline.

    Args:
        arrived: when it came to the server, in seconds since the epoch, which is one clock on all machines.
    """
    _requests[req.rid] = req
    think = req.think
    if think is None or think.budget.seconds is None or think.budget.since != ARRIVAL or think.overdue:
        return
    waited = max(0.0, time.time() - arrived) if isinstance(arrived, float) else 0.0
    deadlines.add(time.perf_counter() + think.budget.seconds - waited, req)


def init_request_dispatcher(original: Callable[..., None], self: Any) -> None:
    from sglang.utils import TypeBasedDispatcher

    from .end_messages import EndThinkingReqInput

    original(self)
    self._request_dispatcher += TypeBasedDispatcher([(EndThinkingReqInput, _end_thinking)])


def poll_timeout_aborts(original: Callable[..., list[Any]], self: Any) -> list[Any]:
    aborts = original(self)
    late = deadlines.due(time.perf_counter(), _is_to_be_told)
    if not late:
        return aborts
    from .end_messages import EndThinkingReqInput

    return [*aborts, *(EndThinkingReqInput(rid=req.rid, reason=Outcome.DEADLINE) for req in late)]


def _is_to_be_told(req: Any) -> bool:
    return not req.think.overdue and not req.finished()


def _end_thinking(message: Any) -> Any:
    """Ask for the ends; return the answer, None where nobody waits for one."""
    from .end_messages import EndThinkingReqOutput

    answer = partial(EndThinkingReqOutput, rid=message.rid, number=message.number)
    own = [req for req in [_requests.get(message.rid)] if req is not None and _goes_on(req)]
    others = choices.named(message.rid)
    if message.number >= 0 and own and own[0].think_response is not None:
        return answer(ends=[], response=own[0].think_response)
    reqs = own or [req for req in others or () if _goes_on(req)]
    end = End(Outcome(message.reason), message.message)
    found = [(req.rid, req.think.ask(end) if req.think is not None else None,
              req.think.result()["tokens"] if req.think is not None else 0) for req in reqs]
    return answer(ends=found, several=not own and others is not None) if message.number >= 0 else None


def _goes_on(req: Any) -> bool:
    return not req.finished() and req.to_finish is None
