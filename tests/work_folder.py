"""A folder for the temporary files of a test run: of its tests, of the servers they start, and their logs."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from pathlib import Path

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


class WorkFolder:
    """The folder, as this process's and all its children's place for temporary files.

    Attributes:
        keep: whether `end` leaves it where it is, so that a failure can be looked into.
    """

    def __init__(self) -> None:
        self.keep = False
        os.environ.setdefault(INDUCTOR, str(Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")))
        self.path = Path(tempfile.mkdtemp(prefix="sglang-ext-"))
        os.environ["TMPDIR"] = str(self.path)
        tempfile.tempdir = None

    def end(self) -> None:
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def note(fact: str) -> None:
    """Tell all processes of this run a fact."""
    Path(tempfile.gettempdir(), fact).touch()


def noted(fact: str) -> bool:
    return Path(tempfile.gettempdir(), fact).exists()
