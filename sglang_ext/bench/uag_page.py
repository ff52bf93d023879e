"""What `uag` makes of its rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import plots
from .record import Record
from .report import Page, Plot, Table, mean

T = TypeVar("T")
PLAIN, UAG, HF = "plain", "uag", "transformers"
HF_PLAIN, HF_ASSISTED = f"{HF} plain", f"{HF} assisted"
REPORT = "uag"
"""Key of `meta_info` under which a server with a draft of another tokenizer tells what it did."""
CAUSES = "rejections."
"""How `told` names the numbers of its object of causes."""


def by_position(histogram: Sequence[int]) -> list[float]:
    """Share of the rounds that accepted a draft at least up to each position, the first one first.

    Args:
        histogram: rounds by how many draft tokens were right, none first.
    """
    rounds = sum(histogram)
    return [sum(histogram[position:]) / rounds for position in range(1, len(histogram))] if rounds else []


def added(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Histograms of different lengths, summed."""
    total: list[int] = []
    for histogram in histograms:
        total += [0] * (len(histogram) - len(total))
        total = [t + (histogram[i] if i < len(histogram) else 0) for i, t in enumerate(total)]
    return total


def told(reports: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Numbers of reports, summed; those of an object inside are named `object.number`."""
    total: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for name, value in report.items():
            inside = {f"{name}.{key}": n for key, n in value.items()} if isinstance(value, Mapping) else {name: value}
            for key, number in inside.items():
                if isinstance(number, int | float) and not isinstance(number, bool):
                    total[key] += number
    return dict(total)


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of each way, by size of the batch."""
    plain = {r["prompt"]: r["text"] for row in rows if row["way"] == PLAIN for r in row["responses"]}
    out: dict[str, Any] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        responses = [r for row in mine for r in row["responses"]]
        rounds = sum(r.get("spec_verify_ct") or 0 for r in responses)
        histogram = added(r.get("spec_correct_drafts_histogram") or () for r in responses)
        compared = [r["text"] == plain[r["prompt"]] for r in responses if r["prompt"] in plain]
        out[way] = {
            "tokens_per_second": {size: _speed([r for r in mine if r["size"] == size])
                                  for size in sorted({row["size"] for row in mine})},
            "accept_length": sum(r["tokens"] for r in responses) / rounds if rounds else None,
            "accept_length_by_kind": {kind: _accept_length([r for r in responses if r["kind"] == kind])
                                      for kind in dict.fromkeys(r["kind"] for r in responses)} if rounds else {},
            "tokens_per_second_by_kind": _by_kind(_smallest(mine), _speed),
            "acceptance_by_kind": _by_kind(mine, _acceptance),
            "proposed_by_source": _by_kind(mine, lambda its: _of_sources(its, "proposed_by")),
            "accepted_by_source": _by_kind(mine, lambda its: _of_sources(its, "accepted_by")),
            "by_position": by_position(histogram), "as_plain": mean(map(float, compared)),
            "round": _round(_smallest(mine))}
    return out


def _smallest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of the smallest batch size."""
    return [row for row in rows if row["size"] == min(r["size"] for r in rows)]


def _by_kind(rows: Sequence[Mapping[str, Any]], figure: Callable[[list[Mapping[str, Any]]], T]) -> dict[str, T]:
    """A figure of the rows of each kind of prompt; a row is of one kind."""
    kinds = dict.fromkeys(row["responses"][0]["kind"] for row in rows)
    return {kind: figure([row for row in rows if row["responses"][0]["kind"] == kind]) for kind in kinds}


def _acceptance(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of the draft tokens that were accepted, where the server tells."""
    responses = [r for row in rows for r in row["responses"] if r.get("spec_num_proposed_drafts")]
    proposed = sum(r["spec_num_proposed_drafts"] for r in responses)
    return sum(r["spec_num_correct_drafts"] for r in responses) / proposed if proposed else None


def _of_sources(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, int]:
    """Tokens by the source of the draft, where the server tells."""
    found = [r[REPORT].get(key) or {} for row in rows for r in row["responses"] if r.get(REPORT)]
    return {source: sum(its.get(source, 0) for its in found) for source in dict.fromkeys(s for f in found for s in f)}


def _round(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds of a round of verification and what the server tells of it, means over one batch size's rounds."""
    responses = [r for row in rows for r in row["responses"]]
    rounds = sum(r.get("spec_verify_ct") or 0 for r in responses)
    reports = told(r[REPORT] for r in responses if r.get(REPORT))
    if not rounds:
        return {}
    wall = sum(row["seconds"] * row["size"] for row in rows)
    figures = {"milliseconds": 1000 * wall / rounds}
    if reports.get("target_us"):
        forwards = reports["draft_us"] + reports["target_us"]
        figures["outside_share"] = (reports["round_us"] - forwards) / reports["target_us"]
    return figures | {name: value / rounds for name, value in reports.items()}


def _speed(rows: Sequence[Mapping[str, Any]]) -> float:
    """Median over the repeats of tokens a second over all batches of one."""
    repeats = {row["repeat"] for row in rows}
    return statistics.median(sum(r["tokens"] for row in rows if row["repeat"] == n for r in row["responses"])
                             / sum(row["seconds"] for row in rows if row["repeat"] == n) for n in repeats)


def _accept_length(responses: Sequence[Mapping[str, Any]]) -> float | None:
    rounds = sum(r.get("spec_verify_ct") or 0 for r in responses)
    return sum(r["tokens"] for r in responses) / rounds if rounds else None


def base_of(way: str) -> str:
    """What a way's speed is compared with."""
    return HF_PLAIN if way.startswith(HF) else PLAIN


def page(record: Record) -> Page:
    """The report."""
    found = numbers(record.of("batch"))
    flags = record.run["flags"]
    for way, values in found.items():
        base = found.get(base_of(way), {}).get("tokens_per_second", {})
        values["speed_up"] = {size: speed / base[size] for size, speed in values["tokens_per_second"].items()
                              if size in base and way != base_of(way)}
        by_kind = found.get(base_of(way), {}).get("tokens_per_second_by_kind", {})
        values["speed_up_by_kind"] = {kind: speed / by_kind[kind] for kind, speed
                                      in values["tokens_per_second_by_kind"].items()
                                      if kind in by_kind and way != base_of(way)}
        engine, _, draft = way.partition(" ")
        assisted = found.get(f"{HF_ASSISTED} {draft}", {}).get("tokens_per_second", {}) if engine == UAG else {}
        values["over_assisted"] = {size: speed / alone for alone in assisted.values()
                                   for size, speed in values["tokens_per_second"].items()}
    out = Page("Drafts of another tokenizer",
               f"Greedy responses of {flags['new']} tokens, verified {flags['draft_tokens']} positions at a time. "
               "Speed is compared with no speculation: sglang's with sglang's, transformers' with transformers'.",
               {"ways": found})
    sizes = sorted({size for v in found.values() for size in v["tokens_per_second"]})
    if found:
        out.plots.append(_by_size(found, sizes, "tokens_per_second", "speed", "Throughput", "tokens a second"))
    if any(v["speed_up"] for v in found.values()):
        sped = {way: v for way, v in found.items() if v["speed_up"]}
        out.plots.append(_by_size(sped, sizes, "speed_up", "speed-up", "Speed-up by batch size",
                                  "times no speculation"))
    if any(v["by_position"] for v in found.values()):
        out.plots.append(_positions({way: v["by_position"] for way, v in found.items() if v["by_position"]}))
    if any(v["accept_length_by_kind"] for v in found.values()):
        out.plots.append(_kinds({way: v["accept_length_by_kind"] for way, v in found.items()
                                 if v["accept_length_by_kind"]}))
    if any(v["speed_up_by_kind"] for v in found.values()):
        out.plots.append(_sped_kinds({way: v["speed_up_by_kind"] for way, v in found.items() if v["speed_up_by_kind"]},
                                     min(sizes)))
    causes = {way: {name.partition(".")[2]: n for name, n in v["round"].items() if name.startswith(CAUSES)}
              for way, v in found.items()}
    if any(sum(of.values()) for of in causes.values()):
        out.plots.append(_causes({way: of for way, of in causes.items() if of}))
    out.tables += _tables(found, sizes)
    return out


def _by_size(found: dict[str, Any], sizes: list[int], key: str, name: str, title: str, unit: str) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, {way: [v[key].get(size) for size in sizes] for way, v in found.items()})
    plots.label(axes, "requests at a time", unit, [str(size) for size in sizes])
    plots.legend(figure, axes, 3)
    return Plot(name, title, figure)


def _positions(shares: dict[str, list[float]]) -> Plot:
    figure, (axes,) = plots.panels()
    most = max(map(len, shares.values()))
    plots.lines(axes, {way: [100 * s for s in of] + [None] * (most - len(of)) for way, of in shares.items()})
    plots.label(axes, "position in the draft", "% of the rounds", [str(i + 1) for i in range(most)])
    plots.legend(figure, axes, 3)
    return Plot("positions", "Accepted at least up to a position", figure,
                "A round without a draft counts as one that accepted nothing.")


def _kinds(lengths: dict[str, dict[str, float | None]]) -> Plot:
    figure, (axes,) = plots.panels()
    kinds = list(next(iter(lengths.values())))
    plots.bars(axes, {way: [of.get(kind) for kind in kinds] for way, of in lengths.items()})
    plots.label(axes, "kind of prompt", "tokens a round", kinds)
    plots.legend(figure, axes, 3)
    return Plot("kinds", "Accept length by kind of prompt", figure,
                "Tokens that one forward pass of the model confirms, its own included: 1 is no gain.")


def _sped_kinds(speed_ups: dict[str, dict[str, float]], size: int) -> Plot:
    figure, (axes,) = plots.panels()
    kinds = list(next(iter(speed_ups.values())))
    plots.bars(axes, {way: [of.get(kind) for kind in kinds] for way, of in speed_ups.items()})
    axes.axhline(1, color="black", linewidth=0.8)
    plots.label(axes, "kind of prompt", "times no speculation", kinds)
    plots.legend(figure, axes, 3)
    return Plot("speed-up-by-kind", f"Speed-up by kind of prompt, {size} at a time", figure)


def _causes(causes: dict[str, dict[str, float]]) -> Plot:
    figure, (axes,) = plots.panels()
    names = [name for name in dict.fromkeys(name for of in causes.values() for name in of)
             if any(of.get(name) for of in causes.values())]
    plots.bars(axes, {way: [of.get(name, 0) for name in names] for way, of in causes.items()})
    plots.label(axes, "cause", "a round", names)
    plots.legend(figure, axes, 3)
    return Plot("causes", "What ends a draft", figure,
                "verification: tokens that the model chose otherwise. The others: drafts not made, or cut short.")


def _tables(found: dict[str, Any], sizes: list[int]) -> list[Table]:
    out = [Table("Every way", ["way", *(f"tokens/s at {size}" for size in sizes),
                               *(f"speed-up at {size}" for size in sizes), "accept length", "text as plain's"],
                 [[way, *(v["tokens_per_second"].get(s) for s in sizes), *(v["speed_up"].get(s) for s in sizes),
                   v["accept_length"], None if v["as_plain"] is None else f"{v['as_plain']:.0%}"]
                  for way, v in found.items()],
                 "A text may differ from that without speculation where two logits are about equal: the order of sums "
                 "in a batch then decides.")]
    kinds = list(dict.fromkeys(kind for v in found.values() for kind in v["tokens_per_second_by_kind"]))
    out.append(Table(f"Tokens a second by kind of prompt, {min(sizes)} at a time", ["way", *kinds],
                     [[way, *(v["tokens_per_second_by_kind"].get(k) for k in kinds)] for way, v in found.items()]))
    drafting = {way: v["acceptance_by_kind"] for way, v in found.items()
                if any(share is not None for share in v["acceptance_by_kind"].values())}
    if drafting:
        out.append(Table("Accepted of the tokens that were drafted, at all batch sizes", ["way", *kinds],
                         [[way, *(_percent(of.get(k)) for k in kinds)] for way, of in drafting.items()]))
    sources = [[f"{way}, {source}", *(_share(v["accepted_by_source"][k], v["proposed_by_source"][k], source)
                                      for k in kinds)]
               for way, v in found.items() if any(v["proposed_by_source"].values())
               for source in next(iter(v["proposed_by_source"].values()))]
    if sources:
        out.append(Table("Accepted of the tokens that were drafted, by source, at all batch sizes", ["way", *kinds],
                         sources))
    over = {way: v["over_assisted"] for way, v in found.items() if v["over_assisted"]}
    if over:
        out.append(Table("Tokens a second, in times transformers' assisted generation with the same draft",
                         ["way", *(f"at {size}" for size in sizes)],
                         [[way, *(of.get(size) for size in sizes)] for way, of in over.items()],
                         "transformers takes one request at a time, whatever the load."))
    rounds = {way: v["round"] for way, v in found.items() if v["round"]}
    if rounds:
        names = list(dict.fromkeys(name for of in rounds.values() for name in of))
        out.append(Table(f"A round of verification, {min(sizes)} at a time", ["mean of a round", *rounds],
                         [[name, *(of.get(name) for of in rounds.values())] for name in names],
                         "Milliseconds are of the whole round; outside_share is the time outside both forwards, "
                         "as a share of the target's. The rest is what the server tells of its drafts, by request "
                         "(meta_info.uag)."))
    return out


def _share(accepted: Mapping[str, int], proposed: Mapping[str, int], source: str) -> str | None:
    """Such as `5 of 8`."""
    return f"{accepted[source]} of {proposed[source]}" if source in proposed else None


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"
