"""What `cut` makes of its loads: figures of each, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from . import plots
from .load import Row
from .options import UNLIMITED
from .record import Record
from .report import Page, Plot, Table, mean, percentile, spread

ONE, STEPS, BARE = "one forward", "token by token", "no message"
"""The ways: an end read in one forward, or written token by token, and one without a message, which is a few tokens."""
DIGITS = 5


@dataclass(frozen=True)
class Load:
    """Figures of a load. Times are in seconds.

    Attributes:
        seconds: from its first request to its last response.
        answers: time to the first token of the answer, of each response with a budget.
        step: median distance of a response's tokens.
        gap_p50: the same of requests without a budget, which are cut never: neighbours of those that are.
        tokens_per_second: while all places are taken: from when as many responses have begun as there are requests at a
            time, to when the last request is sent; None of a load without such a time.
        cuts: responses with more than a few forced tokens.
        at_once: those that had at least half of them in one piece.
        end_steps: pieces from their wall to the end of what was forced, mean: forwards, where each sends a piece.
        errors: what went wrong, and how often.
    """

    seconds: float
    answers: list[float]
    step: float | None
    gap_p50: float | None
    gap_p99: float | None
    tokens_per_second: float | None
    cuts: int
    at_once: int
    end_steps: float | None
    errors: dict[str, int]

    @classmethod
    def of(cls, rows: Sequence[Row], batch: int, seconds: float) -> Load:
        """Figures of a load's rows, `batch` requests at a time."""
        good = [row for row in rows if not row.get("error") and row["pieces"]]
        free = [gap for row in good if row["budget"] == UNLIMITED for gap in gaps(row)]
        cuts = [row for row in good if (row["forced"] or 0) >= LEAST_CUT]
        return cls(
            seconds=seconds,
            answers=[row["answer_ttft"] for row in good if row["budget"] != UNLIMITED and row["answer_ttft"]],
            step=percentile((gap for row in good for gap in gaps(row)), 50),
            gap_p50=percentile(free, 50), gap_p99=percentile(free, 99),
            tokens_per_second=speed(good, batch), cuts=len(cuts), at_once=sum(map(at_once, cuts)),
            end_steps=mean(map(end_steps, cuts)),
            errors=dict(Counter(row["error"] for row in rows if row.get("error"))))

    def row(self) -> dict[str, Any]:
        """As a row of results."""
        found = asdict(self)
        return {**found, "answers": [round(value, DIGITS) for value in self.answers]}


LEAST_CUT = 4
"""Fewest forced tokens of a response that counts as cut: an end without a message has fewer."""


def gaps(row: Row) -> Iterator[float]:
    """Seconds between the pieces of a response that have one token each."""
    for (before, had), (at, has) in pairwise(row["pieces"]):
        if has == had + 1:
            yield at - before


def at_once(row: Row) -> bool:
    """Whether one piece of a response has at least half of its forced tokens."""
    counts = [0, *(count for _, count in row["pieces"])]
    return max(has - had for had, has in pairwise(counts)) >= row["forced"] / 2


def end_steps(row: Row) -> int:
    """Pieces of a response from its wall to the end of what was forced."""
    counts = [0, *(count for _, count in row["pieces"]), row["output_len"]]
    wall, end = (next((i for i, count in enumerate(counts) if count >= length), len(counts) - 1)
                 for length in (row["thought"], row["thought"] + row["forced"]))
    return end - wall


def speed(rows: Sequence[Row], batch: int) -> float | None:
    """Tokens a second while `batch` requests run; None if there is no such time."""
    if len(rows) <= batch:
        return None
    begin, end = sorted(row["pieces"][0][0] for row in rows)[batch - 1], max(row["start_time"] for row in rows)
    if end <= begin:
        return None

    def by(time: float) -> int:
        return sum(max((count for at, count in row["pieces"] if at <= time), default=0) for row in rows)

    return (by(end) - by(begin)) / (end - begin)


