"""What the commands share: flags, the server that is measured, and tables of what failed."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..serve import DEMOS
from . import BenchError, options, servers, workload
from .in_force import OURS
from .load import Ask, Row, Target, run
from .options import UNLIMITED
from .record import Run
from .report import Table

MAX_TOKENS = 256


def add_server_flags(parser: argparse.ArgumentParser, demo: str = "reasoner", peers: bool = True) -> None:
    """Flags that say what is measured: a server of our own, or one that runs already.

    Args:
        peers: whether that can be another implementation's.
    """
    group = parser.add_argument_group("server")
    group.add_argument("--url", type=options.url, help="a server that runs already" +
                       (", any OpenAI-compatible one" if peers else ""))
    group.add_argument("--model", metavar="NAME", help="its model's name (default: the first that it lists)")
    if peers:
        group.add_argument("--budget-field", metavar="NAME", help="how it spells a budget, such as "
                           "thinking_token_budget or chat_template_kwargs.thinking_budget (default: %(default)s)")
    parser.set_defaults(budget_field=OURS)
    group.add_argument("--api-key", help="sent as a bearer token")
    group.add_argument("--demo", choices=tuple(DEMOS), default=demo, help="model of our server (default: %(default)s)")
    group.add_argument("--model-path", metavar="M", help="another model for our server")
    group.add_argument("--server-flags", type=shlex.split, default=[], metavar="FLAGS",
                       help="more flags of our server: --server-flags=\"...\"")


def add_load_flags(parser: argparse.ArgumentParser, answers: bool = True, max_tokens: int = MAX_TOKENS) -> None:
    """Flags that say what is asked.

    Args:
        answers: whether answers are compared with the right ones.
        max_tokens: default of the longest response.
    """
    group = parser.add_argument_group("load")
    group.add_argument("--dataset", type=options.existing, metavar="FILE", help='JSONL of {"messages": [...]}, as '
                       "sglang's openai data set" + (', "answer" where one is right' if answers else
                       ', or of {"prompt": text or ids}') + " (default: sums and the like)")
    if answers:
        group.add_argument("--check", choices=tuple(workload.CHECKS), help="where the right answer has to be: all of "
                           "an answer, its last number, or anywhere in it (default: %(default)s)")
    parser.set_defaults(check="exact")
    group.add_argument("--max-tokens", type=options.whole(1), default=max_tokens, metavar="N",
                       help="most tokens of a response (default: %(default)s)")
    group.add_argument("--extra-body", type=options.body, default={}, metavar="JSON",
                       help="more fields of each request")
    group.add_argument("--seed", type=options.whole(0), default=0, metavar="N", help="of the load (default: 0)")


def tasks(args: argparse.Namespace, count: int, purpose: str = "load") -> list[workload.Task]:
    """What is asked; of another `purpose`, other questions, so that no prefix cache knows them."""
    if args.dataset:
        return workload.from_file(args.dataset, count)
    return workload.thoughtful(count, f"{purpose} {args.seed}")


def model_flags(args: argparse.Namespace) -> list[str]:
    """The part of our server's command line that names the model."""
    return ["--model-path", args.model_path] if args.model_path else ["--demo", args.demo]


@contextmanager
def server(args: argparse.Namespace, record: Run, name: str = "server") -> Iterator[Target]:
    """The server at `--url`, or one of ours for the time of a `with`; either is noted."""
    if args.url:
        record.server(name, "", servers.facts(args.url))
        yield target(args, args.url)
        return
    with servers.serving("ours", [*model_flags(args), *args.server_flags], record.log(name)) as started:
        record.server(name, started.command, servers.facts(started.url))
        yield target(args, started.url)


def target(args: argparse.Namespace, url: str) -> Target:
    """Where the load goes."""
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    return Target(url, args.model or servers.model_name(url), args.budget_field, args.max_tokens, args.check,
                  args.extra_body, headers)


def warm_up(to: Target, args: argparse.Namespace) -> None:
    """One load of other questions with a budget, whose times do not count.

    Raises:
        BenchError: no request of it was answered, so none would be.
    """
    budget = next((b for b in args.budgets if b != UNLIMITED), UNLIMITED)
    rows: list[Row] = []
    run(to, [Ask(task, budget) for task in tasks(args, args.concurrency, "warm-up")], concurrency=args.concurrency,
        label="warm-up", keep=rows.append)
    errors = [row["error"] for row in rows if row.get("error")]
    if len(errors) == len(rows):
        raise BenchError(f"no request was answered: {errors[0]}")


def shown(budget: int) -> str:
    """A budget as the reports write it."""
    return "no limit" if budget == UNLIMITED else str(budget)


def failures(rows: Sequence[Row]) -> list[Table]:
    """A table of what went wrong, if anything did."""
    errors = Counter(row["error"] for row in rows if row.get("error"))
    counted = [[error, count] for error, count in errors.items()]
    return [Table("Requests that failed", ["error", "how often"], counted)] if counted else []
