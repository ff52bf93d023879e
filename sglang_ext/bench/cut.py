"""`cut`: a forced end that is read in one forward, against the same one written token by token, on one server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ..serve import DEMOS
from . import common, servers
from .cut_page import BARE, ONE, STEPS, Load, page
from .load import Ask, Row, Target, run
from .options import UNLIMITED, choices, whole, wholes
from .record import Run
from .workload import Task

__all__ = ["FULL", "HELP", "QUICK", "add_flags", "check", "measure", "page"]

HELP = "ends of thinking read in one forward, and written token by token: time to the answer, throughput, neighbours"
QUICK = {"batches": [1, 16], "budgets": [16], "rounds": 1, "waves": 3}
FULL = {"batches": [1, 16, 64], "budgets": [0, 16, 32], "rounds": 3, "waves": 4}
STEPWISE = {"return_routed_experts": True}
"""A request that asks for more than its tokens is written token by token. A model without experts has none to return,
so that nothing else differs."""
MIXES = {"few cuts": 8, "many cuts": 2}
"""One request in so many has a budget."""
MOST_BUDGET = 40
LENGTHS = (70, 150)
"""Tokens of a response in a mix, from and to: so that requests end, and others begin, at different times."""
ANSWER = 40
"""Tokens that a response may have beside its thinking, where the time to the answer counts."""
LEAST = 6
"""Fewest requests of a load."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser, peers=False)
    common.add_load_flags(parser, answers=False)
    parser.add_argument("--demos", type=choices(*DEMOS), default=[], metavar="D,D",
                        help="more than one model, one after the other (default: that of --demo)")
    parser.add_argument("--batches", type=wholes(1), metavar="N,N,...",
                        help="requests at a time (default: 1,16,64; quick: 1,16)")
    parser.add_argument("--budgets", type=wholes(0), metavar="N,N,...",
                        help="budgets whose time to the answer is measured (default: 0,16,32; quick: 16)")
    parser.add_argument("--rounds", type=whole(1), metavar="N",
                        help="loads of each kind, the ways in turn, after one to warm up (3; quick: 1)")
    parser.add_argument("--waves", type=whole(2), metavar="N",
                        help="requests of a load of mixed lengths, for each at a time (4; quick: 3)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    common.tasks(args, 1)


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every load to `record`.

    Raises:
        BenchError: a server failed, or a budget was not in force.
    """
    for model in args.demos or [args.demo]:
        one = argparse.Namespace(**{**vars(args), "demo": model})
        with common.server(one, record, f"server {model}" if args.demos else "server") as target:
            ways = _ways(replace(target, pieces=True))
            for batch in args.batches:
                for kind, value, asks, chosen in _loads(args, batch):
                    _rounds(args, record, target.model, batch, (kind, value), asks, {w: ways[w] for w in chosen})


def _ways(target: Target) -> dict[str, Target]:
    return {ONE: target, STEPS: replace(target, extra={**target.extra, **STEPWISE}), BARE: replace(target, message="")}


def _loads(args: argparse.Namespace, batch: int) -> Iterator[tuple[str, Any, list[Ask], Sequence[str]]]:
    """Kind, what varies in it, requests, and the ways that are compared."""
    tasks = common.tasks(args, max(LEAST, batch), f"answer {batch}")
    for budget in args.budgets:
        yield "answer", budget, [Ask(task, budget, max_tokens=budget + ANSWER) for task in tasks], (ONE, STEPS, BARE)
    tasks = common.tasks(args, max(LEAST, args.waves * batch), f"mix {batch}")
    for name, share in MIXES.items():
        yield "mix", name, list(mixed(tasks, share, args.seed)), (ONE, STEPS)


def mixed(tasks: Sequence[Task], share: int, seed: int) -> Iterator[Ask]:
    """Requests of mixed lengths; one in `share` has a budget."""
    rng = Random(seed)
    for i, task in enumerate(tasks):
        budget, length = rng.randint(1, MOST_BUDGET), rng.randint(*LENGTHS)
        yield Ask(task, UNLIMITED if i % share else budget, max_tokens=length)


def _rounds(args: argparse.Namespace, record: Run, model: str, batch: int, of: tuple[str, Any], asks: list[Ask],
            ways: dict[str, Target]) -> None:
    """The loads of each way in turn, the order from round to round, after one that warms up, as round 0."""
    kind, value = of
    for number in range(args.rounds + 1):
        for way in (list(ways) if number % 2 else list(ways)[::-1]) if number else [ONE]:
            rows: list[Row] = []
            target = ways[way]
            if kind == "mix":  # as long as it may be, whatever the model has to say
                target = replace(target, extra={**target.extra, "ignore_eos": True})
            servers.flush_cache(target.url)
            seconds = run(target, asks, concurrency=batch, label=f"{model}, {batch} at a time, {value}: {way}",
                          keep=rows.append)
            if number:
                record.add("load", model=model, batch=batch, kind=kind, of=value, way=way, round=number,
                           **Load.of(rows, batch, seconds).row())
