"""The scripts for machines with a GPU, as far as a machine without one can run them."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import gpu_check
import gpu_serve
import pytest
from gpu_serve_step import summary

ROOT = Path(gpu_check.__file__).parent.parent


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_check_in_small_on_the_cpu(tmp_path: Path) -> None:
    """Every part ends, has written something with the machine's name, and says how it ended."""
    out = tmp_path / "check.jsonl"
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "gpu_check.py", "--dry-run", "--out", out],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = lines(out)
    assert [row["part"] for row in found if "ended" in row] == list(gpu_check.PARTS)
    assert {row["ended"] for row in found if "ended" in row} == {"done"}
    results = [row for row in found if "ended" not in row]
    assert {row["part"] for row in results} == set(gpu_check.PARTS)
    assert all(row["device"] and row["torch"] and row["triton"] for row in results)


def test_parts_fit_into_the_time() -> None:
    assert sum(part.seconds for part in gpu_check.PARTS.values()) <= 14 * 60


def test_a_part_has_its_limit_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hangs and one fails: what they wrote before is there, and so is what the others wrote."""
    parts = {"hangs": gpu_check.Part("hangs", 3, ""), "fails": gpu_check.Part("fails", 30, ""),
             "works": gpu_check.Part("works", 30, "")}
    module = tmp_path / "gpu_parts.py"
    module.write_text("""
import subprocess, time
def about(where): return {"device": where}
def hangs(where, dry):
    yield {"child": subprocess.Popen(["sleep", "600"]).pid}
    time.sleep(600)
def fails(where, dry):
    yield {"before": 1}
    raise AssertionError("wrong")
def works(where, dry):
    yield {"all": "well"}
""")
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    monkeypatch.setattr(gpu_check, "stand_alone", lambda: sys.path.insert(0, str(tmp_path)))
    monkeypatch.delitem(sys.modules, "gpu_parts", raising=False)
    out = tmp_path / "out.jsonl"
    assert gpu_check.main(["--dry-run", "--out", str(out), "--only", *parts]) == 1
    found = lines(out)
    assert [row["ended"] for row in found if "ended" in row] == ["cut", "failed", "done"]
    assert {"part": "works", "device": "cpu", "all": "well"} in found
    child = next(row["child"] for row in found if "child" in row)
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_the_check_needs_no_sglang_and_no_installation(tmp_path: Path) -> None:
    code = f"""import sys
sys.modules["sglang"] = None
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path.append({str(ROOT / "benchmarks")!r})
import gpu_check
gpu_check.stand_alone()
import gpu_parts
assert len(list(gpu_parts.waits("cpu", True))) >= 9
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def options(**given: Any) -> Namespace:
    return Namespace(**{"model_path": None, "draft": None, "backends": list(gpu_serve.BACKENDS), "only": None,
                        "out": Path("out"), "minutes": 60.0, "dry_run": True, "device": "cuda", **given})


def test_the_plan_for_an_hour(tmp_path: Path) -> None:
    """Every program and test file that it names is there, every flag is one of theirs, and the steps fit."""
    assert gpu_serve.main(["--dry-run", "--out", str(tmp_path)]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())["steps"]
    assert [step["step"] for step in plan] == [step.name for step in gpu_serve.plan(options())]
    assert not (tmp_path / "steps.jsonl").exists()
    for step in gpu_serve.plan(options()):
        for part in step.command:
            if part.endswith(".py") or part.startswith("sglang_ext/"):
                assert (ROOT / part).exists(), part
    backends = [step["variables"].get(gpu_serve.FLAGS_VARIABLE, "") for step in plan]
    for backend in gpu_serve.BACKENDS:
        assert any("--dtype bfloat16" in flags and f"--attention-backend {backend}" in flags for flags in backends)
    assert {"step-NGRAM", "step-STANDALONE", "step-UAG", "overhead", "budget"} <= {step["step"] for step in plan}


def test_a_rehearsal_has_the_same_steps_on_a_cpu() -> None:
    """All of them but those of further attention backends, and none that asks for a GPU."""
    hour, rehearsal = gpu_serve.plan(options(backends=["fa3"])), gpu_serve.plan(options(device="cpu"))
    assert [step.name.replace("torch_native", "fa3") for step in rehearsal] == [step.name for step in hour]
    text = str([(step.command, step.variables) for step in rehearsal])
    assert "cuda" not in text
    assert "fa3" not in text
    assert "--device cpu" in text


def test_the_benchmarks_take_the_plans_flags() -> None:
    """sglang_ext.bench itself reads each command line of the plan."""
    from sglang_ext.bench.__main__ import _parser

    commands = [step.command for step in gpu_serve.plan(options()) if "sglang_ext.bench" in step.command]
    assert len(commands) == 3
    for command in commands:
        _parser().parse_args(list(command[2:]))


@pytest.mark.parametrize(("flags", "message"), [
    (["--only", "nothing"], "'nothing' is unknown; accepted: kernels, served-fa3"),
    (["--model-path", "nowhere"], "'nowhere' has no config.json"),
    (["--backends", "aiter"], "invalid choice: 'aiter'"),
])
def test_a_bad_plan_is_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_serve.parse(flags)
    assert message in capsys.readouterr().err


def test_what_a_trace_says() -> None:
    def event(name: str, cat: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur}

    events = [event("gemm", "kernel", 0, 10), event("copy", "gpu_memcpy", 5, 10),
              event("_mask_kernel", "kernel", 20, 2), event("_mask_kernel", "kernel", 30, 4),
              event("cudaEventSynchronize", "cuda_runtime", 3, 7), event("cudaLaunchKernel", "cuda_runtime", 3, 1),
              {"ph": "M", "name": "process_name"}]
    assert summary(events) == {
        "device_us": 34, "device_busy_us": 21, "kernels": 3,
        "ours": {"_mask_kernel": {"launches": 2, "median_us": 3}}, "host_waits": {"count": 1, "us": 7}}
