"""`launch.py`, `sglang serve` and `Engine`: they start, they refuse, and they leave nothing behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import servers
from asked_ends import check_choices, check_ends
from release_copy import has_data_parallel
from servers import FLOAT32

START_SECONDS = 300
LOOP = {"temperature": 0, "max_new_tokens": 12}


@pytest.mark.parametrize(("flags", "expected"), [
    (["--think-budget", "-2"], ["--think-budget", "-2", "-1"]),
    (["--think-budget", "many"], ["--think-budget", "many", "integer"]),
    (["--think-budget", "1.5"], ["--think-budget", "1.5", "integer"]),
    (["--think-budget"], ["--think-budget", "expected one argument"]),
    (["--think-budget", "9", "--think-budget-max", "8"], ["--think-budget", "9", "8"]),
    (["--think-start", "<a>"], ["--think-start", "--think-end"]),
    (["--think-budgets", "5"], ["--think-budgets"]),
    (["--no-such-flag"], ["--no-such-flag"]),
    (["--port", "http"], ["--port", "http"]),
    (["--dtype", "float7"], ["--dtype", "float7"]),
])
def test_bad_command_lines_end_with_status_2(flags: list[str], expected: list[str]) -> None:
    done = servers.run("launch.py", *flags)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-2:]
    assert all(part in last[0] for part in expected), done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_there_ends_with_status_2() -> None:
    done = servers.run("launch.py", "--model-path", "/no/such/model")
    assert done.returncode == 2, done.stderr
    assert "/no/such/model" in done.stderr.strip().splitlines()[-2]


def test_refuses_when_the_plugin_is_filtered_out() -> None:
    done = servers.run("launch.py", "--think-budget", "5", SGLANG_PLUGINS="another")
    assert done.returncode == 2
    assert "SGLANG_PLUGINS" in done.stderr


def test_refuses_a_default_budget_that_it_cannot_enforce(demo_model: Path) -> None:
    """Nothing names the demo model's markers when it is given as a plain model."""
    done = servers.run("launch.py", "--model-path", str(demo_model), "--think-budget", "5",
                       "--port", str(servers.free_port()))
    assert done.returncode == 2, done.stderr[-2000:]
    assert "markers are unknown" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_our_flags_apart() -> None:
    done = servers.run("launch.py", "--help")
    assert done.returncode == 0
    ours, sglangs = done.stdout.split("sglang's own flags:")
    assert "--think-budget N" in ours
    assert "--think-budget" not in sglangs
    assert "--model-path" in sglangs


@pytest.mark.served
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_serves_leaves_no_process(scripted_model: Path, how: signal.Signals) -> None:
    server = servers.launch("--model-path", str(scripted_model))
    assert server.descendants()
    assert not server.stop(how)
    assert server.process.returncode is not None


def lasting(pid: int) -> list[psutil.Process]:
    """Descendants, once one of them has lived for a while: imports start others, like `lscpu`, that end at once."""
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
        if any(time.time() - child.create_time() > 0.5 for child in found):
            return found
    return []


@pytest.mark.served
def test_a_signal_while_it_starts_leaves_no_process(scripted_model: Path) -> None:
    process = servers.begin("launch.py", "--model-path", str(scripted_model), "--port", str(servers.free_port()))
    children, deadline = [], time.monotonic() + START_SECONDS
    while not children and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        children = lasting(process.pid)
    process.terminate()
    process.wait(40)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert children
    assert not alive


def test_address_and_curl_line_are_printed(scripted_server: servers.Server) -> None:
    url, deadline = scripted_server.url, time.monotonic() + 30
    while "curl -s" not in scripted_server.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    log = scripted_server.log.read_text()
    assert f"Serving on {url}" in log
    assert f"curl -s {url}/v1/chat/completions" in log
    assert "No GPU found" in log


def closed(result: dict[str, Any], budget: int) -> bool:
    think = result["meta_info"]["think"]
    return (think["tokens"], think["outcome"]) == (budget, "forced")


