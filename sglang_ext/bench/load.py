"""Send a load to a chat endpoint and hand back a row per response, as each one ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
from tqdm import tqdm  # type: ignore[import-untyped]

from . import BenchError
from .in_force import OURS, demand
from .options import UNLIMITED, spelled
from .stream import Stream
from .workload import CHECKS, Task

READ_BUFFER = 10 << 20
"""Bytes, as in sglang's own client: a slow reader would else hold back a stream."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """One request of a load."""

    task: Task
    budget: int = UNLIMITED
    tenant: str = ""
    max_tokens: int | None = None  # of this response; None is the target's


@dataclass(frozen=True)
class Target:
    """Where a load goes, and what is the same for all of its requests.

    Attributes:
        url: address without a path.
        model: name that the server serves.
        budget_field: how it spells a budget; see `options.spelled`. Ours goes into `metadata`.
        max_tokens: most tokens of a response.
        check: how an answer is compared with the right one, a key of `workload.CHECKS`.
        extra: more fields of the body.
        headers: for an API key.
        timeout: seconds that a whole response may take.
        message: stop message of the budgets; None is the server's own. Ours only.
        pieces: whether each piece tells how many tokens have come, for `pieces` of the row. Ours only.
    """

    url: str
    model: str
    budget_field: str = OURS
    max_tokens: int = 512
    check: str = "exact"
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 3600
    message: str | None = None
    pieces: bool = False

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request. Without a limit ours says so, which asks for the report; another server is told nothing."""
        limit: dict[str, Any] = {}
        if self.budget_field == OURS:
            value = ask.budget if self.message is None else {"max_tokens": ask.budget, "message": self.message}
            limit = {"metadata": {OURS: json.dumps(value)}}  # what a router passes on, and its values are strings
        elif ask.budget != UNLIMITED:
            limit = spelled(self.budget_field, ask.budget)
        base = {"model": self.model, "messages": ask.task.messages, "max_tokens": ask.max_tokens or self.max_tokens,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        if self.pieces:
            base = merged(base, {"stream_options": {"continuous_usage_stats": True}})
        return merged(merged(base, self.extra), limit)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two JSON objects as one; objects under the same name are joined, other values are the second's."""
    out = dict(base)
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
        out[name] = merged(out[name], value) if both else value
    return out


def run(target: Target, asks: Sequence[Ask], *, concurrency: int, rate: float | None = None, seed: int = 0,
        label: str = "", keep: Callable[[Row], None] = lambda row: None) -> float:
    """Send a load and wait for its end.

    Args:
        asks: the requests, in order.
        concurrency: most requests at a time.
        rate: requests a second, at random (Poisson) distances; None sends each as soon as one ends.
        seed: of those distances.
        label: of the progress bar.
        keep: called with each row as it is complete.

    Returns:
        Seconds from the first request to the last response.
    """
    return alone(_run(target, asks, concurrency, rate, Random(seed), label, keep))


async def _run(target: Target, asks: Sequence[Ask], concurrency: int, rate: float | None, rng: Random, label: str,
               keep: Callable[[Row], None]) -> float:
    slots = asyncio.Semaphore(concurrency)
    begin = time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=target.timeout)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=READ_BUFFER, headers=dict(target.headers),
                                     connector=aiohttp.TCPConnector(limit=0)) as session:
        with tqdm(total=len(asks), desc=label, unit="req", leave=False) as bar:

            async def one(ask: Ask, due: float | None) -> None:
                async with slots:
                    row = await ask_once(session, target, ask, begin, due)
                keep(row)
                bar.update()

            async with asyncio.TaskGroup() as group:
                for ask in asks:
                    due = time.perf_counter() if rate else None
                    group.create_task(one(ask, due))
                    if rate:
                        await asyncio.sleep(rng.expovariate(rate))
    return time.perf_counter() - begin


async def ask_once(session: aiohttp.ClientSession, target: Target, ask: Ask, begin: float, due: float | None) -> Row:
    """One response as a row; a failure is a row too, with `error`.

    Raises:
        BenchError: a budget of ours was asked for, and the response does not say that it was in force.

    Args:
        begin: the load's start, for `start_time`.
        due: when an open load meant to send it: a wait for a free slot counts as latency; None counts from now.
    """
    sent = time.perf_counter() if due is None else due
    stream = Stream()
    row: Row = {"budget": ask.budget, "tenant": ask.tenant, "kind": ask.task.kind, "start_time": sent - begin}
    try:
        async with session.post(target.url + "/v1/chat/completions", json=target.body(ask)) as reply:
            if reply.status != 200:
                return {**row, "error": f"{reply.status}: {(await reply.text())[:300]}"}
            async for line in reply.content:
                stream.feed(line, time.perf_counter() - sent)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return {**row, "error": f"{type(error).__name__}: {error}"[:300]}
    if target.budget_field == OURS:
        demand(ask.budget, stream.usage.get("think"))
    row |= stream.row(ask.budget, time.perf_counter() - sent)
    if target.pieces:
        row["pieces"] = [(sent - begin + at, count) for at, count in stream.pieces]
    if ask.task.answer is not None:
        row["right"] = CHECKS[target.check]("".join(stream.answer).strip(), ask.task.answer.strip())
    return row


def alone(load: Coroutine[Any, Any, float]) -> float:
    """Run a load to its end; where its tasks cannot go on, the first one's error is raised by itself."""
    try:
        return asyncio.run(load)
    except BaseExceptionGroup as group:
        stopped = group.subgroup(BenchError)
        if stopped is None:
            raise
        raise stopped.exceptions[0] from None
