"""`python -m sglang_ext.compat`: a release that is not installed, compared without importing it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from release_copy import FORWARD, SAMPLER, copy_with, installed


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # links, which pytest would keep


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return servers.run("-m", "sglang_ext.compat", *arguments, cold=True)


def test_the_installed_release_would_serve() -> None:
    done = tool("--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"fits      hook     {FORWARD}" in done.stdout
    assert done.stdout.endswith("would serve\n")


def test_a_changed_release_is_told_with_its_difference(copied: Path) -> None:
    folder = copy_with(copied, (SAMPLER, "logits = self._preprocess_logits(logits", "logits = self._other(logits"))
    done = tool(str(folder), "--diff", "--against", str(installed()))
    assert done.returncode == 1, done.stderr
    assert f"body      hook     {FORWARD}" in done.stdout
    assert "\n-    logits = self._preprocess_logits(logits, sampling_info)" in done.stdout
    assert "\n+    logits = self._other(logits, sampling_info)" in done.stdout
    assert "as it was read" not in done.stdout
    assert "body 1, signature 0, gone 0\nwould not start; with --allow-unknown-sglang it would" in done.stdout


def test_a_difference_from_a_release_that_nobody_read_is_told(copied: Path) -> None:
    folder = copy_with(copied, (SAMPLER, "logits = self._preprocess_logits(logits", "logits = self._other(logits"))
    done = tool(str(folder), "--diff", "layers.sampler.Sampler.forward", "--against", str(folder))
    assert done.returncode == 1, done.stderr
    assert "does not have it as it was read; name a release that does with --against" in done.stdout


@pytest.mark.parametrize("arguments", [["/no/such/folder"], ["not-a-version"], ["tests"]])
def test_what_is_no_release_ends_with_status_2(arguments: list[str]) -> None:
    done = tool(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("sglang_ext.compat: ")
    assert "Traceback" not in done.stderr
