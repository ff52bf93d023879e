"""Command lines that UAG cannot serve end with status 2 and one line that names the flag and the reason."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import servers
from uag_models import build_random_model

from sglang_ext.uag.algorithm import set_defaults


@pytest.fixture(scope="module")
def files(scripted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the command lines below name in braces."""
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(scripted_model / name, folder / "bare")
    (folder / "list.json").write_text('["<|end|>"]')
    (folder / "broken.json").write_text('{"<|end|>": ')
    (folder / "unknown.json").write_text(json.dumps({"<|nowhere|>": "<|end|>"}))
    (folder / "unknown_in_draft.json").write_text(json.dumps({"<|turn|>": "<|nowhere|>"}))
    (folder / "draft").mkdir()
    return {"target": str(scripted_model), "draft": str(build_random_model(folder / "draft")),
            **{path.stem: str(path) for path in folder.iterdir() if path.suffix == ".json"},
            "bare": str(folder / "bare"), "missing": str(folder / "nothing")}


HINT = "See `python launch.py --help`."
DRAFT = "--speculative-draft-model-path"
CASES = {
    "no draft": ([], [DRAFT]),
    "pipeline parallel": ([DRAFT, "{draft}", "--pp-size", "2"], ["--pp-size", "pipeline parallelism"]),
    "attention in parallel": ([DRAFT, "{draft}", "--tp-size", "2", "--attn-dp-size", "2"],
                              ["--attn-dp-size", "data parallel attention"]),
    "the same by its old name": ([DRAFT, "{draft}", "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"],
                                 ["--attn-dp-size", "data parallel attention"]),
    "a context in parallel": ([DRAFT, "{draft}", "--tp-size", "2", "--dcp-size", "2"],
                              ["--dcp-size", "context parallelism"]),
    "a prefill in parallel": ([DRAFT, "{draft}", "--tp-size", "2", "--attn-cp-size", "2", "--enable-prefill-cp",
                               "--cp-strategy", "zigzag"],
                              ["--attn-cp-size", "context parallelism"]),
    "experts in parallel": ([DRAFT, "{draft}", "--tp-size", "2", "--moe-a2a-backend", "deepep"],
                            ["--moe-a2a-backend deepep", "accepted: none"]),
    "no tokenizer": ([DRAFT, "{draft}", "--skip-tokenizer-init"], ["--skip-tokenizer-init", "tokenizer"]),
    "width of one": ([DRAFT, "{draft}", "--speculative-num-draft-tokens", "1"],
                     ["--speculative-num-draft-tokens 1", "2 to 64"]),
    "width of many": ([DRAFT, "{draft}", "--speculative-num-draft-tokens", "65"],
                      ["--speculative-num-draft-tokens 65", "2 to 64"]),
    "sources": ([DRAFT, "{draft}", "--uag-sources", "draft,x"], ["--uag-sources", "'draft,x'", "draft, text"]),
    "a draft without a use": ([DRAFT, "{draft}", "--uag-sources", "text"], ["--uag-sources text", DRAFT, "{draft}"]),
    "a map without a use": (["--uag-sources", "text", "--uag-map", "{list}"], ["--uag-map", "{list}", "text"]),
    "texts": (["--uag-sources", "text", "--uag-text", "x"], ["--uag-text", "'x'", "all, own"]),
    "lengths": ([DRAFT, "{draft}", "--uag-lengths", "x"], ["--uag-lengths", "'x'", "auto, fixed"]),
    "prefill alone": ([DRAFT, "{draft}", "--disaggregation-mode", "prefill"], ["disaggregation"]),
    "a threshold": ([DRAFT, "{draft}", "--speculative-accept-threshold-single", "0.5"],
                    ["--speculative-accept-threshold-single 0.5", "accepted: 1.0"]),
    "another threshold": ([DRAFT, "{draft}", "--speculative-accept-threshold-acc", "0.25"],
                          ["--speculative-accept-threshold-acc 0.25", "accepted: 1.0"]),
    "pdmux": ([DRAFT, "{draft}", "--enable-pdmux", "--chunked-prefill-size", "-1"],
              ["--enable-pdmux", "accepted: without it"]),
    "hisparse": ([DRAFT, "{draft}", "--enable-hisparse"], ["--enable-hisparse", "accepted: without it"]),
    "an embedding": ([DRAFT, "{draft}", "--is-embedding"], ["--is-embedding", "accepted"]),
    "a memory saver": ([DRAFT, "{draft}", "--enable-memory-saver"], ["--enable-memory-saver", "accepted: without it"]),
    "a draft that is not there": ([DRAFT, "{missing}"], [DRAFT, "{missing}"]),
    "a draft without a tokenizer": ([DRAFT, "{bare}"], [DRAFT, "{bare}", "tokenizer"]),
    "a map that is not there": ([DRAFT, "{draft}", "--uag-map", "{missing}"], ["--uag-map", "{missing}"]),
    "a map that is no JSON": ([DRAFT, "{draft}", "--uag-map", "{broken}"], ["--uag-map", "{broken}", "JSON"]),
    "a map that is a list": ([DRAFT, "{draft}", "--uag-map", "{list}"], ["--uag-map", "{list}", "JSON object"]),
    "a map of an unknown token": ([DRAFT, "{draft}", "--uag-map", "{unknown}"], ["--uag-map", "<|nowhere|>"]),
    "a map to an unknown token": ([DRAFT, "{draft}", "--uag-map", "{unknown_in_draft}"], ["--uag-map", "<|nowhere|>"]),
}


