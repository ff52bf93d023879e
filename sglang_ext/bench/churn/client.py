"""Send a request in its way, and read what comes back, whole or in a stream, into the same form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from .answers import Answer, Ask, Choice
from .asks import CHAT, GENERATE

DATA, DONE = b"data:", b"[DONE]"


async def send(session: aiohttp.ClientSession, url: str, ask: Ask) -> Answer:
    """One request; a connection that breaks is an answer with status 0."""
    answer = Answer()
    try:
        async with asyncio.TaskGroup() as group:
            main = group.create_task(_answer(session, url, ask, answer))
            if ask.kind in ("abort", "end"):
                await asyncio.wait([main], timeout=ask.delay)
                await (_abort if ask.kind == "abort" else _end)(session, url, ask)
    except* (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as errors:
        answer.status = 0
        answer.error = "; ".join(f"{type(error).__name__}: {error}" for error in errors.exceptions)[:300]
    return answer


async def _abort(session: aiohttp.ClientSession, url: str, ask: Ask) -> None:
    async with session.post(url + "/abort_request", json={"rid": ask.body["rid"]}) as reply:
        await reply.read()


async def _end(session: aiohttp.ClientSession, url: str, ask: Ask) -> None:
    """The request may have come to its end, or have no budget, which is refused."""
    async with session.post(url + "/end_thinking", json={"rid": ask.body["rid"]}) as reply:
        await reply.read()
        if reply.status not in (200, 400, 404):
            raise ValueError(f"/end_thinking: status {reply.status}")


async def _answer(session: aiohttp.ClientSession, url: str, ask: Ask, answer: Answer) -> None:
    async with session.post(url + ask.path, json=ask.body) as reply:
        answer.status = reply.status
        if reply.status != 200:
            answer.error = await reply.text()
        elif not ask.body.get("stream"):
            _whole(ask, await reply.json(), answer)
        else:
            await _stream(ask, reply, answer)


def _whole(ask: Ask, body: Any, answer: Answer) -> None:
    if ask.path == GENERATE:
        results = body if isinstance(body, list) else [body]
        answer.prompt = ask.body["input_ids"]
        answer.choices = [_generated(result) for result in results]
        return
    answer.usage = body["usage"]
    answer.prompt = body["choices"][0].get("prompt_token_ids") or []
    answer.choices = [_chosen(choice) for choice in body["choices"]]
    _share_out(answer)


def _generated(result: dict[str, Any]) -> Choice:
    """A choice of `/generate`."""
    meta = result["meta_info"]
    reason = meta["finish_reason"] or {}
    return Choice(result["output_ids"], result["text"], None, reason.get("type"), reason.get("matched"),
                  meta.get("think"), meta.get("reasoning_tokens"), meta.get("completion_tokens"),
                  meta.get("num_retractions", 0))


def _chosen(choice: dict[str, Any]) -> Choice:
    """A choice of a completion or a chat."""
    meta, message = choice.get("meta_info") or {}, choice.get("message")
    ids = choice["token_ids"] if message is None else choice["response_token_ids"]
    text = choice["text"] if message is None else message["content"] or ""
    reasoning = None if message is None else message.get("reasoning_content") or ""
    return Choice(ids, text, reasoning, choice["finish_reason"], choice.get("matched_stop"), meta.get("think"),
                  meta.get("reasoning_tokens"), meta.get("completion_tokens"), meta.get("num_retractions", 0))


def _share_out(answer: Answer) -> None:
    """What `usage` tells of each choice, to the choice."""
    details = (answer.usage or {}).get("completion_tokens_details") or {}
    think = (answer.usage or {}).get("think")
    thinks = [] if not think else think.get("choices", [think])
    if thinks and len(thinks) != len(answer.choices):
        answer.faults.append(f"usage.think: {len(thinks)} reports for {len(answer.choices)} responses")
        return
    for choice, told in zip(answer.choices, thinks, strict=False):
        if choice.think not in (None, told):
            answer.faults.append(f"usage.think: {told} of a response that says {choice.think}")
        choice.think = told
    if len(answer.choices) == 1:
        answer.choices[0].reasoning_tokens = details.get("reasoning_tokens", 0)


async def _events(reply: aiohttp.ClientResponse, answer: Answer) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream; one without its end, or with something behind it, is a fault."""
    done = False
    async for line in reply.content:
        line = line.strip()
        if not line.startswith(DATA):
            continue
        data = line[len(DATA) :].strip()
        if done:
            answer.faults.append(f"stream: {data[:80]!r} behind its end")
        if data == DONE:
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"error event: {event['error']}")
        yield event
    if not done:
        answer.faults.append("stream: it broke off")


async def _stream(ask: Ask, reply: aiohttp.ClientResponse, answer: Answer) -> None:
    choices: dict[int, Choice] = {}
    take = {GENERATE: _take_generated, CHAT: _take_chat}.get(ask.path, _take_completion)
    count = 0
    async for event in _events(reply, answer):
        take(event, choices, answer)
        count += 1
        if ask.kind == "leave" and count >= ask.delay:
            return
    answer.choices = [choices[index] for index in sorted(choices)]
    if ask.path == GENERATE:
        answer.prompt = ask.body["input_ids"]
        return
    if answer.usage is None:
        answer.faults.append("stream: no usage")
    _share_out(answer)


def _take_generated(event: dict[str, Any], choices: dict[int, Choice], answer: Answer) -> None:
    """Each event of `/generate` has all of the response so far."""
    index = event.get("index", 0)
    before, after = choices.get(index, Choice()), _generated(event)
    if before.finish is not None:
        answer.faults.append("stream: it goes on behind its finish")
    if after.ids[: len(before.ids)] != before.ids:
        answer.faults.append(f"stream: ids {before.ids[-8:]} were taken back")
    if not after.text.startswith(before.text.rstrip("\ufffd")) and after.finish is None:
        answer.faults.append(f"stream: text {before.text[-40:]!r} was taken back")
    choices[index] = after


def _take_completion(event: dict[str, Any], choices: dict[int, Choice], answer: Answer) -> None:
    answer.usage = event.get("usage") or answer.usage
    for part in event.get("choices") or ():
        choice = choices.setdefault(part["index"], Choice())
        answer.prompt = part.get("prompt_token_ids") or answer.prompt
        choice.ids = choice.ids + (part.get("token_ids") or [])
        _join(choice, part, part["text"], answer)


def _take_chat(event: dict[str, Any], choices: dict[int, Choice], answer: Answer) -> None:
    answer.usage = event.get("usage") or answer.usage
    for part in event.get("choices") or ():
        choice = choices.setdefault(part["index"], Choice(reasoning=""))
        delta = part.get("delta") or {}
        choice.reasoning = (choice.reasoning or "") + (delta.get("reasoning_content") or "")
        _join(choice, part, delta.get("content") or "", answer)
    told = event.get("sglext") or {}
    answer.prompt = told.get("input_ids") or answer.prompt
    for index, ids in enumerate(told.get("output_ids") or ()):
        choices.setdefault(index, Choice(reasoning="")).ids = list(ids)


def _join(choice: Choice, part: dict[str, Any], text: str, answer: Answer) -> None:
    """A piece of a choice's text, and how it finished."""
    if choice.finish is not None and text:
        answer.faults.append(f"stream: {text[:40]!r} behind its finish")
    choice.text += text
    choice.finish = part.get("finish_reason") or choice.finish
    matched = part.get("matched_stop")
    choice.matched = choice.matched if matched is None else matched