def looping(model: Path, budget: int | None = None) -> dict[str, Any]:
    """A request to the scripted model that would think for ever."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = [*tokenizer.encode("<think>\n"), tokenizer.convert_tokens_to_ids("loop")]
    return {"input_ids": ids, "sampling_params": LOOP if budget is None else {**LOOP, "think_budget": budget}}


@pytest.mark.served
@pytest.mark.parametrize("by", ["flag", "environment"])
def test_sglang_serve(scripted_model: Path, by: str) -> None:
    port = servers.free_port()
    flags = ["--think-budget", "3"] if by == "flag" else []
    extra = {} if by == "flag" else {"SGLANG_EXT_THINK_BUDGET": "3"}
    server = servers.start([servers.SGLANG, "serve", "--model-path", str(scripted_model), "--port", str(port),
                            "--device", "cpu", "--max-total-tokens", "4096", "--reasoning-parser", "qwen3", *flags,
                            *FLOAT32], port, SGLANG_USE_CPU_ENGINE="1", **extra)
    try:
        assert closed(server.generate(**looping(scripted_model)), 3)
        assert closed(server.generate(**looping(scripted_model, 1)), 1)
    finally:
        assert not server.stop()


def test_sglang_serve_without_the_plugin_does_not_know_the_flag(scripted_model: Path) -> None:
    done = servers.run(servers.SGLANG, "serve", "--model-path", str(scripted_model), "--device", "cpu",
                       "--think-budget", "3", SGLANG_USE_CPU_ENGINE="1", SGLANG_PLUGINS="another")
    assert done.returncode == 2
    assert "--think-budget" in done.stderr


ENGINE = """
import json, sys
import sglang_ext
import sglang

def main():
    model, request = sys.argv[1], json.loads(sys.argv[2])
    engine = sglang.Engine(model_path=model, device="cpu", attention_backend="torch_native", max_total_tokens=4096,
                           dtype="float32", reasoning_parser="qwen3")
    try:
        once = engine.generate(input_ids=request["input_ids"], sampling_params=request["sampling_params"])
        both = engine.generate(input_ids=[request["input_ids"]] * 2, sampling_params=[
            {**request["sampling_params"], "think_budget": 1}, {**request["sampling_params"], "think_budget": 2}])
        later = engine.loop.run_until_complete(engine.async_generate(
            input_ids=request["input_ids"], sampling_params={**request["sampling_params"], "thinking_budget": 3}))
        try:
            engine.generate(input_ids=request["input_ids"], sampling_params={"think_budget": -5})
            error = None
        except ValueError as e:
            error = str(e)
        print("RESULT" + json.dumps([[r["meta_info"]["think"] for r in [once, *both, later]], error]))
    finally:
        engine.shutdown()

if __name__ == "__main__":
    main()
"""


@pytest.mark.served
def test_engine_from_python(scripted_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    done = servers.run(str(script), str(scripted_model), json.dumps(looping(scripted_model)),
                       SGLANG_USE_CPU_ENGINE="1", SGLANG_EXT_THINK_BUDGET="4")
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT")), None)
    assert line, done.stderr[-3000:]
    thinks, error = json.loads(line.removeprefix("RESULT"))
    assert [(t["tokens"], t["outcome"]) for t in thinks] == [(4, "forced"), (1, "forced"), (2, "forced"),
                                                             (3, "forced")]
    assert "think_budget" in error
    assert "-5" in error


@pytest.fixture(scope="module")
def parallel_server(scripted_model: Path) -> Iterator[servers.Server]:
    """Two data parallel schedulers behind two tokenizer workers."""
    if not has_data_parallel():
        pytest.skip("this release has no data parallel servers")
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--dp", "2",
                            "--tokenizer-worker-num", "2", "--think-budget", "6", "--max-total-tokens", "4096",
                            *FLOAT32)
    yield server
    assert not server.stop()


@pytest.mark.served
def test_data_parallel_and_several_tokenizer_workers(parallel_server: servers.Server, scripted_model: Path) -> None:
    budgets = [0, 1, 2, 3, 4, 5, None, 7] * 2
    results = parallel_server.generate_all([looping(scripted_model, b) for b in budgets])
    assert all(closed(r, 6 if b is None else b) for r, b in zip(results, budgets, strict=True))
    assert {r["meta_info"]["dp_rank"] for r in results} == {0, 1}


@pytest.mark.served
def test_every_tokenizer_worker_checks_budgets(parallel_server: servers.Server, scripted_model: Path) -> None:
    for _ in range(8):
        response = parallel_server.post("/generate", looping(scripted_model, -4))
        assert response.status_code == 400
        chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "think_budget": "4"}
        assert parallel_server.post("/v1/chat/completions", chat).status_code == 400


@pytest.mark.served
def test_ends_reach_every_scheduler_from_every_tokenizer_worker(parallel_server: servers.Server,
                                                                scripted_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(scripted_model)
    check_ends(parallel_server, tokenizer, "parallel", loop=False)
    check_choices(parallel_server, tokenizer, "parallel")


def test_data_parallel_is_refused_where_it_is_not_served(scripted_model: Path) -> None:
    if has_data_parallel():
        pytest.skip("this release has data parallel servers")
    done = servers.run("launch.py", "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--dp", "2",
                       "--port", str(servers.free_port()))
    assert done.returncode == 2, done.stderr[-2000:]
    assert "data parallel servers (--dp) are not served there" in done.stderr.strip().splitlines()[-2]
