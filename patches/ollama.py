"""Ollama's endpoints, `/api/chat` and `/api/generate`: `think`, budgets, and what the response says about its thinking.

sglang renders the prompt and builds the parameters inside its handlers. They run here on a view of the server that adds
the template's arguments and the budget, and keeps what the response reported.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sglang_ext.budget.contract import BudgetError

from .request_models import EFFORT, RID, SWITCHES, read_named_wish, wish_of, with_checked_budget
from .usage import RESULT_KEY


def read_generate_wish(model: Any) -> None:
    """`think` of `/api/generate` as `/api/chat` has it: a boolean or an effort."""
    from pydantic.fields import FieldInfo
    from sglang.srt.entrypoints.ollama.protocol import OllamaChatRequest

    annotation = OllamaChatRequest.model_fields["think"].annotation
    model.model_fields["think"] = FieldInfo.from_annotated_attribute(annotation, None)
    read_named_wish(model)


async def handle_chat(original: Callable[..., Any], self: Any, request: Any, raw_request: Any) -> Any:
    return await _handled(original, self, request, raw_request, templated=True)


async def handle_generate(original: Callable[..., Any], self: Any, request: Any, raw_request: Any) -> Any:
    return await _handled(original, self, request, raw_request, templated=False)


async def _handled(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any, templated: bool) -> Any:
    from fastapi import HTTPException
    from fastapi.responses import StreamingResponse

    call = _Call(serving, request, templated)
    try:
        call.check()
        response = await original(call, request, raw_request)
    except ValueError as error:  # sglang has no answer to it here
        raise HTTPException(400, str(error)) from None
    if isinstance(response, StreamingResponse):
        response.body_iterator = call.reported(response.body_iterator)
    elif call.think is not None:
        setattr(response, RESULT_KEY, call.think)
    return response


class _View:
    """An object as it is, but for what a subclass has."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Call(_View):
    """sglang's handler for the time of one request."""

    def __init__(self, serving: Any, request: Any, templated: bool) -> None:
        super().__init__(serving)
        self._request, self._templated = request, templated
        self._kind = type(serving)
        self.think: Mapping[str, Any] | None = None
        self.tokenizer_manager = _Manager(serving.tokenizer_manager, self)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._kind, name, None)
        return value.__get__(self) if callable(value) else getattr(self._inner, name)

    def check(self) -> None:
        """Raise BudgetError for a request that is not accepted, before a stream has begun."""
        self._convert_options_to_sampling_params(self._request.options)

    def _convert_options_to_sampling_params(self, options: Any = None) -> dict[str, Any]:
        params = self._inner._convert_options_to_sampling_params(options)
        most = params.get("max_new_tokens")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
            raise BudgetError(f"options.num_predict: {json.dumps(most)} is not accepted; accepted: an integer")
        return with_checked_budget(self._request, params, self._templated)

    @property
    def rid(self) -> str | None:
        """The request's id, where its client gave one."""
        return getattr(self._request, RID)  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        if wish_of(self._request).off is not None:
            return dict(SWITCHES)
        think = self._request.think
        return {EFFORT: think} if isinstance(think, str) else {}

    async def reported(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A stream whose last line tells about the thinking."""
        try:
            async for line in lines:
                yield _with_think(line, self.think) if self.think is not None else line
        except ValueError as error:
            yield json.dumps({"error": str(error)}).encode() + b"\n"


def _with_think(line: bytes, think: Mapping[str, Any]) -> bytes:
    message = json.loads(line)
    return json.dumps({**message, RESULT_KEY: think}).encode() + b"\n" if message.get("done") else line


class _Manager(_View):
    """sglang's tokenizer manager for the time of one request."""

    def __init__(self, manager: Any, call: _Call) -> None:
        super().__init__(manager)
        self._call = call
        self.tokenizer = _Tokenizer(manager.tokenizer, call)

    async def generate_request(self, obj: Any, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, Any]]:
        obj.rid = self._call.rid
        async for chunk in self._inner.generate_request(obj, *args, **kwargs):
            self._call.think = chunk.get("meta_info", {}).get(RESULT_KEY)
            yield chunk


class _Tokenizer(_View):
    """The tokenizer with the request's arguments for its chat template."""

    def __init__(self, tokenizer: Any, call: _Call) -> None:
        super().__init__(tokenizer)
        self._call = call

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        given = {"return_dict": False, **kwargs}  # 0.5.22 leaves it out, and takes the dictionary for the ids
        return self._inner.apply_chat_template(*args, **self._call.arguments(), **given)
