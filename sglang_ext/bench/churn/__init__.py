"""`churn`: thousands of random requests at once, and the contract of think budgets checked on every answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from itertools import repeat
from typing import Any

import aiohttp
from tqdm import tqdm  # type: ignore[import-untyped]

from .. import BenchError, Violated, common
from ..load import READ_BUFFER, Target
from ..options import whole
from ..record import Record, Run, read
from ..report import Page, Table
from .answers import Answer, Ask
from .asks import Maker
from .client import send
from .contract import check as violations
from .placing import Seen
from .prompts import prompts
from .served import Served, advertised
from .state import faults, info, settled, state

HELP = "random requests of every kind at once, every answer checked against the contract"
QUICK = {"requests": 300, "concurrency": 32}
FULL = {"requests": 5000, "concurrency": 256}
MAX_TOKENS = 96
SHOWN = 10
"""Violations that are printed; the results have all."""
OUTCOMES = ("natural", "grace", "forced", "eos", "implicit", "loop", "deadline", "asked", "open", "none")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser, peers=False)
    common.add_load_flags(parser, answers=False, max_tokens=MAX_TOKENS)
    parser.add_argument("--requests", type=whole(1), metavar="N", help="requests in all (default: 5000; quick: 300)")
    parser.add_argument("--concurrency", type=whole(1), metavar="N",
                        help="requests at a time (default: 256; quick: 32)")
    parser.add_argument("--first", type=whole(0), default=0, metavar="N",
                        help="number of the first request, which with the seed says what it is (default: 0)")
    parser.add_argument("--tokenizer", metavar="PATH", help="of the served model (default: as the server names it)")


def check(args: argparse.Namespace) -> None:
    """Nothing that argparse does not see."""


def measure(args: argparse.Namespace, record: Run) -> None:
    """Send the requests and check what comes back.

    Raises:
        Violated: an answer breaks the contract, or something of a request is left in the server.
    """
    with common.server(args, record) as target:
        about = info(target.url, target.headers)
        advertised(about)
        tokenizer = _tokenizer(args.tokenizer or about.get("tokenizer_path"))
        served = Served.of(about, tokenizer)
        maker = Maker(served, target.model, prompts(served, tokenizer, args.dataset, args.seed), args.max_tokens,
                      args.seed, args.extra_body)
        before, begin = state(target.url, target.headers), time.perf_counter()
        run = Churn(target, maker, record)
        asyncio.run(run.all(range(args.first, args.first + args.requests), args.concurrency))
        seconds, after = time.perf_counter() - begin, settled(target.url, target.headers)
        left = list(faults(before, after))
    record.add("run end", seconds=seconds, before=asdict(before), after=asdict(after), left=left,
               undecided=run.seen.undecided)
    print("\n".join([*(f"violation: {fault}" for fault in left), line(numbers(read(record.folder)))]), file=sys.stderr,
          flush=True)
    if run.broken or left:
        raise Violated(f"{run.broken} of {args.requests} requests break the contract"
                       + "".join(f"; {fault}" for fault in left) + f"; each is in {record.path}")


def _tokenizer(path: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, TypeError) as error:
        raise BenchError(f"--tokenizer: {path!r} cannot be loaded ({str(error).splitlines()[0][:200]}); accepted: the "
                         "folder or name of the served model's tokenizer") from None


class Churn:
    """A run that goes on.

    Attributes:
        broken: requests whose answer broke the contract.
    """

    def __init__(self, target: Target, maker: Maker, record: Run) -> None:
        self.target, self.maker, self.record = target, maker, record
        self.seen, self.broken = Seen(closing=maker.served.closing), 0

    async def all(self, numbers: range, concurrency: int) -> None:
        """Send all requests, so many at a time."""
        waiting = iter(numbers)
        timeout = aiohttp.ClientTimeout(total=self.target.timeout)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=READ_BUFFER, headers=dict(self.target.headers),
                                         connector=aiohttp.TCPConnector(limit=0)) as session:
            with tqdm(total=len(numbers), desc="churn", unit="req", leave=False) as bar:

                async def some() -> None:
                    for number in waiting:
                        await self.one(session, number)
                        bar.set_postfix(violations=self.broken, refresh=False)
                        bar.update()

                async with asyncio.TaskGroup() as group:
                    for _ in repeat(None, min(concurrency, len(numbers))):
                        group.create_task(some())

    async def one(self, session: aiohttp.ClientSession, number: int) -> None:
        """Send one request, check the answer, note it."""
        ask, sent = self.maker.ask(number), time.perf_counter()
        answer = await send(session, self.target.url, ask)
        found = violations(self.maker.served, ask, answer, self.seen)
        thinks = [choice.think for choice in answer.choices if choice.think]
        self.record.add("answer", number=number, path=ask.path, kind=ask.kind, status=answer.status,
                        seconds=round(time.perf_counter() - sent, 3), tokens=sum(len(c.ids) for c in answer.choices),
                        thought=sum(t["tokens"] for t in thinks), forced=sum(t["forced_tokens"] for t in thinks),
                        outcomes=[t["outcome"] for t in thinks],
                        retractions=sum(choice.retractions for choice in answer.choices))
        if found:
            self.broken += 1
            self._complain(ask, answer, found)

    def _complain(self, ask: Ask, answer: Answer, found: list[str]) -> None:
        self.record.add("violation", number=ask.number, faults=found, path=ask.path, body=ask.body, kind=ask.kind,
                        answer=asdict(answer))
        if self.broken > SHOWN:
            return
        lines = [f"violation: request {ask.number} ({ask.kind}): {'; '.join(found)}", "  " + ask.curl(self.target.url),
                 "  " + json.dumps(asdict(answer), ensure_ascii=False)]
        tqdm.write("\n".join(lines), file=sys.stderr)


def page(record: Record) -> Page:
    """The report."""
    of_run, answers, broken = numbers(record), record.of("answer"), record.of("violation")
    kinds = Counter((row["path"], row["kind"]) for row in answers)
    shown = [[row["number"], row["path"], "; ".join(row["faults"]), json.dumps(row["body"])] for row in broken]
    tables = [Table("In all", ["", ""], [[k, v] for k, v in of_run.items() if not isinstance(v, dict)]),
              Table("How thinking ended", ["outcome", "responses"], [[k, v] for k, v in of_run["outcomes"].items()]),
              Table("Requests", ["endpoint", "kind", "how many"], [[*k, v] for k, v in sorted(kinds.items())])]
    if broken:
        tables.append(Table("Violations", ["request", "endpoint", "what", "body"], shown))
    return Page("Churn: the contract of think budgets under load",
                "Random requests, many at a time: whole responses and streams, aborted ones, ones whose client left, "
                "budgets in all forms and none, refused ones. Every answer is checked from its ids.",
                of_run, [], tables)


def numbers(record: Record) -> dict[str, Any]:
    """What a run was, in numbers. Memory is that of the server's processes, None where it runs elsewhere."""
    answers, ends = record.of("answer"), record.of("run end")
    outcomes = Counter(outcome for row in answers for outcome in row["outcomes"])
    end: dict[str, Any] = ends[0] if ends else {}
    seconds = end.get("seconds")

    def total(name: str) -> int:
        return sum(row[name] for row in answers)

    return {"requests": len(answers), "tokens": total("tokens"), "thought": total("thought"),
            "written": total("forced"), "retractions": total("retractions"),
            "violations": len(record.of("violation")), "left": end.get("left", []), "undecided": end.get("undecided"),
            "seconds": seconds, "requests_per_second": len(answers) / seconds if seconds else None,
            "memory_before_mib": end.get("before", {}).get("memory_mib"),
            "memory_after_mib": end.get("after", {}).get("memory_mib"),
            "outcomes": {name: outcomes[name] for name in OUTCOMES if name in outcomes},
            "statuses": dict(Counter(row["status"] for row in answers))}


def line(of_run: dict[str, Any]) -> str:
    """A run in one line."""
    outcomes = ", ".join(f"{name} {count}" for name, count in of_run["outcomes"].items())
    return (f"{of_run['requests']} requests, {of_run['tokens']} tokens ({of_run['thought']} thought, "
            f"{of_run['written']} written); {outcomes}; {of_run['retractions']} retractions; "
            f"{of_run['violations']} violations, {of_run['undecided']} not decided; "
            f"{of_run['requests_per_second']:.1f} requests/s; memory of the server in MiB: "
            f"{of_run['memory_before_mib']} before, {of_run['memory_after_mib']} after")
