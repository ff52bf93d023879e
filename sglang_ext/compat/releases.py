"""Opening a release of sglang that is named by its version, a wheel or a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .tree import Folder, Tree, TreeError, Wheel

_VERSION = re.compile(r"\d[\w.!+-]*")


def open_release(name: str, folder: Path) -> Tree:
    """The source of a release.

    Args:
        name: a wheel, a folder, or a version, whose wheel pip then downloads.
        folder: where downloads go.

    Raises:
        TreeError: there is no such release, or it is none of sglang's.
    """
    path = Path(name)
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return Wheel(path)
    if _VERSION.fullmatch(name) is None:
        raise TreeError(f"{name!r}: accepted: a version of sglang, a wheel, a folder with its source")
    return Wheel(_download(name, folder))


def _download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--dest", str(folder), f"sglang=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob(f"sglang-{version}-*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()
        raise TreeError(f"pip found no wheel of sglang {version}: {said[-1] if said else 'it said nothing'}")
    return wheels[0]
