"""The OpenAI, Anthropic and Ollama endpoints: what a request says about its thinking, under any name.

Their request models drop unknown fields in silence. So each model reads the body as the client wrote it, before it is
checked, and keeps what was found in a field of its own. The field is added before the HTTP server binds its routes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from sglang_ext.budget.contract import CEILING, BudgetError, shown
from sglang_ext.budget.effort import Share
from sglang_ext.budget.service import current
from sglang_ext.budget.spelling import Off, Wish, read, unwrapped
from sglang_ext.config import Settings

from .asked import note
from .budget_fields import with_budget
from .choices import ENDPOINT
from .hook import HookError

WISH = "think_wish"
RID = "rid"
EFFORT = "reasoning_effort"
TEMPLATE = "chat_template_kwargs"
SWITCHES: Mapping[str, bool | str] = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
"""Arguments of chat templates that turn thinking off; families differ in which one they read."""
ANTHROPIC_LEAST = 1024
"""Smallest `thinking.budget_tokens` that Anthropic's API, and with it sglang, accepts."""


def read_wish(model: Any) -> None:
    """Let a request model (pydantic) read what its requests say about their thinking.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see it.
    """
    from pydantic_core import core_schema

    fields = frozenset(model.model_fields)
    add_field(model, WISH, default=None)

    def schema(cls: type, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_before_validator_function(lambda values: _collected(values, fields), handler(source))

    model.__get_pydantic_core_schema__ = classmethod(schema)
    model.model_rebuild(force=True)


def read_named_wish(model: Any) -> None:
    """The same for a request model that has no id of its own, so that a client can give one."""
    from pydantic.fields import FieldInfo

    add_field(model, RID, default=None)
    model.model_fields[RID] = FieldInfo.from_annotated_attribute(str | None, None)
    read_wish(model)


def _collected(values: Any, fields: frozenset[str]) -> Any:
    """A request's body with its wish beside it. If thinking is switched off, the template's switches are set."""
    if isinstance(values, bytes):  # some clients of Ollama name no content type, and then nobody has read the JSON
        try:
            values = json.loads(values)
        except (ValueError, RecursionError):
            return values
    if values is None or isinstance(values, str | int | float | list):  # sglang's own checks fail on these
        raise ValueError(f"{shown(values)} is no request; accepted: a JSON object")
    if not isinstance(values, Mapping):
        return values
    try:
        values = unwrapped(values)
        wish = values.get(WISH)
        if not isinstance(wish, Wish):  # a request that another one was made into has that one's
            wish = read(values, fields)
    except BudgetError as error:
        wish = Wish(error=str(error))
    values = {**values, WISH: wish}
    if values.get("stream", True) is None:  # as sglang-router writes it; sglang's own models differ in what they take
        del values["stream"]
    if wish.off is not None and TEMPLATE in fields:
        given = values.get(TEMPLATE)
        values[TEMPLATE] = {**(given if isinstance(given, Mapping) else {}), **SWITCHES}
    return values


def add_field(model: Any, name: str, **spec: Any) -> None:
    """Add one field of any type to a model (pydantic), unless it has it. The model must then be rebuilt.

    Args:
        spec: its default, as pydantic's `Field` takes it.

    Raises:
        HookError: the HTTP server is imported already, so its routes would not see the field.
    """
    from pydantic.fields import FieldInfo

    if name in model.model_fields:
        return
    if "sglang.srt.entrypoints.http_server" in sys.modules:
        raise HookError("sglang's HTTP server was imported before sglang-ext; its routes would drop think budgets")
    model.__annotations__[name] = Any
    model.model_fields[name] = FieldInfo(annotation=Any, **spec)


def check_budget_tokens(model: Any) -> None:
    """Anthropic's `thinking` takes "2048" and true for integers; here they are errors, as under every other name."""
    from pydantic import BeforeValidator
    from pydantic.fields import FieldInfo

    annotation = Annotated[int | None, BeforeValidator(_integer_or_none)]
    model.model_fields["budget_tokens"] = FieldInfo.from_annotated_attribute(annotation, None)
    model.model_rebuild(force=True)


def _integer_or_none(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{shown(value)} is no integer; accepted: an integer from {ANTHROPIC_LEAST} to {CEILING}")
    return value


@cache
def efforts() -> Mapping[str, int | Share]:
    """The operator's budgets of `reasoning_effort`."""
    return Settings.from_environment().efforts


def _budget_of_effort(request: Any) -> int | Share | None:
    """What the operator's map says to a request's effort; None if it says nothing."""
    nested = getattr(request, TEMPLATE, None)
    effort = nested.get(EFFORT) if isinstance(nested, Mapping) else None  # it wins, as in sglang's chat endpoint
    if effort is None:
        effort = getattr(request, EFFORT, None)
    reasoning = getattr(request, "reasoning", None)
    if effort is None and "effort" in getattr(reasoning, "model_fields_set", ()):
        effort = reasoning.effort
    think = getattr(request, "think", None)
    if effort is None and isinstance(think, str):
        effort = think
    return efforts().get(effort) if isinstance(effort, str) else None


def wish_of(request: Any) -> Wish:
    """What a request says about its thinking."""
    wish = getattr(request, WISH, None)
    return wish if isinstance(wish, Wish) else Wish()


def with_checked_budget(request: Any, params: dict[str, Any], templated: bool) -> dict[str, Any]:
    """Sampling parameters that carry what a request asks for.

    Args:
        templated: whether a chat template writes the prompt.

    Raises:
        BudgetError: the request is not accepted.
    """
    given = wish_of(request).given(current().limits, templated)
    if not given:
        effort = _budget_of_effort(request)
        given = [(EFFORT, effort)] if effort is not None else []
    if not given:
        return params
    if isinstance(given[0][1], Share | Off):
        return with_budget(params, given[0][1])
    return with_budget(params, current().admit(given, params.get("max_new_tokens")))


def to_sampling_params(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    params = note(self, with_checked_budget(self, original(self, *args, **kwargs), templated=True), parsed=True)
    return {**params, ENDPOINT: True}


def build_sampling_params(original: Callable[..., Any], self: Any, request: Any) -> dict[str, Any]:
    return {**with_checked_budget(request, original(self, request), templated=False), ENDPOINT: True}


def convert_to_internal_request(original: Callable[..., Any], self: Any, request: Any, *args: Any,
                                **kwargs: Any) -> Any:
    wish = wish_of(request)
    if wish.error is None and wish.off is not None:
        _switch_off(self, request)
    return original(self, request, *args, **kwargs)


def _switch_off(serving: Any, request: Any) -> None:
    """Turn thinking off in a chat request, in the way of the served family. Where the family always thinks, or the
    prompt opens a block in spite of the switch, the request gets a budget of 0 later."""
    try:
        serving.apply_reasoning_enabled(request, False)
    except ValueError:
        return


def convert_messages_request(original: Callable[..., Any], self: Any, anthropic_request: Any) -> Any:
    """An Anthropic request becomes a chat request; its wish goes along, checked under the names it has there."""
    wish = wish_of(anthropic_request)
    given = wish.given(current().limits, templated=True)
    if given and not isinstance(given[0][1], Off):
        admitted = current().admit(given, anthropic_request.max_tokens)
        wish = wish if admitted is None else replace(wish, budgets=((given[0][0], admitted),))
    chat_request = original(self, _without_sglangs_part(anthropic_request, wish))
    setattr(chat_request, WISH, wish)
    chat_request.rid = getattr(anthropic_request, RID)
    if wish.off is not None:
        chat_request.chat_template_kwargs = {**(chat_request.chat_template_kwargs or {}), **SWITCHES}
    return chat_request


def _without_sglangs_part(request: Any, wish: Wish) -> Any:
    """The request without the budget of which sglang would log that it is not enforced, and without a switch that it
    would refuse for a family that always thinks."""
    if request.thinking is None:
        return request
    if wish.off is not None:
        return request.model_copy(update={"thinking": None})
    if request.thinking.budget_tokens is None:
        return request
    return request.model_copy(update={"thinking": request.thinking.model_copy(update={"budget_tokens": None})})
