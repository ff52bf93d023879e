"""A model's memory on huge pages.

A step of decoding reads every weight once, and for every page of 4 KiB the processor looks up where it lies. Linux has
pages of 2 MiB for those who ask (`/sys/kernel/mm/transparent_hugepage/enabled` is mostly `madvise`), and the allocators
of Python and PyTorch do not. So a process asks for what it has mapped once its models are loaded, in the background:
the kernel copies that at about half a gigabyte a second, and serving goes on meanwhile.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import time
from pathlib import Path
from threading import Lock, Thread

logger = logging.getLogger(__name__)
VARIABLE = "SGLANG_EXT_HUGE_PAGES"
"""Environment variable: `0` leaves memory as it is."""
MAPS = Path("/proc/self/smaps")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_HUGEPAGE, _COLLAPSE = 14, 25  # advice of madvise(2): from now on, and what is there already (Linux 6.1)
_PAGE = 2 << 20
_LEAST = 2 * _PAGE  # bytes of a mapping
_PIECE = 16 * _PAGE  # bytes collapsed in one call
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(\[heap\]|\[anon:.*\])?$")
_running = Lock()


def collapse_in_background() -> Thread | None:
    """Ask for huge pages for what the process has mapped by now, without waiting.

    Returns:
        The thread that asks; None where huge pages are not to be had, or not wanted.
    """
    if os.environ.get(VARIABLE, "1") == "0" or not _offered():
        return None
    thread = Thread(target=_collapse, name="huge-pages", daemon=True)
    thread.start()
    return thread


def mappings(smaps: str) -> list[tuple[int, int]]:
    """Start and end of large mappings without a file that are in use, at least half of each: not of stacks.

    Args:
        smaps: the text of `/proc/self/smaps`.
    """
    found: list[tuple[int, int]] = []
    start = end = 0
    for line in smaps.splitlines():
        if header := _MAPPING.match(line):
            start, end = int(header[1], 16), int(header[2], 16)
        elif line.startswith("Rss:"):
            if end - start >= _LEAST and 2 * 1024 * int(line.split()[1]) >= end - start:
                found.append((start, end))
            start = end = 0
    return found


def _offered() -> bool:
    """Whether the system gives huge pages to those who ask."""
    try:
        return "[never]" not in ENABLED.read_text()
    except OSError:
        return False


def _collapse() -> None:
    """What cannot be collapsed stays as it is; on kernels that know only the other advice, for a while."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with _running:
        begun, asked = time.monotonic(), 0
        for start, end in mappings(MAPS.read_text(errors="replace")):
            libc.madvise(start, end - start, _HUGEPAGE)
            first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
            for piece in range(first, last, _PIECE):
                libc.madvise(piece, min(_PIECE, last - piece), _COLLAPSE)
            asked += end - start
    logger.info("Huge pages asked for: %.2f GB of memory in %.1f s", asked / 1e9, time.monotonic() - begun)