def answer_figures(loads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Time to the answer by way, from the loads of one model, batch and budget."""
    out: dict[str, Any] = {}
    for way in (BARE, ONE, STEPS):
        times = [t for load in loads if load["way"] == way for t in load["answers"]]
        out[way] = {"p50": percentile(times, 50), "p99": percentile(times, 99), "count": len(times),
                    "end_steps": mean(load["end_steps"] for load in loads if load["way"] == way)}
    steps = [load["step"] for load in loads if load["way"] == STEPS and load["step"]]
    out["step"] = median(steps) if steps else None
    bare, one = out[BARE]["p50"], out[ONE]["p50"]
    out["steps_more"] = (one - bare) / out["step"] if None not in (bare, one) and steps else None
    return out


def mix_figures(loads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Throughput and neighbours by way, from the loads of one model, batch and mix; ratios are taken within a round."""
    out: dict[str, Any] = {}
    speeds = {way: {load["round"]: load["tokens_per_second"] for load in loads if load["way"] == way
                    and load["tokens_per_second"]} for way in (ONE, STEPS)}
    for way in (ONE, STEPS):
        mine = [load for load in loads if load["way"] == way]
        out[way] = {"tokens_per_second": percentile(speeds[way].values(), 50),
                    "answer_p50": percentile((t for load in mine for t in load["answers"]), 50),
                    **{name: percentile((load[name] for load in mine), 50) for name in ("gap_p50", "gap_p99")},
                    "cuts": sum(load["cuts"] for load in mine), "at_once": sum(load["at_once"] for load in mine)}
    ratios = [speeds[ONE][n] / speeds[STEPS][n] for n in speeds[ONE] if n in speeds[STEPS]]
    out["ratio"] = spread(ratios) if ratios else None
    return out


def page(record: Record) -> Page:
    """The report."""
    loads = record.of("load")
    answers = _by(loads, "answer", answer_figures)
    mixes = _by(loads, "mix", mix_figures)
    out = Page("What a cut costs",
               "One server; the same requests with the end of their thinking read in one forward, and written token by "
               "token. Where the time to the answer is measured, also with an end that has no message.",
               {"answers": _nested(answers), "mixes": _nested(mixes)})
    if answers:
        out.plots.append(_answers(answers))
        out.tables.append(_answer_table(answers))
    if mixes:
        measured = {key: found for key, found in mixes.items() if found["ratio"]}
        out.plots += [_ratios(measured), _neighbours(mixes)] if measured else [_neighbours(mixes)]
        out.tables.append(_mix_table(mixes))
    errors = sum((Counter(load["errors"]) for load in loads), Counter())
    if errors:
        out.tables.append(Table("Requests that failed", ["error", "how often"], [[*item] for item in errors.items()]))
    return out


Key = tuple[str, int, Any]


def _by(loads: Sequence[dict[str, Any]], kind: str, figures: Any) -> dict[Key, dict[str, Any]]:
    """Figures by model, batch, and what varies in this kind of load."""
    of: dict[Key, list[dict[str, Any]]] = {}
    for load in loads:
        if load["kind"] == kind:
            of.setdefault((load["model"], load["batch"], load["of"]), []).append(load)
    return {key: figures(some) for key, some in of.items()}


def _nested(found: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"model": model, "batch": batch, "of": of, **figures} for (model, batch, of), figures in found.items()]


def _panels(found: dict[Key, dict[str, Any]]) -> tuple[Any, Iterator[tuple[str, Any, dict[Key, dict[str, Any]]]]]:
    """A figure with a panel for each model: its name, its axes, its figures."""
    models = list(dict.fromkeys(model for model, _, _ in found))
    figure, panels = plots.panels(len(models), width=max(7.2, 5.0 * len(models)), height=3.8)
    mine = [{key: values for key, values in found.items() if key[0] == model} for model in models]
    return figure, zip(models, panels, mine, strict=True)


