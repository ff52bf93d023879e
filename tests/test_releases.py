"""A release of sglang is served by its source: a place that nobody has read stops the server, a comment does not."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import servers
from release_copy import FORWARD, SAMPLER, copy_with
from servers import FLOAT32
from told_model import CLOSE, LOOP, think

LINE = (SAMPLER, '        maybe_detect_nan(logits, "sampler: next_token_logits")\n',
        '        maybe_detect_nan(logits, "sampler: next_token_logits")\n        logits = logits + 0\n')
COMMENT = (SAMPLER, "        # Preprocess logits (custom processors", "        # Other words for (custom processors")
DOCSTRING = (SAMPLER, '"""Run a sampler & compute', '"""Another text: compute')
LAYOUT = (SAMPLER, "logits = self._preprocess_logits(logits, sampling_info)",
          "logits = self._preprocess_logits(\n            logits, sampling_info\n        )")
UNREAD = ("srt/utils/common.py", '    result.update(scheduler_info)\n    result["kv_events"]',
          '    result.update(scheduler_info)\n    result["one_more"] = 1\n    result["kv_events"]')
SIGNATURE = (SAMPLER, "        *,\n        logprob_logits: Optional[torch.Tensor] = None,\n    ):",
             "        logprob_logits: Optional[torch.Tensor] = None,\n    ):")
GONE = ("srt/layers/logprob_processor.py", "def compute_spec_logprobs(", "def compute_draft_logprobs(")


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # links, which pytest would keep


LAUNCH = """
import sys
from pathlib import Path
from sglang_ext.compat.tree import Folder
from sglang_ext.patches import fit
from sglang_ext.serve import main
version, folder = fit.installed().version, Path(sys.argv[1]) / "sglang"
fit.installed = lambda: Folder(folder, version)
fit.findings.cache_clear()
sys.exit(main(["--model-path", "/no/such/model"]))
"""


def launch(folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """launch.py where another sglang is installed; a model that is not there ends one that is not refused."""
    return servers.run("-c", LAUNCH, str(folder), hooked=True, **extra)


def named(output: str) -> list[str]:
    """The places of a refusal."""
    return [line.split(":")[0].strip() for line in output.splitlines() if line.startswith("  sglang.")]


def test_a_changed_line_of_a_hooked_function_is_refused(copied: Path) -> None:
    done = launch(copy_with(copied, LINE))
    assert done.returncode == 2, done.stderr
    assert named(done.stderr) == [FORWARD]
    assert f"{FORWARD}: another body; the token that stands in the output must be known" in done.stderr
    assert "--allow-unknown-sglang" in done.stderr
    assert "Traceback" not in done.stderr


def test_comments_docstrings_and_formatting_do_not_count(copied: Path) -> None:
    done = launch(copy_with(copied, COMMENT, DOCSTRING, LAYOUT))
    assert not named(done.stderr), done.stderr
    assert "/no/such/model" in done.stderr.strip().splitlines()[-2]


@pytest.mark.parametrize(("change", "line"), [
    (SIGNATURE, f"{FORWARD}: another signature, takes (self, logits_output, "),
    (GONE, "sglang.srt.layers.logprob_processor.compute_spec_logprobs: gone; needed by sglang_ext/uag/worker.py"),
])
def test_what_does_not_fit_is_refused_whatever_is_allowed(copied: Path, change: tuple[str, str, str],
                                                           line: str) -> None:
    """Each place has its line, those too that alone would be allowed."""
    done = launch(copy_with(copied, change, UNREAD), SGLANG_EXT_ALLOW_UNKNOWN_SGLANG="1")
    assert done.returncode == 2, done.stderr
    assert line in done.stderr
    assert len(named(done.stderr)) == 2
    assert "sglang.srt.utils.common.build_server_info" in named(done.stderr)
    assert "--allow-unknown-sglang does not help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.served
def test_an_unread_place_is_served_where_that_is_allowed(copied: Path, scripted_model: Path) -> None:
    """By the real command, in processes that have imported nothing; and it leaves none behind."""
    folder, port = copy_with(copied, COMMENT, UNREAD), servers.free_port()
    server = servers.start([servers.SGLANG, "serve", "--model-path", str(scripted_model), "--port", str(port),
                            "--reasoning-parser", "qwen3", "--device", "cpu", "--max-total-tokens", servers.POOL,
                            "--allow-unknown-sglang", "--think-budget", "3", *FLOAT32], port, cold=True,
                           PYTHONPATH=str(folder), SGLANG_USE_CPU_ENGINE="1")
    try:
        result = server.generate(text="<think>" + LOOP, sampling_params={"temperature": 0, "max_new_tokens": 12})
        assert result["meta_info"]["think"] == think(3, 3, CLOSE, "forced")
        told = requests.get(server.url + "/server_info", timeout=60).json()
        assert told["one_more"] == 1
        assert told["sglang_ext"]["unknown"] == ["sglang.srt.utils.common.build_server_info"]
        assert told["sglang_ext"]["sglang"] == told["version"]
        log = server.log.read_text()
        assert "sglang.srt.utils.common.build_server_info: another body" in log
        assert FORWARD not in log
        assert f"on sglang {told['version']}, table of hooks {told['sglang_ext']['table']}" in log
    finally:
        left = server.stop(signal.SIGTERM)
    assert not left


def test_server_info_names_the_versions(scripted_server: servers.Server) -> None:
    from sglang_ext import __version__
    from sglang_ext.compat.known import load

    told = requests.get(scripted_server.url + "/server_info", timeout=60).json()
    assert told["sglang_ext"] == {"version": __version__, "sglang": told["version"], "table": load().table,
                                  "unknown": []}
