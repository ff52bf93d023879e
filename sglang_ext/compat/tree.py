"""The source of a release of sglang: a folder or a wheel, read without importing anything."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

PACKAGE = "sglang"
UNKNOWN = "unknown"
"""The version of a release that does not tell it."""
_WHEEL = re.compile(r"sglang-([^-]+)-.*\.whl")
_VERSION = re.compile(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", re.MULTILINE)


class TreeError(ValueError):
    """A place that holds no release of sglang; the message says what was looked for."""


class Tree(Protocol):
    """A release's source files.

    Attributes:
        version: of the release, UNKNOWN where nothing tells it.
        name: how a reader is told of it.
    """

    version: str
    name: str

    def read(self, path: str) -> str | None:
        """Text of a file, by its path from `sglang/` on; None if there is none."""

    def below(self, folder: str) -> Iterator[str]:
        """Paths of the Python files below a folder, sorted."""


class Folder:
    """A folder that holds the package `sglang`, or is it."""

    def __init__(self, path: Path, version: str | None = None) -> None:
        for candidate in (path, path / PACKAGE, path / "python" / PACKAGE):
            if (candidate / "srt").is_dir():
                self._root = candidate
                break
        else:
            raise TreeError(f"{path} holds no sglang: expected a folder `{PACKAGE}/srt` in it")
        self.version = version or self._version()
        self.name = f"sglang {self.version} in {self._root}"

    def _version(self) -> str:
        metadata = sorted(self._root.parent.glob(f"{PACKAGE}-*.dist-info"))
        if metadata:
            return metadata[0].name.removesuffix(".dist-info").split("-")[1]
        found = _VERSION.search(self.read(f"{PACKAGE}/_version.py") or "")
        return found[1] if found else UNKNOWN

    @cache  # noqa: B019 - as the wheel's below
    def read(self, path: str) -> str | None:
        file = self._root.parent / path if self._root.name == PACKAGE else self._root / path.removeprefix(PACKAGE + "/")
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def below(self, folder: str) -> Iterator[str]:
        root = self._root / folder.removeprefix(PACKAGE + "/")
        for file in sorted(root.rglob("*.py")):
            yield f"{PACKAGE}/{file.relative_to(self._root).as_posix()}"


class Wheel:
    """A wheel file."""

    def __init__(self, path: Path) -> None:
        named = _WHEEL.fullmatch(path.name)
        if named is None or not zipfile.is_zipfile(path):
            raise TreeError(f"{path} is no wheel of sglang; expected a file sglang-VERSION-*.whl")
        self._archive = zipfile.ZipFile(path)
        self._names = set(self._archive.namelist())
        self.version = named[1]
        self.name = f"sglang {self.version} in {path.name}"

    @cache  # noqa: B019 - a wheel lives as long as the command that compares it
    def read(self, path: str) -> str | None:
        return self._archive.read(path).decode("utf-8") if path in self._names else None

    def below(self, folder: str) -> Iterator[str]:
        yield from sorted(name for name in self._names if name.startswith(folder + "/") and name.endswith(".py"))
