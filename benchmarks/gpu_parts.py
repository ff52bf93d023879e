"""The parts of `gpu_check`: each yields records, and raises where something is not as it must be.

`where` is `cuda`, or `cpu` in a dry run, which is small (`dry`) and leaves out what only a device has.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_budget_kernels as bench
import pytest
import torch
import triton
import triton.language as tl
from sglang_ext.budget.kernels import BudgetState, Tables, Word, advance, commit, mask_logits, prewarm, walk
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import NO_LIMIT, WORDS

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
VOCAB = 151_936
AIM_US = 3.0
"""Of mask and advance together, on a device of the H200's class, at batch 256."""


def about(where: str) -> Record:
    """What every record says of the machine."""
    return {"device": bench.device_name(where), "torch": torch.__version__, "triton": triton.__version__,
            "python": sys.version.split()[0]}


def _wait(where: str) -> None:
    if where != "cpu":
        torch.cuda.synchronize()


def _median_us(call: Callable[[], Any], where: str, dry: bool) -> float:
    """Of the calling thread, for one call; the device is let catch up in between."""
    return bench.host_us(call, 0.002 if dry else 0.05, where)


@triton.jit
def _nothing(out, value: tl.constexpr):
    if value == 0:
        tl.store(out, 1)


def device(where: str, dry: bool) -> Iterator[Record]:
    """Ceilings to hold the figures against: bytes a second, one empty launch, a pinned copy."""
    if where != "cpu":
        properties = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        try:
            driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            driver = "unknown"
        yield {"processors": properties.multi_processor_count, "bytes": properties.total_memory, "driver": driver,
               "capability": list(torch.cuda.get_device_capability())}
    size = (1 << 20) if dry else (1 << 31)
    source, out = (torch.empty(size, dtype=torch.uint8, device=where) for _ in range(2))
    source.random_()
    seconds = []
    for _ in range(7):
        _wait(where)
        start = time.perf_counter()
        out.copy_(source)
        _wait(where)
        seconds.append(time.perf_counter() - start)
    yield {"copy_tb_per_s": round(2 * size / statistics.median(seconds) / 1e12, 3)}
    if where != "cpu":
        def launch() -> None:
            _nothing[(256,)](out, 1, num_warps=1)

        launch()
        yield {"empty_launch": {"host_us": _median_us(launch, where, dry), "device_us": bench.device_us(launch)}}
    host = torch.zeros(256, WORDS, dtype=torch.int32)
    host = host.pin_memory() if where != "cpu" else host
    yield {"rows_sent_host_us": _median_us(lambda: host.to(where, non_blocking=True), where, dry)}


def first(where: str, dry: bool) -> Iterator[Record]:
    """The cost of a start: kernels compiled and loaded, then loaded from Triton's cache, then there."""
    vocab = 4096 if dry else VOCAB
    a = bench.automaton(vocab)
    state, tables = BudgetState.allocate(64, a.program, 8, where), Tables.from_host(a, where)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for state_of_cache in ("empty", "filled", "in memory"):
            start = time.perf_counter()
            prewarm(state, tables, vocab, (torch.float32,), drafts=True)
            _wait(where)
            yield {"cache": state_of_cache, "prewarm_s": round(time.perf_counter() - start, 3)}
            if state_of_cache == "empty":
                _forget_kernels()
        yield {"compiled_later": _compiled_later(state, tables, vocab, where, 5 if dry else 60)}


def _forget_kernels() -> None:
    for verb in ("mask", "advance", "walk", "commit"):
        kernel = getattr(sys.modules[f"sglang_ext.budget.kernels.{verb}"], f"_{verb}_kernel")
        kernel.device_caches.clear()


def _compiled_later(state: BudgetState, tables: Tables, vocab: int, where: str, rounds: int) -> int:
    """Kernels that steps of any batch and width compile after `prewarm`: there must be none."""
    compiled: list[str] = []

    def note(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    rng = random.Random(0)
    kept, triton.knobs.runtime.jit_post_compile_hook = triton.knobs.runtime.jit_post_compile_hook, note
    try:
        for _ in range(rounds):
            n, width = rng.randint(1, 64), rng.randint(1, 20)
            logits = torch.zeros(n * width, vocab + rng.choice([0, 1, 64]), device=where)[:, :vocab]
            rows, last = torch.randperm(64, device=where)[:n], torch.zeros(n, dtype=torch.int64, device=where)
            tokens = torch.ones(n, width, dtype=rng.choice([torch.int32, torch.int64]), device=where)
            parents = (torch.arange(width, device=where) - 1).int().expand(n, width).contiguous()
            above, nodes = rng.choice([None, parents]), state.allocate_nodes(n, width)
            mask_logits(logits[:n], rows, state, tables)
            advance(tokens[:, 0].contiguous(), rows, state, tables)
            walk(logits, tokens.long(), above, rows, nodes, state, tables)
            commit(tokens, last, above, rows, nodes, state, tables)
    finally:
        triton.knobs.runtime.jit_post_compile_hook = kept
    if compiled:
        raise AssertionError(f"compiled in steps: {sorted(set(compiled))}")
    return len(compiled)


def reference(where: str, dry: bool) -> Iterator[Record]:
    """The kernels' own tests, on the device: equality with the reference, tolerance zero."""
    os.environ["BUDGET_TEST_SCALE"] = "0.02" if dry else "1"
    os.chdir(ROOT)
    for file in ("test_budget_kernels", "test_budget_oracle", "test_budget_device"):
        start = time.perf_counter()
        status = pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not interpreter",
                              f"tests/{file}.py"])
        yield {"tests": file, "status": int(status), "seconds": round(time.perf_counter() - start, 1)}
        if status != 0:
            raise AssertionError(f"{file} fails on {where}")


