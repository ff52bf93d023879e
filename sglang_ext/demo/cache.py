"""A cache folder of models made on this machine: built once, atomically, and checked when used again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

MANIFEST = "sglang_ext_manifest.json"


def cache_root() -> Path:
    """`$SGLANG_EXT_CACHE`, else `sglang-ext` in the user's cache folder."""
    explicit = os.environ.get("SGLANG_EXT_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-ext"


def cached_model(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """Folder of the model `name`, built by `build` unless an intact one is there.

    Args:
        name: folder name below the cache root.
        recipe: what determines the content; another recipe than the stored one builds anew.
        build: writes the model's files into the empty folder that it is given.

    Raises:
        OSError: the cache folder cannot be written.
    """
    target = cache_root() / name
    if _intact(target, recipe):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        fresh = Path(scratch) / name
        fresh.mkdir()
        build(fresh)
        files = {p.name: _digest(p) for p in sorted(fresh.iterdir())}
        (fresh / MANIFEST).write_text(json.dumps({"recipe": recipe, "files": files}, indent=1))
        _replace(fresh, target, recipe)
    return target


def _replace(fresh: Path, target: Path, recipe: str) -> None:
    """Move a finished folder into place; if another process was first and its folder is intact, that one stays."""
    try:
        fresh.rename(target)
    except OSError:
        if _intact(target, recipe):
            return
        shutil.rmtree(target)
        fresh.rename(target)


def _intact(folder: Path, recipe: str) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest["recipe"] == recipe and all(
            _digest(folder / name) == digest for name, digest in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
