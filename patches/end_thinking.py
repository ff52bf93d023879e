"""`POST /end_thinking` and `Engine.end_thinking`: a client ends a request's thinking.

The wish goes to every scheduler, as an abort does: which of them has the request is not known here, nor which of
several tokenizer workers took it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sglang_ext.budget.kernels.layout import Outcome

from sglang_ext.budget.contract import BudgetError, ThinkBudget, check_message, shown
from sglang_ext.budget.service import current

PATH = "/end_thinking"
KEYS = ("rid", "message")
_HTTP_SERVER = "sglang.srt.entrypoints.http_server"
_TRIES, _PAUSE = 100, 0.02
"""How often, and how many seconds apart, a request is looked for that this process knows and no scheduler does: it is
still on its way."""


class UnknownRequest(LookupError):
    """No request of this id is running or waiting."""


def init_communicators(original: Callable[..., None], self: Any) -> None:
    from sglang.utils import TypeBasedDispatcher

    from .end_messages import EndThinkingReqOutput

    original(self)
    self.think_asked = {}  # number of a message: (scheduler answers to come, future of the answer)
    self.think_numbers = itertools.count()
    self._result_dispatcher += TypeBasedDispatcher([(EndThinkingReqOutput, lambda answer: _take(self, answer))])


def _take(manager: Any, answer: Any) -> None:
    """Take one scheduler's answer: the one that knows the request counts, or the last."""
    missing, future = manager.think_asked.get(answer.number, (0, None))
    if future is None:
        return
    manager.think_asked[answer.number] = missing - 1, future
    if (answer.known or missing <= 1) and not future.done():
        future.set_result(answer)


async def _ask(manager: Any, rid: str, message: str | None) -> Any:
    """Ask every scheduler once."""
    from sglang.srt.runtime_context import get_parallel

    from .end_messages import EndThinkingReqInput

    number, future = next(manager.think_numbers), asyncio.get_running_loop().create_future()
    manager.think_asked[number] = get_parallel().num_dp_ranks, future
    try:
        manager._dispatch_to_scheduler(
            EndThinkingReqInput(rid=rid, reason=Outcome.ASKED, message=message, number=number))
        return await future
    finally:
        del manager.think_asked[number]


async def end_thinking(manager: Any, rid: str, message: str | None = None) -> dict[str, Any]:
    """End a request's thinking.

    Args:
        manager: sglang's tokenizer manager.
        rid: the request's id; of a chat or completion the `id` of its response.
        message: text forced before the end marker; None: the one of the request's budget.

    Returns:
        `rid`; `done`, what that came to (`thinking.ENDING` and so on); `tokens`, of its thinking so far.

    Raises:
        BudgetError: an argument is not accepted, or the request has no think budget.
        UnknownRequest: there is no such request.
    """
    if not isinstance(rid, str) or not rid:
        raise BudgetError(f"rid: {shown(rid)} is not accepted; accepted: a request's id")
    if message is not None:
        check_message(message, "message")
        _check_ids(message)
    manager.auto_create_handle_loop()
    for _ in range(_TRIES):
        answer = await _ask(manager, rid, message)
        if answer.known or rid not in manager.rid_to_state:
            break
        await asyncio.sleep(_PAUSE)
    if not answer.known:
        raise UnknownRequest(f"rid: no request {shown(rid)} is running or waiting")
    if answer.done is None:
        raise BudgetError(f"rid: the request {shown(rid)} has no think budget, so that nothing watches its thinking; "
                          "accepted: requests with one, of no limit (-1) too")
    return {"rid": rid, "done": answer.done, "tokens": answer.tokens}


def _check_ids(message: str) -> None:
    admission = current()
    if admission.automaton is not None:
        try:
            admission.message_ids(ThinkBudget(), message)
        except BudgetError as error:
            raise BudgetError(str(error).removeprefix("think_budget.")) from None


async def _respond(request: Any) -> Any:
    """The endpoint."""
    from fastapi.responses import JSONResponse
    from sglang.srt.entrypoints.http_server import get_global_state

    try:
        body = await _body(request)
        return JSONResponse(await end_thinking(get_global_state().tokenizer_manager, **body))
    except UnknownRequest as error:
        return JSONResponse({"error": {"message": error.args[0]}}, 404)
    except BudgetError as error:
        return JSONResponse({"error": {"message": str(error)}}, 400)


async def _body(request: Any) -> dict[str, Any]:
    """The body, whose keys are those of `end_thinking`."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise BudgetError("the body is no JSON; accepted: an object with rid and message") from None
    if not isinstance(body, Mapping):
        raise BudgetError(f"{shown(body)} is no request; accepted: an object with rid and message")
    unknown = [key for key in body if key not in KEYS]
    if unknown:
        raise BudgetError(f"unknown key {shown(unknown[0])}; accepted keys: {', '.join(KEYS)}")
    return {"rid": None, **body}


def add_endpoint(app: Any) -> None:
    """Add the endpoint to sglang's application, under the rule of its other control endpoints: an administrator's key,
    or the server's, where there is one."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    if all(getattr(route, "path", None) != PATH for route in app.router.routes):
        app.add_route(PATH, auth_level(AuthLevel.ADMIN_OPTIONAL)(_respond), methods=["POST"])


def _async_end_thinking(self: Any, rid: str, message: str | None = None) -> Any:
    """See `end_thinking`; awaited where the engine's own calls are."""
    return end_thinking(self.tokenizer_manager, rid, message)


def _end_thinking(self: Any, rid: str, message: str | None = None) -> Any:
    """See `end_thinking`; also from another thread, while a call of the engine's waits for its response."""
    asked = end_thinking(self.tokenizer_manager, rid, message)
    if self.loop.is_running():
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result()
    return self.loop.run_until_complete(asked)


def add_to_servers() -> None:
    """Add the endpoint where this process serves HTTP, and the methods to `Engine`."""
    from sglang.srt.entrypoints.engine import Engine

    Engine.end_thinking, Engine.async_end_thinking = _end_thinking, _async_end_thinking
    if _HTTP_SERVER in sys.modules:
        add_endpoint(sys.modules[_HTTP_SERVER].app)