def times(where: str, dry: bool) -> Iterator[Record]:
    """What a step costs: first the aim, then by batch, history, rows at their limit, width and dtype."""
    torch.set_num_threads(1)
    vocab = 4096 if dry else VOCAB
    a = bench.automaton(vocab)
    bench.Point(a, vocab, 4, 100, 4, 2, 0, torch.float32, where).prove()
    bench.Point(a, vocab, 4, 100, 4, 2, 8, torch.float32, where).prove()
    for at in list(_grid())[: 2 if dry else None]:
        dtype = at.pop("dtype")
        point = bench.Point(a, vocab, **at, dtype=getattr(torch, dtype), device=where)
        found = bench.measure(point, 0.001 if dry else 0.03, where)
        record: Record = {**at, "dtype": dtype, "times": found}
        ours = [found[name].get("device_us") for name in ("ours before", "ours after")]
        if None not in ours:
            record["ours_device_us"] = round(sum(ours), 2)
            record["within_aim"] = record["ours_device_us"] <= AIM_US
        yield record
        del point


def _grid() -> Iterator[Record]:
    common = {"history": 512, "walls": 0, "dtype": "float32"}
    for batch, drafts in itertools.product((256, 64, 1), (0, 8)):
        yield {**common, "batch": batch, "budgeted": batch, "drafts": drafts}
    for batch, history in ((64, 4096), (64, 32_768)):
        yield {**common, "history": history, "batch": batch, "budgeted": batch, "drafts": 0}
    for walls, drafts in itertools.product((1, 16), (0, 8)):
        yield {**common, "batch": 256, "budgeted": 256, "walls": walls, "drafts": drafts}
    for drafts in (2, 4, 16):
        yield {**common, "batch": 64, "budgeted": 64, "drafts": drafts}
    for drafts in (0, 8):
        yield {**common, "dtype": "bfloat16", "batch": 256, "budgeted": 256, "drafts": drafts}
    yield {**common, "batch": 256, "budgeted": 1, "drafts": 0}


def graph(where: str, dry: bool) -> Iterator[Record]:
    """A step is captured once and replayed: limits that the host changes in between hold in the next replay."""
    from budget_cases import make_case

    case = make_case("plain", 1025, True, 8 if dry else 64, torch.float32, 0, 7, where)
    rows = torch.tensor(sorted({abs(slot) for slot in case.slots}), device=where)
    start, logits = torch.randn(len(rows), case.width, device=where), torch.empty(len(rows), case.width, device=where)

    def step() -> torch.Tensor:
        logits.copy_(start)
        mask_logits(logits, rows, case.state, case.tables)
        tokens = logits.argmax(1)
        advance(tokens, rows, case.state, case.tables)
        return tokens

    first_words = case.state.words.clone()
    step()  # compiles
    replay, tokens = _captured(step, where)
    case.state.words.copy_(first_words)
    for i in range(3 if dry else 50):
        for slot in rows.tolist()[i % 3 :: 3]:
            case.words[slot][Word.MAX] = case.rng.choice([0, 1, 2, case.words[slot][Word.USED] + 1, NO_LIMIT])
        limits = torch.tensor([case.words[slot] for slot in rows.tolist()], dtype=torch.int32)
        case.state.words[rows] = limits.to(where)
        replay()
        wanted = []
        for values, slot in zip(start.tolist(), rows.tolist(), strict=True):
            ref.mask_row(values, case.words[slot], case.program, case.automaton)
            sampled = max(range(len(values)), key=values.__getitem__)
            wanted.append(ref.advance_row(sampled, case.words[slot], case.program, case.automaton))
        if tokens().tolist() != wanted:
            raise AssertionError(f"replay {i} wrote other tokens than the reference")
        case.check_words()
    yield {"replays": i + 1, "requests": len(rows)}


def _captured(step: Callable[[], torch.Tensor], where: str) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """How to run the step again, and where its tokens then are."""
    if where == "cpu":
        kept: list[torch.Tensor] = []
        return lambda: kept.insert(0, step()), lambda: kept[0]
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = step()
    return captured.replay, lambda: out


def waits(where: str, dry: bool) -> Iterator[Record]:
    """Every helper of a step under torch's own watch, which raises where the host waits."""
    from step_helpers import HELPERS

    found: Record = {}
    for name, prepare in HELPERS.items():
        call = prepare(where)
        call()  # compiles, and loads torch's kernels
        _wait(where)
        if where != "cpu":
            torch.cuda.set_sync_debug_mode("error")
        try:
            call()
            found[name] = "does not wait"
        except RuntimeError as error:
            found[name] = str(error).splitlines()[0]
        finally:
            if where != "cpu":
                torch.cuda.set_sync_debug_mode("default")
        yield {"helper": name, "found": found[name]}
    if set(found.values()) != {"does not wait"}:
        raise AssertionError("helpers wait")


def uag_round(where: str, dry: bool) -> Iterator[Record]:
    """The tensors of a UAG round at width 8, without its models: device and host time of each helper, and of all."""
    from step_helpers import round_helpers

    for batch in (1,) if dry else (1, 16, 64):
        for name, call in round_helpers(where, batch, 8).items():
            record = {"batch": batch, "helper": name, "host_us": _median_us(call, where, dry)}
            if where != "cpu":
                _wait(where)
                start, repeat = time.perf_counter(), 50
                for _ in range(repeat):
                    call()
                _wait(where)
                record["until_done_us"] = (time.perf_counter() - start) / repeat * 1e6
            yield record
