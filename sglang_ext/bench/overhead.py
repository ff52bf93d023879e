"""`overhead`: what enforcing a budget costs a batch, for each way that sglang has of doing it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from . import BenchError, common, plots, servers
from .batch import send
from .in_force import OURS
from .load import merged
from .models import Markers, Served, markers_of, processor_text, resolve
from .options import choices, spelled, whole
from .record import Record, Run
from .report import Page, Plot, Table, spread
from .workload import thoughtful

HELP = "ours, sglang's processor, sglang's strict thinking and nothing, in alternating rounds"
QUICK = {"rounds": 2, "repeats": 2}
FULL = {"rounds": 5, "repeats": 3}
NOTHING, PLUGIN, OUR, PROCESSOR, STRICT = "nothing", "plugin", "ours", "processor", "strict"
PEER, PEER_BUDGET = "peer", "peer, budget"
MEANING = {
    NOTHING: "sglang as published, nobody has a budget",
    PLUGIN: "our plugin, nobody has a budget",
    OUR: "our plugin, everybody has a budget",
    PROCESSOR: "sglang's ThinkingBudgetLogitProcessor, everybody has a budget",
    STRICT: "sglang's strict thinking, everybody has a budget",
    PEER: "the server at --url, nobody has a budget",
    PEER_BUDGET: "the server at --url, everybody has a budget",
}
CHAT = "/v1/chat/completions"


Start = Callable[[Run], AbstractContextManager[str]]
"""Starts a server for the time of a `with`, which gets its address."""
Body = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """A server: how it is started, and its loads, each by what it adds to the body of all."""

    start: Start
    loads: Mapping[str, Body]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    common.add_server_flags(parser)
    parser.add_argument("--kinds", type=choices(PLUGIN, OUR, PROCESSOR, STRICT), metavar="K,K,...",
                        help=f"what is compared with nothing (default: {PLUGIN},{OUR},{PROCESSOR}, and {STRICT} on a "
                        "GPU: sglang's mask for it has no CPU path)")
    parser.add_argument("--batch", type=whole(1), default=16, metavar="N", help="requests at a time (%(default)s)")
    parser.add_argument("--new", type=whole(2), default=320, metavar="N", help="tokens of a response (%(default)s)")
    parser.add_argument("--budget", type=whole(1), default=256, metavar="N", help="tokens of thinking (%(default)s)")
    parser.add_argument("--rounds", type=whole(1), metavar="N", help="rounds over all servers (5; quick: 2)")
    parser.add_argument("--repeats", type=whole(1), metavar="N",
                        help="loads of each kind in a round, after one to warm up (3; quick: 2)")
    parser.add_argument("--side-by-side", action="store_true", help="keep all servers up, instead of starting each "
                        "anew in every round: faster, where there is memory for four")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the questions (%(default)s)")


def check(args: argparse.Namespace) -> None:
    """Raise BenchError for values that are not accepted together."""
    if args.budget >= args.new:
        raise BenchError(f"--budget: {args.budget} is out of range; accepted: 1 to {args.new - 1}, below --new")


def measure(args: argparse.Namespace, record: Run) -> None:
    """Measure, and hand every row to `record`.

    Raises:
        BenchError: a kind cannot be had, a server failed, or a budget was not enforced.
    """
    base, hosts = _peer(args) if args.url else _hosts(args)
    chats = [{**base, "messages": q.messages} for q in thoughtful(args.batch, f"overhead {args.seed}")]
    total = args.rounds * (1 + args.repeats) * sum(len(host.loads) for host in hosts.values())
    with ExitStack() as stack, tqdm(total=total, desc="loads", unit="load") as bar:
        kept: dict[str, str] = {}
        if args.side_by_side:
            kept = {name: stack.enter_context(host.start(record)) for name, host in hosts.items()}
        for number in range(args.rounds):
            for name in list(hosts) if number % 2 == 0 else list(hosts)[::-1]:
                with nullcontext(kept[name]) if name in kept else hosts[name].start(record) as url:
                    _turns(args, record, number, url, hosts[name].loads, chats, bar)


def _turns(args: argparse.Namespace, record: Run, number: int, url: str, loads: Mapping[str, Body],
           chats: list[Body], bar: Any) -> None:
    """The loads of one server in turn; the first turn warms up."""
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    for repeat in range(args.repeats + 1):
        for name, extra in loads.items():
            done = send(url + CHAT, [merged(chat, extra) for chat in chats], headers)
            thought = [_thought(r) for r in done.responses]
            if name == OUR and set(thought) != {args.budget}:  # a time counts only if the budget was enforced
                raise BenchError(f"{name}: every response should think for {args.budget} tokens; they did for "
                                 f"{sorted(set(thought), key=str)}")
            if repeat:
                record.add("speed", kind=name, round=number, repeat=repeat, seconds=done.seconds, thought=thought,
                           tokens=sum(r["usage"]["completion_tokens"] for r in done.responses))
            bar.update()


def _hosts(args: argparse.Namespace) -> tuple[Body, dict[str, Host]]:
    """The body that all requests share, and the servers by name."""
    served = resolve(args.demo, args.model_path, args.server_flags)
    markers = markers_of(served.path)
    kinds = _kinds(args.kinds, served, markers)
    base: Body = {"model": served.name, "temperature": 0, "max_tokens": args.new, "ignore_eos": True}
    if markers is not None:  # so that nobody ends the thinking before the budget does
        base["logit_bias"] = {str(markers.end): -100}
    budget = {"custom_params": {"thinking_budget": args.budget}}
    hosts = {NOTHING: Host(_starter("stock", NOTHING, served), {NOTHING: {}})}
    ours: dict[str, Body] = {PLUGIN: {}, OUR: {OURS: {"max_tokens": args.budget, "message": "",
                                                               "answer_tokens": 0}}}
    if loads := {name: extra for name, extra in ours.items() if name in kinds}:
        hosts[PLUGIN] = Host(_starter("ours", PLUGIN, served), loads)
    if PROCESSOR in kinds and markers is not None:
        sent = {**budget, "custom_logit_processor": processor_text(markers)}
        hosts[PROCESSOR] = Host(_starter("stock", PROCESSOR, served, "--enable-custom-logit-processor"),
                                {PROCESSOR: sent})
    if STRICT in kinds:
        hosts[STRICT] = Host(_starter("stock", STRICT, served, "--enable-strict-thinking"), {STRICT: budget})
    return base, hosts


def _kinds(asked: list[str] | None, served: Served, markers: Markers | None) -> list[str]:
    """What is measured; without a wish, all that the model and the machine allow."""
    refused = {}
    if markers is None:
        refused = dict.fromkeys((PROCESSOR, STRICT), f"<think> and </think> are not one token each in the tokenizer of "
                                                     f"{served.path.name}")
    if served.on_cpu:
        refused[STRICT] = "sglang's mask for it (xgrammar) has no CPU path"
    possible = [kind for kind in (PLUGIN, OUR, PROCESSOR, STRICT) if kind not in refused]
    for kind in asked or ():
        if kind in refused:
            raise BenchError(f"--kinds: {kind} cannot be had: {refused[kind]}; accepted here: {','.join(possible)}")
    return asked or possible


def _starter(kind: servers.Kind, name: str, served: Served, *flags: str) -> Start:
    """Of a server with the same settings as all others, beside `flags`."""
    same = ["--disable-radix-cache", "--max-running-requests", "64"]
    if served.on_cpu:
        same += [part for pair in servers.CPU_FLAGS.items() if pair[0] != "--device" for part in pair]

    @contextmanager
    def start(record: Run) -> Iterator[str]:
        with servers.serving(kind, [*served.flags, *same, *flags], record.log(name)) as server:
            record.server(name, server.command, servers.facts(server.url))
            yield server.url

    return start


def _peer(args: argparse.Namespace) -> tuple[Body, dict[str, Host]]:
    """The same for the server at --url, which is compared with itself."""
    base = {"model": args.model or servers.model_name(args.url), "temperature": 0, "max_tokens": args.new,
            "ignore_eos": True}

    @contextmanager
    def start(record: Run) -> Iterator[str]:
        record.server(PEER, "", servers.facts(args.url))
        yield args.url

    return base, {PEER: Host(start, {PEER: {}, PEER_BUDGET: spelled(args.budget_field, args.budget)})}


def _thought(response: dict[str, Any]) -> int | None:
    """Tokens of thinking as the server counts them; None if it does not."""
    usage = response["usage"]
    if "tokens" in (usage.get("think") or {}):
        return int(usage["think"]["tokens"])
    details = usage.get("completion_tokens_details") or {}
    return details.get("reasoning_tokens") or usage.get("reasoning_tokens")


def numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens a second of each kind, and its ratio to the kind that it is compared with, by rounds."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    base = PEER if PEER in kinds else NOTHING
    speeds = {kind: {n: statistics.median(r["tokens"] / r["seconds"] for r in rows
                                          if r["kind"] == kind and r["round"] == n)
                     for n in sorted({r["round"] for r in rows if r["kind"] == kind})} for kind in kinds}
    out: dict[str, Any] = {}
    for kind in kinds:
        both = [n for n in speeds[kind] if n in speeds.get(base, {})]
        thought = [t for row in rows if row["kind"] == kind for t in row["thought"] if t is not None]
        out[kind] = {"tokens_per_second": statistics.median(speeds[kind].values()),
                     "by_round": list(speeds[kind].values()),
                     "thought_most": max(thought, default=None),
                     "ratio": spread([speeds[kind][n] / speeds[base][n] for n in both])
                     if both and kind != base else None}
    return out


def page(record: Record) -> Page:
    """The report."""
    found, flags = numbers(record.of("speed")), record.run["flags"]
    out = Page("What enforcing a budget costs a batch",
               f"{flags['batch']} requests at a time, {flags['new']} tokens each, {flags['budget']} of them thinking "
               "where there is a budget. All servers have the same settings; rounds go over them in turn, and a ratio "
               "is taken within its round.", {"kinds": found})
    if found:
        out.plots.append(_speeds(found))
    ratios = {kind: v["ratio"] for kind, v in found.items() if v["ratio"]}
    if ratios:
        out.plots += [_ratios(ratios), _rounds(found)]
    out.tables.append(Table(
        "Every kind", ["kind", "what it is", "tokens/s", "ratio", "least", "most", "rounds", "most thinking, tokens"],
        [[kind, MEANING.get(kind), v["tokens_per_second"],
          *((v["ratio"] or {}).get(name) for name in ("median", "least", "most", "rounds")), v["thought_most"]]
         for kind, v in found.items()],
        "The thinking as the server counts it: ours by the model's own tokens, sglang with the end marker and what it "
        "forces before it."))
    return out


def _speeds(found: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.bars(axes, {"tokens a second": [v["tokens_per_second"] for v in found.values()]},
               {"tokens a second": [(min(v["by_round"]), max(v["by_round"])) for v in found.values()]})
    plots.label(axes, "", "tokens a second", list(found))
    return Plot("speed", "Throughput", figure, "Median of the rounds; the lines go from the slowest to the fastest.")


def _ratios(ratios: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.points(axes, [r["median"] for r in ratios.values()], [(r["least"], r["most"]) for r in ratios.values()])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 4)))
    plots.label(axes, "", "throughput against nothing", list(ratios))
    return Plot("ratio", "Throughput against no budget", figure,
                "1 is no cost. Median of the rounds' ratios; the lines go from the least to the most.")


def _rounds(found: dict[str, Any]) -> Plot:
    figure, (axes,) = plots.panels()
    plots.lines(axes, {kind: v["by_round"] for kind, v in found.items()})
    most = max(len(v["by_round"]) for v in found.values())
    plots.label(axes, "round", "tokens a second", [str(n + 1) for n in range(most)])
    plots.legend(figure, axes, 5)
    return Plot("rounds", "Round by round", figure,
                "How quiet the machine was: rounds differ by more than the kinds do where something else ran.")
