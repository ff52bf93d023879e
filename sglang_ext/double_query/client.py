"""The calls themselves, over httpx: in a thread, or in an event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Self

import httpx

from .request import Endpoint, Query, Response
from .session import Session
from .wire import Call, Event, Lines, Reply, ServerError, body_of


class _Run:
    """What both kinds of stream share."""

    def __init__(self, endpoint: Endpoint, query: Query, streamed: bool) -> None:
        self._endpoint = endpoint
        self._session = Session(endpoint, query)
        self._streamed = streamed
        self._response: Response | None = None

    @property
    def response(self) -> Response:
        """All pieces as one response, once they have been read to the end."""
        if self._response is None:
            raise RuntimeError("the response is there when its last piece has been read")
        return self._response

    def _request(self, call: Call) -> dict[str, Any]:
        """Arguments of an httpx request."""
        return {"method": "POST", "url": self._endpoint.address, "headers": dict(self._endpoint.headers),
                "json": body_of(self._endpoint, self._session.query, call, self._streamed),
                "timeout": self._endpoint.timeout}

    def _whole(self, response: httpx.Response) -> Event:
        """The reply to a call that is not streamed."""
        _check(response)
        try:
            message = response.json()
        except json.JSONDecodeError:
            raise ServerError(response.status_code, response.text) from None
        return Reply(self._endpoint).read(message, response.status_code)


def _check(response: httpx.Response) -> None:
    if response.status_code != httpx.codes.OK:
        raise ServerError(response.status_code, response.text)


class Stream(_Run):
    """Pieces of text in order; `response` after the last one. Closing it, or leaving its `with`, drops the request.

    Raises:
        ValueError: by the constructor, for a value that is not accepted. Iterating raises as `double_query` does.
    """

    def __init__(self, endpoint: Endpoint, query: Query, client: httpx.Client | None = None,
                 streamed: bool = True) -> None:
        super().__init__(endpoint, query, streamed)
        self._client = client
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; the server drops the request."""
        self._pieces.close()

    def _run(self) -> Generator[str, None, None]:
        session = self._session
        with ExitStack() as stack:
            client = self._client or stack.enter_context(httpx.Client())
            while (call := session.next_call()) is not None:
                if piece := session.take():  # what was forced
                    yield piece
                with ExitStack() as reply:
                    for event in self._events(client, call, reply):
                        session.feed(event)
                        if piece := session.take():
                            yield piece
                        if session.enough:
                            break
                session.end_call()
            if piece := session.take():
                yield piece
        self._response = session.response()

    def _events(self, client: httpx.Client, call: Call, stack: ExitStack) -> Iterator[Event]:
        request = self._request(call)
        if not self._streamed:
            yield self._whole(client.request(**request))
            return
        response = stack.enter_context(client.stream(**request))
        if response.status_code != httpx.codes.OK:
            response.read()
        _check(response)
        lines, reply = Lines(), Reply(self._endpoint)
        for data in response.iter_bytes():
            for message in lines.feed(data):
                yield reply.read(message)


class AsyncStream(_Run):
    """As `Stream`, for an event loop. A task that is cancelled while reading drops the request too."""

    def __init__(self, endpoint: Endpoint, query: Query, client: httpx.AsyncClient | None = None,
                 streamed: bool = True) -> None:
        super().__init__(endpoint, query, streamed)
        self._client = client
        self._pieces = self._run()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading; the server drops the request."""
        await self._pieces.aclose()

    async def _run(self) -> AsyncGenerator[str, None]:
        session = self._session
        async with AsyncExitStack() as stack:
            client = self._client
            if client is None:
                client = await stack.enter_async_context(httpx.AsyncClient())
            while (call := session.next_call()) is not None:
                if piece := session.take():
                    yield piece
                async with AsyncExitStack() as reply:
                    async for event in self._events(client, call, reply):
                        session.feed(event)
                        if piece := session.take():
                            yield piece
                        if session.enough:
                            break
                session.end_call()
            if piece := session.take():
                yield piece
        self._response = session.response()

    async def _events(self, client: httpx.AsyncClient, call: Call, stack: AsyncExitStack) -> AsyncIterator[Event]:
        request = self._request(call)
        if not self._streamed:
            yield self._whole(await client.request(**request))
            return
        response = await stack.enter_async_context(client.stream(**request))
        if response.status_code != httpx.codes.OK:
            await response.aread()
        _check(response)
        lines, reply = Lines(), Reply(self._endpoint)
        async for data in response.aiter_bytes():
            for message in lines.feed(data):
                yield reply.read(message)


def double_query(endpoint: Endpoint, query: Query, client: httpx.Client | None = None) -> Response:
    """Ask with a think budget, of any server.

    Args:
        client: the caller's, to share its connections among calls; threads may share one.

    Raises:
        ValueError: a value is not accepted; nothing was sent.
        ServerError: the server refused or failed; with status and body.
        httpx.HTTPError: it was not reached, or did not answer in time.
    """
    stream = Stream(endpoint, query, client, streamed=False)
    for _ in stream:
        pass
    return stream.response


async def double_query_async(endpoint: Endpoint, query: Query, client: httpx.AsyncClient | None = None) -> Response:
    """As `double_query`, in an event loop. If its task is cancelled, the connection is closed and the server drops the
    request."""
    async with AsyncStream(endpoint, query, client, streamed=False) as stream:
        async for _ in stream:
            pass
        return stream.response
