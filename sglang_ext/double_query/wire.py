"""The two APIs: a call as a request body, and what comes back as events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .request import MINIMUM, Endpoint, Query


class ServerError(RuntimeError):
    """The server refused a call, failed, or answered what cannot be used.

    Attributes:
        status: the HTTP status.
        body: what it said.
    """

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body:.500}")
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Call:
    """One call of the server.

    Attributes:
        prompt: ids, or a text.
        max_tokens: of this call.
        min_tokens: what is left of the query's minimum.
        stops: stop strings.
    """

    prompt: Sequence[int] | str
    max_tokens: int
    min_tokens: int
    stops: Sequence[str]


@dataclass(frozen=True)
class Event:
    """What one message of a reply adds.

    Attributes:
        ids: new ids; None where the server returns none.
        text: new text.
        tokens: tokens of the call so far; None if this message does not tell.
        finish: `stop` or `length` when the call has ended.
        matched: stop string or id; `tells_match` is whether the server reports these at all.
    """

    ids: Sequence[int] | None
    text: str
    tokens: int | None
    finish: str | None
    matched: int | str | None
    tells_match: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    think: Mapping[str, Any] | None = None  # what a server with a budget of its own says


def body_of(endpoint: Endpoint, query: Query, call: Call, stream: bool) -> dict[str, Any]:
    """The JSON body of a call."""
    generate = endpoint.api == "generate"
    given = {name: value for name, value in query.params.items() if name not in (*MINIMUM, "stop")}
    params = {
        "skip_special_tokens": False,  # a marker that is a special token has to be seen in the text
        **given,
        "max_new_tokens" if generate else "max_tokens": call.max_tokens,
        "min_new_tokens" if generate else "min_tokens": call.min_tokens or None,
        "stop": list(call.stops) or None,
    }
    params = {name: value for name, value in params.items() if value is not None}
    if generate:
        prompt = {"text": call.prompt} if isinstance(call.prompt, str) else {"input_ids": list(call.prompt)}
        return {**query.body, **prompt, "sampling_params": params, "stream": stream}
    body = {**query.body, **params, "stream": stream,
            "prompt": call.prompt if isinstance(call.prompt, str) else list(call.prompt)}
    if endpoint.model is not None:
        body["model"] = endpoint.model
    if not isinstance(call.prompt, str):
        body["return_token_ids"] = True
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


class Lines:
    """Server-sent events out of a stream of bytes: the data of each, as JSON.

    Only a line feed ends a line: JSON may hold the other separators that `str.splitlines` knows.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """What is complete with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            content = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and content != b"[DONE]":
                yield json.loads(content)


@dataclass
class Reply:
    """Reads the messages of one call's reply; `read` is fed with each in turn."""

    endpoint: Endpoint
    _ids: int = 0
    _text: int = field(default=0)

    def read(self, message: Any, status: int = 200) -> Event:
        """What a message adds.

        Raises:
            ServerError: it reports an error, or is not what the API returns.
        """
        if not isinstance(message, Mapping) or "error" in message or message.get("object") == "error":
            raise ServerError(_status(message, status), json.dumps(message, ensure_ascii=False))
        try:
            event = self._generate(message) if self.endpoint.api == "generate" else self._completions(message)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            shown = json.dumps(message, ensure_ascii=False)
            raise ServerError(status, f"not a reply of {self.endpoint.api}, {error!r}: {shown}") from None
        if event.finish not in (None, "stop", "length"):
            raise ServerError(status, json.dumps(message, ensure_ascii=False))
        return event

    def _generate(self, message: Mapping[str, Any]) -> Event:
        """Streams repeat what came before, unless the server streams increments."""
        meta = message["meta_info"]
        ids, text, tokens = message.get("output_ids"), message.get("text") or "", meta["completion_tokens"]
        if ids is None or len(ids) == tokens:
            text, self._text = text[self._text :], len(text)
            if ids is not None:
                ids, self._ids = ids[self._ids :], len(ids)
        reason = meta.get("finish_reason") or {}
        return Event(ids, text, tokens, reason.get("type"), reason.get("matched"), True, meta.get("prompt_tokens"),
                     meta.get("cached_tokens"), meta.get("think"))

    def _completions(self, message: Mapping[str, Any]) -> Event:
        usage = message.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        choice = message["choices"][0] if message["choices"] else {}
        matched = choice.get("matched_stop", choice.get("stop_reason"))
        return Event(choice.get("token_ids"), choice.get("text") or "", usage.get("completion_tokens"),
                     choice.get("finish_reason"), matched, "matched_stop" in choice or "stop_reason" in choice,
                     usage.get("prompt_tokens"), details.get("cached_tokens"), usage.get("think"))


def _status(message: Any, status: int) -> int:
    """The status that a streamed error names, as its stream has begun with 200."""
    error = message.get("error", message) if isinstance(message, Mapping) else {}
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, int) else status
