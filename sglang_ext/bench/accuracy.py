"""`accuracy`: how right the answers are under budgets, with confidence intervals."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..demo.reasoner.tasks import SERIAL, THOUGHTFUL
from . import common, plots
from .load import Ask, Row, run
from .options import UNLIMITED, whole, wholes
from .record import Record, Run
from .report import Page, Plot, Table, mean, wilson
from .workload import Task, chance, from_file, questions, task

HELP = "accuracy against budget on questions with one right answer"
QUICK = {"budgets": [0, 16, 32, 48, 64, 96, UNLIMITED], "each": 15}
FULL = {"budgets": [0, 8, 16, 24, 32, 48, 64, 80, 96, 128, UNLIMITED], "each": 60}
CONFIDENCE = 0.95
HARD = "sums and chains"
"""The questions that nobody answers without thinking, taken together."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser)
    common.add_load_flags(parser)
    parser.add_argument("--budgets", type=wholes(UNLIMITED), metavar="N,N,...",
                        help="budgets in tokens, the last may be -1 for no limit (default: 0 to 128, and -1)")
    parser.add_argument("--each", type=whole(3), metavar="N",
                        help="questions of each kind that wants thinking, without --dataset (default: 60; quick: 15)")
    parser.add_argument("--concurrency", type=whole(1), default=32, metavar="N",
                        help="requests at a time (default: %(default)s)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    common.tasks(args, 1)


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every row to `record`."""
    asked = questions(args.each)
    tasks: list[Task] = from_file(args.dataset) if args.dataset else [task(q) for q in asked]
    if not args.dataset:
        record.add("chance", share=chance(asked))
    with common.server(args, record) as target:
        common.warm_up(target, args)
        for budget in args.budgets:
            run(target, [Ask(t, budget) for t in tasks], concurrency=args.concurrency,
                label=f"budget {common.shown(budget)}", keep=lambda row: record.add("answer", **row))


def share(rows: Sequence[Row]) -> dict[str, Any]:
    """Right answers among rows, with Wilson's interval of their share. A failed request is no answer: not counted."""
    known = [row["right"] for row in rows if row.get("right") is not None]
    low, high = wilson(sum(known), len(known), CONFIDENCE)
    return {"right": sum(known), "of": len(known), "share": sum(known) / len(known) if known else None, "low": low,
            "high": high}


def page(record: Record) -> Page:
    """The report."""
    rows = record.of("answer")
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    groups = {kind: [kind] for kind in kinds}
    if set(SERIAL) <= set(kinds):
        groups = {HARD: list(SERIAL), **groups}
    shares = {name: {common.shown(b): share([r for r in rows if r["budget"] == b and r["kind"] in members])
                     for b in budgets} for name, members in groups.items()}
    first = next(iter(groups), "")
    thought = {common.shown(b): mean(r.get("thought") for r in rows
                                           if r["budget"] == b and r["kind"] in groups[first]) for b in budgets}
    by_chance = next((row["share"] for row in record.of("chance")), None)
    out = Page("Accuracy under think budgets",
               f"The same questions with different budgets, greedy. Bars are Wilson intervals at {CONFIDENCE:.0%}.",
               {"shares": shares, "thought_mean": {first: thought}, "chance": by_chance})
    if rows:
        out.plots += [_overall(first, shares[first], by_chance), _cost(first, shares[first], thought)]
    several = [kind for kind in kinds if kind in THOUGHTFUL] if set(SERIAL) <= set(kinds) else kinds
    if len(several) > 1:
        out.plots.append(_by_kind({kind: shares[kind] for kind in several}))
    out.tables += [_table(shares, thought), *common.failures(rows)]
    return out


def _overall(name: str, shares: dict[str, Any], by_chance: float | None) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, {name: _percent(shares)}, errors={name: _ends(shares)})
    if by_chance is not None and name == HARD:
        axes.axhline(100 * by_chance, color="black", linewidth=0.8, linestyle=(0, (4, 4)), label="the commonest total")
    plots.label(axes, "budget, tokens", "% right", list(shares))
    plots.legend(figure, axes)
    return Plot("accuracy", "Accuracy against budget", figure,
                "A sum that was cut is worth nothing, so accuracy grows with the share of questions that fit into the "
                "budget." if name == HARD else "")


def _cost(name: str, shares: dict[str, Any], thought: dict[str, float | None]) -> Plot:
    figure, (axes,) = plots.panels()
    spent = [value or 0.0 for value in thought.values()]
    plots.lines(axes, {name: _percent(shares)}, x=spent, errors={name: _ends(shares)})
    plots.label(axes, f"tokens of thinking, mean of {name}", "% right")
    return Plot("cost", "Accuracy against tokens spent", figure, "What one more token of thinking buys.")


def _by_kind(shares: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, {kind: _percent(of_kind) for kind, of_kind in shares.items()})
    plots.label(axes, "budget, tokens", "% right", list(next(iter(shares.values()))))
    plots.legend(figure, axes)
    return Plot("kinds", "By kind of question", figure)


def _percent(shares: dict[str, Any]) -> list[float | None]:
    return [None if s["share"] is None else 100 * s["share"] for s in shares.values()]


def _ends(shares: dict[str, Any]) -> list[tuple[float, float]]:
    return [(100 * s["low"], 100 * s["high"]) for s in shares.values()]


def _table(shares: dict[str, Any], thought: dict[str, float | None]) -> Table:
    def written(s: dict[str, Any]) -> str:
        return "-" if s["share"] is None else f"{100 * s['share']:.0f} ({100 * s['low']:.0f} to {100 * s['high']:.0f})"

    return Table("Right answers, %", ["budget", f"thought, mean of {next(iter(shares), '')}", *shares],
                 [[budget, spent, *(written(of_kind[budget]) for of_kind in shares.values())]
                  for budget, spent in thought.items()])
