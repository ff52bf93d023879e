"""`budget`: what a budget gives and costs, over a sweep of budgets and with tenants that have different ones."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from . import common, plots
from .load import Ask, Row, Target, run
from .options import UNLIMITED, positive, tenants, whole, wholes
from .record import Record, Run
from .report import Page, Plot, Table, mean, percentile
from .workload import Task

HELP = "latency, throughput, outcomes and answers over a sweep of budgets"
QUICK = {"budgets": [0, 16, 32, 48, 64, UNLIMITED], "requests": 96, "concurrency": 16}
FULL = {"budgets": [0, 8, 16, 24, 32, 48, 64, 80, 96, UNLIMITED], "requests": 256, "concurrency": 32}
TENANTS = {"free": 16, "plus": 48, "pro": UNLIMITED}
OUTCOMES = ("natural", "grace", "forced", "eos", "implicit", "loop", "deadline", "asked", "open", "none")
CUT = ("forced", "grace", "loop", "deadline", "asked")
ESCAPE_FACTOR = 3
"""An answer after a cut this many times as long as the longest one after a natural end is taken for more thinking."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser)
    common.add_load_flags(parser)
    parser.add_argument("--budgets", type=wholes(UNLIMITED), metavar="N,N,...",
                        help="budgets in tokens, the last may be -1 for no limit (default: 0 to 96, and -1)")
    parser.add_argument("--tenants", type=tenants, metavar="NAME=N,...", default=TENANTS,
                        help="budgets of tenants that share the last load (default: free=16,plus=48,pro=-1)")
    parser.add_argument("--request-rate", type=positive, metavar="R",
                        help="requests a second at random distances (default: each as soon as one ends)")
    parser.add_argument("--concurrency", type=whole(1), metavar="N", help="requests at a time (default: 32; quick: 16)")
    parser.add_argument("--requests", type=whole(1), metavar="N",
                        help="requests for each budget (default: 256; quick: 96)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    common.tasks(args, 1)


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every row to `record`."""
    tasks = common.tasks(args, args.requests)
    with common.server(args, record) as target:
        common.warm_up(target, args)
        for budget in args.budgets:
            point(target, args, record, common.shown(budget), [Ask(task, budget) for task in tasks])
        point(target, args, record, "tenants", shared(tasks, args.tenants))


def shared(tasks: Sequence[Task], budgets: dict[str, int]) -> list[Ask]:
    """Tenants in turn, with their own budgets."""
    names = list(budgets)
    return [Ask(task, budgets[names[i % len(names)]], names[i % len(names)]) for i, task in enumerate(tasks)]


def point(target: Target, args: argparse.Namespace, record: Run, name: str, asks: list[Ask]) -> None:
    """One load of the sweep, and how long it took."""
    seconds = run(target, asks, concurrency=args.concurrency, rate=args.request_rate, seed=args.seed,
                  label=f"budget {name}", keep=lambda row: record.add("response", point=name, **row))
    record.add("load", point=name, seconds=seconds, requests=len(asks))


def longest_answer(rows: Sequence[Row]) -> int | None:
    """Tokens of the longest answer that came after a natural end; None if there is none."""
    return max((row["answer_len"] for row in rows if row["outcome"] == "natural" and row["finish"] == "stop"),
               default=None)


def escaped(row: Row, longest: int | None) -> bool:
    """Whether an answer goes on thinking after its thinking was cut.

    It does if it holds a marker of the thinking, was itself cut by the length, or is several times as long as any
    answer after a natural end.
    """
    if row["outcome"] not in CUT:
        return False
    return bool(row["marker"] or row["finish"] == "length"
                or (longest is not None and row["answer_len"] > ESCAPE_FACTOR * longest))


def numbers(rows: Sequence[Row], seconds: float | None, longest: int | None) -> dict[str, Any]:
    """Figures of one load, or of one tenant's part. Times in seconds, lengths in tokens.

    Args:
        seconds: how long the load took; None where it did not end, or where the rows are a part of it.
        longest: see `longest_answer`.
    """
    good = [row for row in rows if not row.get("error")]
    output = sum(row["output_len"] for row in good)
    known = [row["right"] for row in good if row.get("right") is not None]
    return {
        "requests": len(rows), "failed": len(rows) - len(good),
        "requests_per_second": len(good) / seconds if seconds else None,
        "tokens_per_second": output / seconds if seconds else None,
        **{f"{name}_p{q}": percentile((row[name] for row in good), q)
           for name in ("ttft", "answer_ttft", "latency") for q in (50, 99)},
        "thought_mean": mean(row["thought"] for row in good),
        **{f"thought_p{q}": percentile((row["thought"] for row in good), q) for q in (10, 50, 90, 100)},
        "forced_mean": mean(row["forced"] for row in good),
        "outcomes": dict(Counter(row["outcome"] for row in good)),
        "empty": sum(row["empty"] for row in good),
        "escapes": sum(escaped(row, longest) for row in good),
        "right": sum(known) / len(known) if known else None,
    }


def page(record: Record) -> Page:
    """The report."""
    responses, seconds = record.of("response"), {row["point"]: row["seconds"] for row in record.of("load")}
    longest = longest_answer([row for row in responses if not row.get("error")])
    names = list(dict.fromkeys(row["point"] for row in responses))
    by_point = {name: numbers([r for r in responses if r["point"] == name], seconds.get(name), longest)
                for name in names}
    mixed = [row for row in responses if row["point"] == "tenants"]
    by_tenant = {name: {"budget": next(r["budget"] for r in mixed if r["tenant"] == name),
                        **numbers([r for r in mixed if r["tenant"] == name], None, longest)}
                 for name in record.run["flags"]["tenants"] if any(r["tenant"] == name for r in mixed)}
    sweep = {name: values for name, values in by_point.items() if name != "tenants"}
    out = Page("Think budgets on a batched server",
               "The same requests with different think budgets, one load after the other, and then with tenants of "
               "different budgets at once. Budgets and lengths are in tokens.",
               {"points": by_point, "tenants": by_tenant, "longest_natural_answer": longest})
    if sweep:
        out.plots += [_latency(sweep), _throughput(sweep), _outcomes(sweep), _thinking(sweep)]
    if by_tenant:
        out.plots.append(_tenants(by_tenant))
    out.tables += _tables(by_point, by_tenant)
    out.tables += common.failures(responses)
    return out


def _series(sweep: dict[str, Any], names: dict[str, str]) -> dict[str, list[float | None]]:
    return {shown: [values[name] for values in sweep.values()] for name, shown in names.items()}


def _latency(sweep: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, _series(sweep, {"ttft_p50": "first token, median",
                                      "answer_ttft_p50": "first token of the answer, median",
                                      "latency_p50": "whole response, median", "latency_p99": "whole response, p99"}))
    plots.label(axes, "budget, tokens", "seconds", list(sweep))
    plots.legend(figure, axes, 2)
    return Plot("latency", "Time to the answer", figure,
                "What a reader waits for is the first token of the answer: a budget bounds it.")


def _throughput(sweep: dict[str, Any]) -> Plot:
    figure, panels = plots.panels(2)
    for axes, name, unit in zip(panels, ("requests_per_second", "tokens_per_second"),
                                ("requests a second", "tokens a second"), strict=True):
        plots.bars(axes, _series(sweep, {name: unit}))
        plots.label(axes, "budget, tokens", unit, list(sweep))
    return Plot("throughput", "Throughput", figure,
                "Less thinking, more requests. Tokens a second tell what the enforcement itself costs, beside what "
                "shorter responses cost in prefills.")


def _outcomes(sweep: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    found = [o for o in OUTCOMES if any(o in values["outcomes"] for values in sweep.values())]
    plots.stacked(axes, {o: [100 * v["outcomes"].get(o, 0) / max(v["requests"], 1) for v in sweep.values()]
                         for o in found})
    plots.label(axes, "budget, tokens", "% of the responses", list(sweep))
    plots.legend(figure, axes, 7)
    return Plot("outcomes", "How thinking ended", figure,
                "natural: the model ended it. forced: the budget did. open: the response ended while thinking, so "
                "there is no answer. none: there was no thinking.")


def _thinking(sweep: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, _series(sweep, {"thought_p10": "thought, p10", "thought_p50": "thought, median",
                                      "thought_p100": "thought, most", "forced_mean": "written for the model, mean"}))
    plots.label(axes, "budget, tokens", "tokens", list(sweep))
    plots.legend(figure, axes, 4)
    return Plot("thinking", "Tokens of thinking", figure, "No response may lie above its budget.")


def _tenants(by_tenant: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels(height=3.2)
    ticks = [f"{name} ({common.shown(values['budget'])})" for name, values in by_tenant.items()]
    plots.bars(axes, _series(by_tenant, {"answer_ttft_p50": "first token of the answer, median",
                                         "answer_ttft_p99": "first token of the answer, p99",
                                         "latency_p99": "whole response, p99"}))
    plots.label(axes, "tenant (budget)", "seconds", ticks)
    plots.legend(figure, axes, 3)
    return Plot("tenants", "Tenants with different budgets, one batch", figure,
                "All of them at once on one server: each waits by its own budget.")


def _tables(by_point: dict[str, Any], by_tenant: dict[str, Any]) -> list[Table]:
    times = {"ttft_p50": "first token, p50", "answer_ttft_p50": "of the answer, p50", "answer_ttft_p99": "p99",
             "latency_p50": "whole response, p50", "latency_p99": "p99"}
    counts = {"thought_mean": "thought, mean", "thought_p100": "most", "forced_mean": "written for it, mean",
              "empty": "empty answers", "escapes": "escapes", "right": "right"}
    rates = {"requests": "requests", "failed": "failed", "requests_per_second": "requests/s",
             "tokens_per_second": "tokens/s"}

    def table(title: str, shown: dict[str, str], of: dict[str, Any], first: str, note: str = "") -> Table:
        rows = [[name, *(common.shown(v[k]) if k == "budget" else v[k] for k in shown)] for name, v in of.items()]
        return Table(title, [first, *shown.values()], rows, note)

    escape = (f"An escape is an answer after a cut that goes on thinking: it holds a marker, was cut by the length, or "
              f"is more than {ESCAPE_FACTOR} times as long as the longest answer after a natural end.")
    out = [table("Throughput and latency in seconds", rates | times, by_point, "budget"),
           table("Thinking in tokens, and answers", counts, by_point, "budget", escape)]
    if by_tenant:
        out += [table("Tenants, latency in seconds", {"budget": "budget", "requests": "requests"} | times, by_tenant,
                      "tenant"),
                table("Tenants, thinking and answers", counts, by_tenant, "tenant")]
    return out
