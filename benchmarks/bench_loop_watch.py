"""Host time a token of the search for loops, at a batch of 64.

    python benchmarks/bench_loop_watch.py

Rows of 4,000 ids, one token a step: noise, a table that repeats a row but for its numbers, what nearly is a loop again
and again, and cycles within cycles that break before they are one. The loop over the rows is measured without a watch
too, and taken off.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from sglang_ext.budget.loops import LEAST, LoopWatch

BATCH, LENGTH = 64, 4000


def noise(rng: random.Random) -> list[int]:
    return [rng.randrange(50_000) for _ in range(LENGTH)]


def table(rng: random.Random) -> list[int]:
    row = [rng.randrange(50_000) for _ in range(40)]
    return [token for i in range(LENGTH // 42 + 1) for token in (*row, i % 10, 100 + i // 10)][:LENGTH]


def nearly(rng: random.Random) -> list[int]:
    return [token for _ in range(LENGTH // LEAST + 1) for token in (*[7] * (LEAST - 1), rng.randrange(50_000))][:LENGTH]


def nested(rng: random.Random) -> list[int]:
    ids: list[int] = []
    while len(ids) < LENGTH:
        ids += [*[7] * 127, rng.randrange(9)] * 3 + [7] * rng.randint(90, 128) + [rng.randrange(9)]
    return ids[:LENGTH]


def seconds(rows: list[list[int]], watched: bool) -> float:
    watches = [LoopWatch() for _ in rows]
    begin = time.process_time()
    for length in range(1, LENGTH + 1):
        for ids, watch in zip(rows, watches, strict=True):
            if watched:
                watch.enter(0)
                watch.found(ids, length)
    return time.process_time() - begin


def main() -> None:
    kinds: list[Callable[[random.Random], list[int]]] = [noise, table, nearly, nested]
    for kind in kinds:
        rng = random.Random(1)
        rows = [kind(rng) for _ in range(BATCH)]
        each = 1e6 * (seconds(rows, watched=True) - seconds(rows, watched=False)) / (BATCH * LENGTH)
        print(f"{kind.__name__}: {each:.2f} us a token")


if __name__ == "__main__":
    main()
