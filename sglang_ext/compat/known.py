"""The record of what was read: for each place, the digests of its source and the releases that have it.

One line a digest, sorted, so that branches that add places merge. `python -m sglang_ext.compat --update` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from .digest import digest
from .places import Place

GONE = "gone"
"""Stands for the digest of a place that a release does not have, and that we can do without there."""
FILE = "known.txt"
_HEADER = """\
# What each place of sglang was read as: kind, place, digest of its source, digest of its signature, and the releases
# that have it so. Written by `python -m sglang_ext.compat --update`; docs/operating.md says when.
"""


@dataclass(frozen=True, order=True)
class Print:
    """Digests of one place in one release: of the whole, and of the signature alone."""

    source: str
    signature: str


class Known:
    """Digests of places, by place, with the releases that each was found in.

    Attributes:
        table: digest of the whole record: the version of the table.
    """

    def __init__(self, entries: Mapping[Place, Mapping[Print, frozenset[str]]]) -> None:
        self.entries = entries
        self.table = digest(self.text())[:8]

    @property
    def releases(self) -> list[str]:
        """Releases that were read, oldest first."""
        found = {release for prints in self.entries.values() for releases in prints.values() for release in releases}
        return sorted(found, key=_order)

    def text(self) -> str:
        """The record as it is stored."""
        lines = []
        for place, prints in sorted(self.entries.items()):
            for found, releases in sorted(prints.items()):
                named = ",".join(sorted(releases, key=_order))
                lines.append(f"{place.kind} {place.path} {found.source} {found.signature} {named}\n")
        return _HEADER + "".join(lines)

    @classmethod
    def parse(cls, text: str) -> Known:
        """The record of a text that `text` wrote."""
        entries: dict[Place, dict[Print, frozenset[str]]] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                kind, path, source, signature, releases = line.split()
                prints = entries.setdefault(Place(path, kind), {})
                prints[Print(source, signature)] = frozenset(releases.split(","))
        return cls(entries)

    def updated(self, release: str, found: Mapping[Place, Print], places: Iterable[Place]) -> Known:
        """The record with a release as it was found, and without places that are not taken any more."""
        entries = {}
        for place in places:
            prints = {key: releases - {release} for key, releases in self.entries.get(place, {}).items()}
            if place in found:
                prints[found[place]] = prints.get(found[place], frozenset()) | {release}
            entries[place] = {key: releases for key, releases in prints.items() if releases}
        return Known(entries)


def load() -> Known:
    """The record that is shipped."""
    return Known.parse(files("sglang_ext.compat").joinpath(FILE).read_text(encoding="utf-8"))


def store(known: Known) -> Path:
    """Write the record where it is shipped from."""
    path = Path(str(files("sglang_ext.compat").joinpath(FILE)))
    path.write_text(known.text(), encoding="utf-8")
    return path


def _order(release: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part) if part.isdigit() else -1, part) for part in release.split("."))
