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
    self.think_asked = {}  # number of a message: (how many schedulers answer, their answers, future of these)
    self.think_numbers = itertools.count()
    self._result_dispatcher += TypeBasedDispatcher([(EndThinkingReqOutput, lambda answer: _take(self, answer))])


def _take(manager: Any, answer: Any) -> None:
    """Take one scheduler's answer."""
    missing, answers, future = manager.think_asked.get(answer.number, (0, [], None))
    if future is None:
        return
    answers.append(answer)
    if len(answers) >= missing and not future.done():
        future.set_result(answers)


async def _ask(manager: Any, rid: str, message: str | None) -> list[Any]:
    """Ask every scheduler once; return their answers."""
    from sglang.srt.runtime_context import get_parallel

    from .end_messages import EndThinkingReqInput

    number, future = next(manager.think_numbers), asyncio.get_running_loop().create_future()
    manager.think_asked[number] = get_parallel().num_dp_ranks, [], future
    try:
        manager._dispatch_to_scheduler(
            EndThinkingReqInput(rid=rid, reason=Outcome.ASKED, message=message, number=number))
        return await future  # type: ignore[no-any-return]
    finally:
        del manager.think_asked[number]


async def _asked(manager: Any, rid: str, message: str | None) -> list[Any]:
    """Ask every scheduler, once all that the id names in this process is sent to them; return their answers."""
    answers: list[Any] = []
    for _ in range(_TRIES):
        while _on_its_way(manager, rid):  # choices are not sent before their prompt is read
            await asyncio.sleep(_PAUSE)
        answers = await _ask(manager, rid, message)
        response = next((answer.response for answer in answers if answer.response is not None), None)
        if response is not None:
            return await _ask(manager, response, message)
        if any(answer.ends for answer in answers) or rid not in manager.rid_to_state:
            break
        await asyncio.sleep(_PAUSE)
    return answers


def _on_its_way(manager: Any, rid: str) -> bool:
    """Whether this process has a request that the id names, and has not sent it to a scheduler."""
    states, parts = manager.rid_to_state, (f"{rid}_{i}" for i in itertools.count())  # sglang's names of a call's parts
    known = [rid, *itertools.takewhile(states.__contains__, parts)]
    return any(not states[name].dispatched for name in known if name in states)


async def end_thinking(manager: Any, rid: str, message: str | None = None) -> dict[str, Any]:
    """End a request's thinking.

    Args:
        manager: sglang's tokenizer manager.
        rid: the request's id; of a chat or completion the `id` of its response.
        message: text forced before the end marker; None: the one of the request's budget.

    Returns:
        `rid`; `done`, what that came to (`thinking.ENDING` and so on); `tokens`, of its thinking so far. If the id
        names several choices or prompts, `choices` instead: `id`, `done` and `tokens` of each that still goes on.

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
    answers = await _asked(manager, rid, message)
    ends = [end for answer in answers for end in answer.ends]
    if not ends:
        raise UnknownRequest(f"rid: no request {shown(rid)} is running or waiting")
    if any(done is None for _, done, _ in ends):
        raise BudgetError(f"rid: the request {shown(rid)} has no think budget, so that nothing watches its thinking; "
                          "accepted: requests with one, of no limit (-1) too")
    if any(answer.several for answer in answers):
        return {"rid": rid, "choices": [{"id": own, "done": done, "tokens": tokens} for own, done, tokens in ends]}
    _, done, tokens = ends[0]
    return {"rid": rid, "done": done, "tokens": tokens}


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
