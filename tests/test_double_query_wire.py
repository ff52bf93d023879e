"""The double query's HTTP side, against replies as servers write them: streams, errors, text without ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from sglang_ext.double_query import (
    AsyncStream,
    Endpoint,
    Query,
    Response,
    ServerError,
    Stream,
    double_query,
    double_query_async,
)

PROMPT = "<|turn|><think>\n"


class Bytes(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in chunks of one byte, which cuts every line and every character."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        yield from (self.data[i : i + 1] for i in range(len(self.data)))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for byte in self:
            yield byte


def sse(*messages: Any, done: bool = True) -> httpx.Response:
    lines = [b"data: " + json.dumps(m, ensure_ascii=False).encode() + b"\n\n" for m in messages]
    return httpx.Response(200, stream=Bytes(b": comment\n\n" + b"".join(lines) + b"data: [DONE]\n\n" * done))


def generated(text: str, tokens: int, finish: str | None = None, matched: Any = None, **meta: Any) -> dict[str, Any]:
    reason = None if finish is None else {"type": finish, "matched": matched}
    return {"text": text, "output_ids": list(range(tokens)),
            "meta_info": {"completion_tokens": tokens, "finish_reason": reason, **meta}}


def chunk(text: str, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **choice}]}


def usage(tokens: int, cached: int | None = None) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens,
                                     "prompt_tokens_details": None if cached is None else {"cached_tokens": cached}}}


def client(*replies: httpx.Response | Exception) -> tuple[httpx.Client, list[Any]]:
    """A client whose server gives these replies, and the bodies it is sent."""
    queue, bodies = list(replies), []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append({"path": request.url.path, "headers": request.headers, **json.loads(request.content)})
        reply = queue.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return httpx.Client(transport=httpx.MockTransport(handle)), bodies


def ask(endpoint: Endpoint, *replies: httpx.Response | Exception, stream: bool = False, prompt: str = PROMPT,
        budget: int = 2, **query: Any) -> tuple[list[str], Response, list[Any]]:
    http, bodies = client(*replies)
    run = Stream(endpoint, Query(prompt, budget, 10, "M", **query), http, streamed=stream)
    return list(run), run.response, bodies


GENERATE = Endpoint("http://server/", headers={"Authorization": "Bearer k"})
COMPLETIONS = Endpoint("http://server", "completions", "m")


def test_cumulative_stream_of_generate() -> None:
    said, response, bodies = ask(
        GENERATE, sse(generated("a", 1), generated("a\u2028b", 2, "length")),
        sse(generated("x", 1), generated("xyz", 3, "stop", 7, cached_tokens=9)), stream=True,
        params={"temperature": 0.5, "min_tokens": 4, "stop": "##"})
    assert said == ["a", "\u2028b", "M</think>\n\n", "x", "yz"]
    assert (response.reasoning, response.answer, response.outcome) == ("a\u2028bM", "xyz", "forced")
    assert (response.think_tokens, response.completion_tokens, response.cached_tokens) == (2, 5, 9)
    assert response.token_ids is None
    assert [b["path"] for b in bodies] == ["/generate"] * 2
    assert bodies[0]["headers"]["Authorization"] == "Bearer k"
    assert bodies[0]["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 2, "min_new_tokens": 2,
                                            "stop": ["##"], "skip_special_tokens": False}
    assert bodies[1]["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 8, "min_new_tokens": 2,
                                            "stop": ["##", "<think>"], "skip_special_tokens": False}
    assert bodies[1]["text"] == PROMPT + "a\u2028bM</think>\n\n"


def test_incremental_stream_of_generate() -> None:
    """Under --incremental-streaming-output an event holds what is new."""
    second = generated("b", 2, "length")
    second["output_ids"] = [1]
    said, _, _ = ask(GENERATE, sse(generated("a", 1), second), sse(generated("x", 1, "stop")), stream=True)
    assert "".join(said) == "abM</think>\n\nx"


def test_stream_of_completions() -> None:
    said, response, bodies = ask(
        COMPLETIONS, sse(chunk("a"), chunk("b", "length", matched_stop=None), usage(2)),
        sse(chunk("x", "stop", matched_stop="##"), usage(1, cached=5)), stream=True, params={"seed": 3, "stop": "##"})
    assert "".join(said) == "abM</think>\n\nx" == response.text
    assert (response.finish_reason, response.matched_stop, response.cached_tokens) == ("stop", "##", 5)
    assert bodies[0]["model"] == "m"
    assert bodies[0]["stream_options"] == {"include_usage": True}
    assert [b["max_tokens"] for b in bodies] == [2, 8]
    assert [b["seed"] for b in bodies] == [3, 3]


def test_half_a_character_at_the_cut_is_left_out_of_text() -> None:
    said, response, bodies = ask(GENERATE, sse(generated("a", 1), generated("a\ufffd", 2, "length")),
                                 sse(generated("x", 1, "stop")), stream=True)
    assert "".join(said) == "aM</think>\n\nx" == response.text
    assert bodies[1]["text"] == PROMPT + "aM</think>\n\n"


def test_a_marker_half_written_in_text_is_completed() -> None:
    _, response, bodies = ask(GENERATE, httpx.Response(200, json=generated("a</thi", 2, "length")),
                              httpx.Response(200, json=generated("x", 1, "stop")))
    assert bodies[1]["text"] == PROMPT + "a</think>\n\n"
    assert (response.forced_text, response.outcome) == ("nk>\n\n", "forced")


def test_thinking_that_ended_within_a_call_of_text_is_not_counted() -> None:
    _, response, _ = ask(GENERATE, httpx.Response(200, json=generated("a</think>b", 5, "stop")), budget=5)
    assert (response.think_tokens, response.outcome, response.answer) == (None, "natural", "b")


def test_a_start_marker_that_a_call_stopped_at_is_put_back() -> None:
    _, response, bodies = ask(
        GENERATE, httpx.Response(200, json=generated("ab", 2, "length")),
        httpx.Response(200, json=generated("c\n", 3, "stop", "<think>")),
        httpx.Response(200, json=generated("d", 1, "length")), httpx.Response(200, json=generated("e", 1, "stop")),
        prompt="q", budget=1)
    assert [b["sampling_params"]["max_new_tokens"] for b in bodies] == [2, 8, 1, 4]
    assert response.text == "abc\n<think>dM</think>\n\ne"
    assert (response.finish_reason, response.matched_stop) == ("stop", None)


def test_completions_that_do_not_tell_what_stopped_them_are_not_stopped_at_the_marker() -> None:
    _, _, bodies = ask(COMPLETIONS, httpx.Response(200, json={**chunk("ab", "length"), "usage": usage(2)["usage"]}),
                       httpx.Response(200, json={**chunk("c", "stop"), "usage": usage(1)["usage"]}), prompt="q",
                       budget=1)
    assert "stop" not in bodies[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 503])
def test_refusal_carries_status_and_body(stream: bool, status: int) -> None:
    with pytest.raises(ServerError, match="too long") as error:
        ask(GENERATE, httpx.Response(status, json={"error": {"message": "too long"}}), stream=stream)
    assert (error.value.status, json.loads(error.value.body)) == (status, {"error": {"message": "too long"}})


@pytest.mark.parametrize(("reply", "part"), [
    (sse({"error": {"message": "boom", "code": 400}}), "HTTP 400"),
    (sse(generated("a", 1)), "broke off"),
    (sse(generated("a", 1, "abort")), "abort"),
    (sse({"unknown": 1}), "not a reply of generate"),
], ids=["error event", "broken off", "aborted", "unknown"])
def test_streams_that_fail(reply: httpx.Response, part: str) -> None:
    with pytest.raises(ServerError, match=part):
        ask(GENERATE, reply, stream=True)
    assert reply.is_closed


def test_completions_without_usage_or_json_are_refused() -> None:
    with pytest.raises(ServerError, match="no usage"):
        ask(COMPLETIONS, sse(chunk("a", "length")), stream=True)
    with pytest.raises(ServerError, match="gateway"):
        ask(COMPLETIONS, httpx.Response(200, text="<html>gateway"))


def test_a_server_that_returns_no_ids_is_named(demo_tokenizer: Any) -> None:
    endpoint = Endpoint("http://server", "completions", tokenizer=demo_tokenizer)
    with pytest.raises(ServerError, match="send_ids=False"):
        ask(endpoint, sse(chunk("a", "length"), usage(1)), stream=True)


def test_timeout_is_the_callers() -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask(GENERATE, httpx.ReadTimeout("late"))


def test_the_response_is_there_at_the_end_only() -> None:
    http, _ = client(sse(generated("a", 1), generated("ab", 2, "stop")))
    run = Stream(GENERATE, Query(PROMPT, 5, 10), http)
    with pytest.raises(RuntimeError, match="last piece"):
        _ = run.response
    list(run)
    assert run.response.outcome == "open"


def test_leaving_a_stream_closes_its_connection() -> None:
    reply = sse(generated("a", 1), generated("ab", 2, "stop"))
    http, _ = client(reply)
    with Stream(GENERATE, Query(PROMPT, 5, 10), http) as run:
        assert next(iter(run)) == "a"
    assert reply.is_closed


def test_cancelling_a_task_closes_its_connection() -> None:
    class Silent(Bytes):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self.data
            await asyncio.sleep(60)

    first = b"data: " + json.dumps(generated("a", 1)).encode() + b"\n\n"
    reply = httpx.Response(200, stream=Silent(first))

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply)) as http:
            got: list[str] = []

            async def read() -> None:
                async with AsyncStream(GENERATE, Query(PROMPT, 5, 10), http) as run:
                    async for piece in run:
                        got.append(piece)

            task = asyncio.create_task(read())
            while not got:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert reply.is_closed


def test_both_kinds_of_call_say_the_same() -> None:
    replies = [generated("ab", 2, "length"), generated("x", 1, "stop", cached_tokens=4)]
    http, _ = client(*(httpx.Response(200, json=r) for r in replies))
    query = Query(PROMPT, 2, 10, "M")
    plain = double_query(GENERATE, query, http)
    queue = list(replies)

    async def run() -> Response:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, json=queue.pop(0)))
        async with httpx.AsyncClient(transport=transport) as asynchronous:
            return await double_query_async(GENERATE, query, asynchronous)

    assert asyncio.run(run()) == plain
    assert plain.text == "abM</think>\n\nx"
