"""`double-query`: a budget inside the server against two calls from outside, direct and behind sglang-router."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx
import requests
from tqdm import tqdm  # type: ignore[import-untyped]

from ..double_query import AsyncStream, Endpoint, Query, ServerError
from . import BenchError, common, plots, servers
from .in_force import INSIDE, OURS, demand
from .load import Row, alone
from .models import resolve
from .options import UNLIMITED, choices, spelled, whole, wholes
from .record import Record, Run
from .report import Page, Plot, Table, mean, percentile
from .workload import CHECKS, Task

HELP = "a budget in the server against two calls, direct and through sglang-router"
QUICK = {"budgets": [16, 48], "requests": 48, "concurrency": 8}
FULL = {"budgets": [8, 16, 32, 48, 64], "requests": 192, "concurrency": 16}
OUTSIDE = "two calls"
ROUTER_SECONDS = 120
END = "</think>"
PLACES = ("direct", "router")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser)
    common.add_load_flags(parser)
    parser.add_argument("--budgets", type=wholes(1), metavar="N,N,...", help="budgets in tokens (default: 8 to 64)")
    parser.add_argument("--requests", type=whole(1), metavar="N", help="for each budget (default: 192; quick: 48)")
    parser.add_argument("--concurrency", type=whole(1), metavar="N", help="requests at a time (default: 16; quick: 8)")
    parser.add_argument("--places", type=choices(*PLACES), default=list(PLACES), metavar="P,P",
                        help="direct, router or both (default: both)")
    parser.add_argument("--workers", type=whole(1), default=1, metavar="N",
                        help="servers behind the router (default: %(default)s)")
    parser.add_argument("--tokenizer", metavar="PATH", help="of the model at --url: prompts are sent as token ids")
    parser.add_argument("--api", choices=("generate", "completions"), default="generate",
                        help="what --url speaks (default: %(default)s)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    if args.url and not args.tokenizer:
        raise BenchError("--tokenizer: none is given; accepted with --url: the folder of its model's tokenizer")
    if "router" in args.places and not args.url and importlib.util.find_spec("sglang_router") is None:
        raise BenchError("--places: router needs sglang-router; accepted without it: direct, or "
                         "pip install 'sglang-ext[bench]'")


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every row to `record`.

    Raises:
        BenchError: a server did not start, or did not enforce a budget.
    """
    tasks = common.tasks(args, args.requests)
    with _places(args, record) as (places, workers):
        for name, endpoint in places.items():
            _load(args, endpoint, INSIDE, args.budgets[0], common.tasks(args, args.concurrency, f"warm-up {name}"), "")
            for i, budget in enumerate(args.budgets):
                for way in (INSIDE, OUTSIDE) if i % 2 == 0 else (OUTSIDE, INSIDE):
                    label = f"{way}, {name}"
                    for url in workers:  # so that the same questions are as new to every load
                        servers.flush_cache(url)
                    keep = partial(_keep, record, label)
                    seconds = _load(args, endpoint, way, budget, tasks, label, keep)
                    record.add("load", way=label, budget=budget, seconds=seconds)


def _keep(record: Run, way: str, row: Row) -> None:
    record.add("query", way=way, **row)


@contextmanager
def _places(args: argparse.Namespace, record: Run) -> Iterator[tuple[dict[str, Endpoint], list[str]]]:
    """Where the load goes, by name: the first server itself, a router in front of all; and the servers' addresses."""
    from transformers import AutoTokenizer

    if args.url:
        record.server("server", "", servers.facts(args.url))
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        model = args.model or servers.model_name(args.url)
        yield {"direct": Endpoint(args.url, args.api, model, tokenizer)}, [args.url]
        return
    served = resolve(args.demo, args.model_path, args.server_flags)
    tokenizer = AutoTokenizer.from_pretrained(served.path)
    with ExitStack() as stack:
        urls = []
        for i in range(args.workers if "router" in args.places else 1):
            name = f"server {i + 1}"
            server = stack.enter_context(servers.serving("ours", [*served.flags, "--enable-cache-report"],
                                                         record.log(name.replace(" ", "-"))))
            record.server(name, server.command, servers.facts(server.url))
            urls.append(server.url)
        places = {"direct": Endpoint(urls[0], tokenizer=tokenizer)} if "direct" in args.places else {}
        if "router" in args.places:
            places["router"] = Endpoint(stack.enter_context(_router(urls, record)), tokenizer=tokenizer)
        yield places, urls


@contextmanager
def _router(urls: Sequence[str], record: Run) -> Iterator[str]:
    flags = ["--worker-urls", *urls, "--policy", "cache_aware", "--prometheus-port", str(servers.free_port())]
    command = [sys.executable, "-m", "sglang_router.launch_router", *flags]
    shown = f"python -m sglang_router.launch_router --policy cache_aware, {len(urls)} workers"
    with servers.process(command, record.log("router"), shown) as router:
        deadline = time.monotonic() + ROUTER_SECONDS  # it answers before it has looked at its workers
        while not _generates(router.url):
            if time.monotonic() > deadline:
                raise BenchError(f"sglang-router did not find its workers within {ROUTER_SECONDS} s")
            time.sleep(0.5)
        record.server("router", shown, {})
        yield router.url


def _generates(url: str) -> bool:
    body: dict[str, Any] = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
    return requests.post(url + "/generate", json=body, timeout=60).status_code == requests.codes.ok


def _load(args: argparse.Namespace, endpoint: Endpoint, way: str, budget: int, tasks: Sequence[Task], label: str,
          keep: Callable[[Row], None] = lambda row: None) -> float:
    """Send one load; seconds that it took."""
    return alone(_run(args, endpoint, way, budget, tasks, label, keep))