PROGRAM = """
import contextlib, json, os, signal, sys
from sglang_ext.serve import main

lines = json.loads(sys.argv[1])
main(lines[0])  # imports what all of them need
for argv in lines:
    if not (child := os.fork()):
        os.setsid()
        signal.alarm(60)
        status = main(argv)
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    print(f"{status} ends", file=sys.stderr, flush=True)
"""
"""`launch.py` for many command lines, each in a process of its own; what takes time are the imports. A command line
that is not refused has a minute."""


@pytest.fixture(scope="module")
def outcomes(files: dict[str, str]) -> dict[str, tuple[int, str]]:
    """Status and what was written, of each case."""
    lines = [["--model-path", files["target"], "--max-total-tokens", "4096", "--speculative-algorithm", "UAG",
              *(flag.format(**files) for flag in flags)] for flags, _ in CASES.values()]
    done = servers.run("-c", PROGRAM, json.dumps(lines), timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    _, found = done.stderr.split(HINT, 1)
    parts = re.split(r"(-?\d+) ends\n", found)
    return {case: (int(status), text) for case, text, status in zip(CASES, parts[::2], parts[1::2], strict=False)}


@pytest.mark.parametrize("case", CASES)
def test_a_command_line_ends_with_one_line(case: str, files: dict[str, str],
                                           outcomes: dict[str, tuple[int, str]]) -> None:
    status, text = outcomes[case]
    assert status == 2, text[-2000:]
    assert "Traceback" not in text
    *_, message, hint = text.strip().splitlines()
    assert message.startswith("launch.py: ")
    assert all(part.format(**files) in message for part in CASES[case][1]), message
    assert hint == HINT


def test_from_the_shell(files: dict[str, str]) -> None:
    done = servers.run("launch.py", "--model-path", files["target"], "--speculative-algorithm", "UAG")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "launch.py: --speculative-algorithm UAG needs --speculative-draft-model-path; accepted without one: "
        "--uag-sources text", HINT]


@pytest.mark.parametrize("asked", [False, True])
def test_mixed_chunks_are_switched_off_aloud(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    arguments = SimpleNamespace(speculative_num_draft_tokens=None, enable_mixed_chunk=asked, max_running_requests=None,
                                device="cuda")
    set_defaults(arguments)
    assert not arguments.enable_mixed_chunk
    assert ("--enable-mixed-chunk" in caplog.text) == asked