def _answers(found: dict[Key, dict[str, Any]]) -> Plot:
    figure, panels = _panels(found)
    for model, axes, mine in panels:
        plots.bars(axes, {way: [v[way]["p50"] for v in mine.values()] for way in (BARE, ONE, STEPS)})
        plots.label(axes, f"{model}: requests at a time, budget", "seconds", [f"{n}, {b}" for _, n, b in mine])
    plots.legend(figure, figure.axes[0], 3)
    return Plot("answer", "Time to the first token of the answer, median", figure,
                "What a message costs is the distance to the first bar. A budget of 0 has no message of its own.")


def _ratios(found: dict[Key, dict[str, Any]]) -> Plot:
    figure, panels = _panels(found)
    for model, axes, mine in panels:
        mixes = {mix: [v["ratio"] for (_, _, m), v in mine.items() if m == mix] for _, _, mix in mine}
        plots.lines(axes, {mix: [r["median"] for r in ratios] for mix, ratios in mixes.items()},
                    errors={mix: [(r["least"], r["most"]) for r in ratios] for mix, ratios in mixes.items()})
        axes.axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 4)))
        ends = [r[end] for v in mine.values() for r in [v["ratio"]] for end in ("least", "most")]
        axes.set_ylim(min(0.9, *ends) - 0.02, max(1.1, *ends) + 0.02)
        plots.label(axes, f"{model}: requests at a time", "times token by token", _batches(mine))
    plots.legend(figure, figure.axes[0], 2)
    return Plot("ratio", "Throughput of a load of mixed lengths", figure,
                "1 is no cost. Median of the rounds' ratios; the lines go from the least to the most.")


def _neighbours(found: dict[Key, dict[str, Any]]) -> Plot:
    figure, panels = _panels(found)
    for model, axes, mine in panels:
        plots.bars(axes, {f"{mix}: {way}": [v[way]["gap_p99"] for (_, _, m), v in mine.items() if m == mix]
                          for mix in dict.fromkeys(mix for _, _, mix in mine) for way in (ONE, STEPS)})
        plots.label(axes, f"{model}: requests at a time", "seconds", _batches(mine))
    plots.legend(figure, figure.axes[0], 2)
    return Plot("neighbours", "Time between tokens of requests that are not cut, p99", figure,
                "They wait for a forward that reads others' ends, as they do for one that reads a prompt.")


def _batches(found: dict[Key, dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(batch) for _, batch, _ in found))


def _answer_table(found: dict[Key, dict[str, Any]]) -> Table:
    rows = [[*key, *(v[way][q] for way in (BARE, ONE, STEPS) for q in ("p50", "p99")), v["step"], v["steps_more"],
             v[ONE]["end_steps"], v[STEPS]["end_steps"]] for key, v in found.items()]
    times = [f"{way}, p50" if q == "p50" else "p99" for way in (BARE, ONE, STEPS) for q in ("p50", "p99")]
    return Table("First token of the answer, seconds", ["model", "requests at a time", "budget", *times, "a step",
                                                        f"steps, {ONE} more than {BARE}",
                                                        f"wall to answer in steps, {ONE}", STEPS], rows)


def _mix_table(found: dict[Key, dict[str, Any]]) -> Table:
    rows = []
    for key, v in found.items():
        ratio = v["ratio"] or dict.fromkeys(("median", "least", "most"))
        rows.append([*key, v[ONE]["tokens_per_second"], v[STEPS]["tokens_per_second"],
                     *(ratio[name] for name in ("median", "least", "most")),
                     *(v[way][gap] for gap in ("gap_p50", "gap_p99") for way in (ONE, STEPS)),
                     v[ONE]["answer_p50"], v[STEPS]["answer_p50"], v[ONE]["cuts"], v[ONE]["at_once"]])
    return Table("Throughput, and time between tokens of requests that are not cut, seconds",
                 ["model", "requests at a time", "load", f"tokens/s, {ONE}", STEPS, "ratio", "least", "most",
                  f"between tokens p50, {ONE}", STEPS, f"p99, {ONE}", STEPS,
                  f"first token of the answer p50, {ONE}", STEPS, "cuts", "in one piece"], rows,
                 "One request in 8 or in 2 has a budget of 1 to 40 tokens; responses have 70 to 150.")