async def _run(args: argparse.Namespace, endpoint: Endpoint, way: str, budget: int, tasks: Sequence[Task], label: str,
               keep: Callable[[Row], None]) -> float:
    slots, begin = asyncio.Semaphore(args.concurrency), time.perf_counter()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits) as client:
        with tqdm(total=len(tasks), desc=f"budget {budget}, {label}" if label else "warm-up", unit="req",
                  leave=False) as bar:

            async def one(task: Task) -> None:
                async with slots:
                    keep({"budget": budget, "kind": task.kind, **await _ask(client, endpoint, args, way, budget, task)})
                bar.update()

            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(one(task))
    return time.perf_counter() - begin


async def _ask(client: httpx.AsyncClient, endpoint: Endpoint, args: argparse.Namespace, way: str, budget: int,
               task: Task) -> Row:
    """One response. Both ways take the same client and endpoint: only who ends the thinking differs."""
    query = query_of(args, way, budget, task)
    begin, ttft, answer_ttft, text = time.perf_counter(), None, None, ""
    try:
        async with AsyncStream(endpoint, query, client) as stream:
            async for piece in stream:
                text += piece
                ttft = time.perf_counter() - begin if ttft is None else ttft
                if answer_ttft is None and END in text and text.rpartition(END)[2].strip():
                    answer_ttft = time.perf_counter() - begin
            response = stream.response
    except (ServerError, httpx.HTTPError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    think = None
    if way == INSIDE and args.budget_field == OURS:
        think = dict(response.think or {})
        demand(budget, think)
    row: Row = {"ttft": ttft, "answer_ttft": answer_ttft, "latency": time.perf_counter() - begin,
                "calls": response.calls, "prompt_tokens": response.prompt_tokens,
                "cached_tokens": response.cached_tokens, "completion_tokens": response.completion_tokens,
                "empty": not response.answer.strip(), "outcome": response.outcome, "think": think}
    if task.answer is not None:
        row["right"] = CHECKS[args.check](response.answer.strip(), task.answer)
    return row


def query_of(args: argparse.Namespace, way: str, budget: int, task: Task) -> Query:
    """The budget as a limit of the client's calls, or as a parameter that the server enforces."""
    params: dict[str, Any] = {"temperature": 0, **args.extra_body}
    if way == OUTSIDE:
        return Query(task.messages, budget, args.max_tokens, params=params)
    if args.budget_field == OURS:  # labels are what a router passes on, and their values are strings
        return Query(task.messages, UNLIMITED, args.max_tokens, params=params,
                     body={"custom_labels": {OURS: str(budget)}})
    return Query(task.messages, UNLIMITED, args.max_tokens, params={**params, **spelled(args.budget_field, budget)})


def numbers(rows: Sequence[Row], seconds: float | None) -> dict[str, Any]:
    """Figures of one load. Times in seconds, lengths in tokens."""
    good = [row for row in rows if not row.get("error")]
    known = [row["right"] for row in good if row.get("right") is not None]
    return {"requests": len(rows), "failed": len(rows) - len(good),
            "requests_per_second": len(good) / seconds if seconds else None,
            **{f"{name}_p{q}": percentile((r[name] for r in good), q)
               for name in ("ttft", "answer_ttft", "latency") for q in (50, 99)},
            "calls": mean(r["calls"] for r in good),
            "cached_tokens": mean(r["cached_tokens"] for r in good if r["calls"] > 1),
            "empty": sum(r["empty"] for r in good), "right": sum(known) / len(known) if known else None}


def page(record: Record) -> Page:
    """The report."""
    rows = record.of("query")
    seconds = {(r["way"], r["budget"]): r["seconds"] for r in record.of("load")}
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    found = {way: {str(b): numbers([r for r in rows if r["way"] == way and r["budget"] == b], seconds.get((way, b)))
                   for b in budgets} for way in ways}
    out = Page("A budget in the server, and from outside by two calls",
               "The same questions with the same client; what differs is who ends the thinking. Through the router "
               "every request passes sglang-router, which sends a second call to the server that has the first in its "
               "cache.",
               {"ways": found})
    if rows:
        out.plots += [_plot(found, budgets, *spec) for spec in (
            ("answer", "Time to the first token of the answer, median", "answer_ttft_p50", "seconds"),
            ("latency", "Whole response, p99", "latency_p99", "seconds"),
            ("throughput", "Throughput", "requests_per_second", "requests a second"))]
    times = {"ttft_p50": "first token, p50", "answer_ttft_p50": "of the answer, p50", "answer_ttft_p99": "p99",
             "latency_p50": "whole response, p50", "latency_p99": "p99"}
    rest = {"requests": "requests", "failed": "failed", "requests_per_second": "requests/s", "calls": "calls, mean",
            "cached_tokens": "cached tokens of a second prompt", "empty": "empty answers", "right": "right"}
    for title, shown in (("Latency in seconds", times), ("Calls and answers", rest)):
        out.tables.append(Table(title, ["way", "budget", *shown.values()],
                                [[way, budget, *(v[k] for k in shown)] for way, of in found.items()
                                 for budget, v in of.items()]))
    out.tables += common.failures(rows)
    return out


def _plot(found: dict[str, Any], budgets: Sequence[int], name: str, title: str, key: str, unit: str) -> Plot:
    figure, (axes,) = plots.panels()
    plots.bars(axes, {way: [of[str(b)][key] for b in budgets] for way, of in found.items()})
    plots.label(axes, "budget, tokens", unit, [str(b) for b in budgets])
    plots.legend(figure, axes, 2)
    return Plot(name, title, figure)
