"""Time the think budget's kernels, after proving that they do what the reference and the other designs do.

    python benchmarks/bench_budget_kernels.py [--quick]

Every line of benchmarks/results/budget_kernels.jsonl is one point of the grid on one device. Times are microseconds,
the median of many calls. `device_us` is the time on the GPU, replayed from a CUDA graph; `host_us` is what the calling
thread spends, on a CPU in CPU time. A budgeted row is thinking and far from its wall, as almost all rows are in almost
all steps; `--walls` puts some at it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
from bench_budget_baselines import Positions, Scan
from sglang_ext.budget.kernels import BudgetState, Flag, Outcome, Tables, Word, advance, commit, mask_logits, walk
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import NO_LIMIT, NOT_FORCING, WORDS

from sglang_ext.budget.automaton import Automaton, Markers, Vocabulary

START, END, EOS, TEXT, PROMPT = 0, 1, 2, 7, 64
RESULTS = Path(__file__).parent / "results" / "budget_kernels.jsonl"


def automaton(vocab: int) -> Automaton:
    pieces = [b"<think>", b"</think>", b"", b"\n", *(b"%x" % i for i in range(4, vocab))]
    return Automaton(Markers(b"<think>", b"</think>"), Vocabulary(pieces, START, (END,), (), (EOS,)))


class Point:
    """One point of the grid: a batch of requests that have thought `history` tokens, in each design's own form."""

    def __init__(self, a: Automaton, vocab: int, batch: int, history: int, budgeted: int, walls: int, drafts: int,
                 dtype: torch.dtype, device: str) -> None:
        self.a, self.width, self.batch = a, drafts + 1, batch
        budgets = [None if i >= budgeted else history if i < walls else NO_LIMIT for i in range(batch)]
        state = BudgetState.allocate(batch, a.program, 4, "cpu")
        for i, budget in enumerate(budgets):
            state.words[i] = torch.tensor(self._row(budget, history), dtype=torch.int32)
        self.state = BudgetState(state.words.to(device), state.program.to(device), state.shared, state.stride)
        self.tables, self.nodes = Tables.from_host(a, device), self.state.allocate_nodes(batch, self.width)
        self.rows = torch.arange(batch, device=device)
        self.logits = torch.zeros(batch * self.width, vocab, dtype=dtype, device=device)
        self.draft = torch.full((batch, self.width), TEXT, device=device)
        self.sampled, self.last = self.draft.clone(), torch.zeros(batch, dtype=torch.int64, device=device)
        prompt, output = [TEXT] * (PROMPT - 1) + [START], [TEXT] * history
        self.scan = Scan(prompt, [list(output) for _ in range(batch)], budgets, START, END)
        ids = torch.tensor([prompt + output] * batch, dtype=torch.int32, device=device)
        self.positions = Positions(
            ids, torch.full((batch,), PROMPT + history, dtype=torch.int32, device=device), self.width,
            torch.tensor([-1 if b is None else b for b in budgets], dtype=torch.int32, device=device), START, END)

    def _row(self, budget: int | None, history: int) -> list[int]:
        row = [0] * WORDS
        if budget is not None:
            row[Word.AUTO] = int(self.a.bytewise.words[self.a.bytewise.block_start])
            row[Word.USED], row[Word.OUTCOME], row[Word.MAX] = history, Outcome.OPEN, budget
            row[Word.FLAGS] = Flag.ACTIVE | Flag.EOS_CLOSES
            row[Word.GRACE], row[Word.RESPONSE_LIMIT] = NO_LIMIT, NO_LIMIT
        row[Word.CURSOR] = NOT_FORCING
        ref.start_forcing_if_due(row, self.a, chosen=False)
        return row

    def ours_before(self, logits: torch.Tensor | None = None) -> None:
        logits = self.logits if logits is None else logits
        if self.width == 1:
            mask_logits(logits, self.rows, self.state, self.tables)
        else:
            walk(logits, self.draft, None, self.rows, self.nodes, self.state, self.tables)

    def ours_after(self) -> None:
        if self.width == 1:
            advance(self.sampled.view(-1), self.rows, self.state, self.tables)
        else:
            commit(self.sampled, self.last, None, self.rows, self.nodes, self.state, self.tables)

    def scan_before(self, logits: torch.Tensor | None = None) -> None:
        self.scan.mask(self.logits if logits is None else logits, [[TEXT] * (self.width - 1)] * self.batch)

    def positions_before(self, logits: torch.Tensor | None = None) -> None:
        self.positions.mask(self.logits if logits is None else logits, self.draft)

    def prove(self) -> None:
        """Ours equals the reference; the other designs choose what ours does."""
        logits = torch.randn(self.logits.shape).to(self.logits)
        ours, scan, positions = logits.clone(), logits.clone(), logits.clone()
        words, program = self.state.words.tolist(), self.state.program.tolist()
        expected = logits.cpu().clone().view(self.batch, self.width, -1)
        alive = torch.ones(self.batch, self.width, dtype=torch.bool)
        for i, row in enumerate(words):
            for j, node in enumerate(ref.walk_row([TEXT] * self.width, None, row, program, self.a)):
                values = expected[i, j].tolist()
                ref.mask_row(values, node, program, self.a)
                expected[i, j] = torch.tensor(values).to(expected.dtype)
                alive[i, j] = bool(node[Word.FLAGS] & Flag.ACTIVE) or not row[Word.FLAGS] & Flag.ACTIVE
        self.ours_before(ours)
        torch.testing.assert_close(ours.cpu(), expected.view(ours.shape), rtol=0, atol=0)
        self.scan_before(scan)
        self.positions_before(positions)
        for other in (scan, positions):  # a node that cannot be accepted is left alone by ours alone
            assert torch.equal(ours.argmax(1).cpu()[alive.view(-1)], other.argmax(1).cpu()[alive.view(-1)])
        tokens = [ref.advance_row(TEXT, row, program, self.a) for row in words]
        self.ours_after()
        assert self.sampled[:, 0].tolist() == tokens
        assert self.state.words.tolist() == words


