"""`python -m sglang_ext.compat`: a release that is not installed, compared without importing it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from release_copy import FORWARD, SAMPLER, copy_with, installed

from sglang_ext.compat.__main__ import main

CHANGE = (SAMPLER, "logits = self._preprocess_logits(logits", "logits = self._other(logits")


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # links, which pytest would keep


def test_the_installed_release_would_serve() -> None:
    done = servers.run("-m", "sglang_ext.compat", "--all", cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"fits      hook     {FORWARD}" in done.stdout
    assert done.stdout.endswith("would serve\n")


def test_a_changed_release_is_told_with_its_difference(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_with(copied, CHANGE)
    assert main([str(folder), "--diff", "--against", str(installed())]) == 1
    said = capsys.readouterr().out
    assert f"body      hook     {FORWARD}" in said
    assert "\n-    logits = self._preprocess_logits(logits, sampling_info)" in said
    assert "\n+    logits = self._other(logits, sampling_info)" in said
    assert "as it was read" not in said
    assert "body 1, signature 0, gone 0\nwould not start; with --allow-unknown-sglang it would" in said


def test_a_difference_from_a_release_that_nobody_read_is_told(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_with(copied, CHANGE)
    assert main([str(folder), "--diff", "layers.sampler.Sampler.forward", "--against", str(folder)]) == 1
    assert "does not have it as it was read; name a release that does with --against" in capsys.readouterr().out


@pytest.mark.parametrize("release", ["/no/such/folder", "not-a-version", str(servers.ROOT / "tests")])
def test_what_is_no_release_ends_with_status_2(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([release]) == 2
    assert capsys.readouterr().err.startswith("sglang_ext.compat: ")
