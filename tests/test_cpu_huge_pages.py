"""Huge pages for what is in use, where the system has any."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from sglang_ext.cpu import huge_pages

SIZE = 64 << 20

SMAPS = """\
55d5c0000000-55d5c4000000 rw-p 00000000 00:00 0                          [heap]
Size:              65536 kB
Rss:               60000 kB
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
Size:               8192 kB
Rss:                  40 kB
7f0010000000-7f0014000000 rw-p 00000000 00:00 0 
Size:              65536 kB
Rss:               40000 kB
7f0020000000-7f0024000000 rw-p 00000000 fe:00 1234                       /a/file with 7f0010000000-7f0014000000 rw-p
Size:              65536 kB
Rss:               65536 kB
7f0030000000-7f0034000000 r--p 00000000 00:00 0 
Size:              65536 kB
Rss:               65536 kB
7f0040000000-7f0040100000 rw-p 00000000 00:00 0 
Size:               1024 kB
Rss:                1024 kB
7f0050000000-7f0054000000 rw-p 00000000 00:00 0                          [anon:libc_malloc]
Size:              65536 kB
Rss:               65536 kB
"""  # noqa: W291 - as the kernel writes it


def test_large_mappings_in_use_without_a_file() -> None:
    """Not a stack that is hardly touched, a file, what cannot be written, or what is small."""
    assert huge_pages.mappings(SMAPS) == [(0x55D5C0000000, 0x55D5C4000000), (0x7F0010000000, 0x7F0014000000),
                                          (0x7F0050000000, 0x7F0054000000)]


def on_huge_pages(address: int) -> int:
    """Bytes on huge pages of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if header := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(header[1], 16) <= address < int(header[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.fixture
def values() -> torch.Tensor:
    """Memory in small pages."""
    area = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    made = torch.frombuffer(area, dtype=torch.int64)
    made.copy_(torch.arange(len(made)))
    assert on_huge_pages(made.data_ptr()) == 0
    return made


@pytest.mark.skipif(not sys.platform.startswith("linux") or not huge_pages._offered(), reason="no huge pages here")
def test_memory_in_use_moves_and_keeps_its_values(values: torch.Tensor) -> None:
    thread = huge_pages.collapse_in_background()
    assert thread is not None
    thread.join()
    assert on_huge_pages(values.data_ptr()) >= SIZE - (4 << 20)
    assert torch.equal(values, torch.arange(len(values)))


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(huge_pages.VARIABLE, "0")
    assert huge_pages.collapse_in_background() is None


@pytest.mark.parametrize("enabled", ["always madvise [never]", None])
def test_a_system_without_huge_pages_is_left_alone(enabled: str | None, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "ENABLED", tmp_path / "enabled")
    if enabled is not None:
        huge_pages.ENABLED.write_text(enabled)
    assert huge_pages.collapse_in_background() is None