def host_us(call: Callable[[], None], seconds: float, device: str) -> float:
    """Median over rounds of what the calling thread spends. On a CPU that is its CPU time, which other programs on the
    machine do not lengthen; with a GPU it is the time that passes, and the GPU is let catch up between rounds."""
    clock = time.thread_time if device == "cpu" else time.perf_counter

    def spent(repeat: int) -> float:
        begin = clock()
        for _ in range(repeat):
            call()
        return max(clock() - begin, 1e-7) / repeat

    first = spent(1)
    once = first if first > 1 else spent(1)
    if once > seconds:  # the slow ones need no second look
        return round(once * 1e6, 2)
    repeat = max(1, min(200, int(seconds / 10 / once)))
    rounds: list[float] = []
    while len(rounds) < 3 or sum(rounds) * repeat < seconds:
        if device != "cpu":
            torch.cuda.synchronize()
        rounds.append(spent(repeat))
    return round(statistics.median(rounds) * 1e6, 2)


def device_us(call: Callable[[], None]) -> float:
    return round(triton.testing.do_bench_cudagraph(call, rep=20, return_mode="median") * 1e3, 2)


def measure(point: Point, seconds: float, device: str) -> dict[str, dict[str, float]]:
    calls = {"ours before": point.ours_before, "ours after": point.ours_after, "scan": point.scan_before,
             "positions": point.positions_before}
    times: dict[str, dict[str, float]] = {}
    for name, call in calls.items():
        times[name] = {"host_us": host_us(call, seconds, device)}
        if device != "cpu" and name != "scan":
            times[name]["device_us"] = device_us(call)
    return times


def device_name(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] \
        if info.exists() else []
    return f"{models[0] if models else platform.processor()}, {torch.get_num_threads()} thread(s)"


def grid(options: argparse.Namespace) -> Iterator[dict[str, int]]:
    for batch, history, share, drafts in itertools.product(options.batch, options.history, options.share,
                                                           options.drafts):
        budgeted = {"none": 0, "one": 1, "all": batch}[share]
        yield {"batch": batch, "history": history, "budgeted": budgeted, "walls": min(options.walls, budgeted),
               "drafts": drafts}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--history", type=int, nargs="+", default=[512, 4096, 32768])
    parser.add_argument("--share", choices=["none", "one", "all"], nargs="+", default=["none", "one", "all"])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 4, 8])
    parser.add_argument("--walls", type=int, default=0, help="budgeted rows that are at their wall")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time")
    parser.add_argument("--quick", action="store_true", help="a few points, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.quick:
        options.batch, options.history, options.share = [1, 64], [512, 4096], ["all"]
        options.drafts, options.seconds = [0, 4], 0.05
    return options


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    a, dtype = automaton(options.vocab), getattr(torch, options.dtype)
    for drafts in options.drafts:
        for budgeted, walls in ((0, 0), (1, 0), (4, 2)):
            Point(a, options.vocab, 4, 100, budgeted, walls, drafts, dtype, options.device).prove()
    print("equal to the reference; the other designs choose the same ids", flush=True)
    common = {"device": device_name(options.device), "torch": torch.__version__, "triton": triton.__version__,
              "vocab": options.vocab, "dtype": options.dtype}
    options.out.parent.mkdir(exist_ok=True)
    for where in grid(options):
        times = measure(Point(a, options.vocab, **where, dtype=dtype, device=options.device), options.seconds,
                        options.device)
        with options.out.open("a") as file:
            file.write(json.dumps(common | where | {"times": times}) + "\n")
        print(*(f"{k} {v}" for k, v in where.items()), "|",
              *(f"{name}: {'/'.join(map(str, t.values()))}" for name, t in times.items()), flush=True)


if __name__ == "__main__":
    main()
