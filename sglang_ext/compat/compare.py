"""A release against the record: which places are as they were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from . import operators
from .definitions import Definition, find
from .digest import NONE, construction_of, digest, methods_of, parameters_of, source_of
from .known import GONE, Known, Print
from .places import BASE, HOOK, IMPORT, OPERATOR, Place
from .tree import Tree

FITS, ABSENT, BODY, SIGNATURE, MISSING = "fits", "absent", "body", "signature", "gone"
"""As it was read; not there, as it was in this release; another source under the same signature; another signature;
not there."""
STARTABLE = (FITS, ABSENT, BODY)
"""What a server can be started with, if it is told to: the calls at least fit."""


@dataclass(frozen=True)
class Finding:
    """One place in one release."""

    place: Place
    verdict: str
    found: Print | None

    @property
    def known(self) -> bool:
        return self.verdict in (FITS, ABSENT)


def prints(tree: Tree, places: Iterable[Place]) -> dict[Place, Print]:
    """Digests of the places that a release has."""
    chosen = sorted(places)
    named = {place: find(tree, place.path) for place in chosen if place.kind != OPERATOR}
    found = {place: print_of(place.kind, definition) for place, definition in named.items() if definition is not None}
    calls = operators.calls(tree, [place.path for place in chosen if place.kind == OPERATOR])
    for name, called in calls.items():
        if called:
            found[Place(name, OPERATOR)] = Print(digest(operators.source(called)), digest(operators.signature(called)))
    return found


def print_of(kind: str, definition: Definition) -> Print:
    """What counts of a definition. A hooked function, an imported one and a class that is subclassed count whole; of an
    imported class, how it is constructed."""
    parameters = parameters_of(definition)
    if parameters is not None:
        return Print(source_of(definition), digest(parameters))
    if kind == BASE:
        return Print(source_of(definition), digest(methods_of(definition)))
    if kind == IMPORT:
        return Print(digest(construction_of(definition)), digest(construction_of(definition, required=True)))
    return Print(source_of(definition), NONE)


def compare(tree: Tree, known: Known, places: Collection[Place] | None = None) -> list[Finding]:
    """Every place of a release, worst first.

    Args:
        places: those to look at; all of the record if none are given.
    """
    chosen = known.entries.keys() if places is None else places
    found = prints(tree, chosen)
    findings = [_judge(place, found.get(place), known.entries.get(place, {}), tree.version) for place in chosen]
    order = (MISSING, SIGNATURE, BODY, ABSENT, FITS)
    return sorted(findings, key=lambda f: (order.index(f.verdict), f.place.kind != HOOK, f.place))


def _judge(place: Place, found: Print | None, read: Mapping[Print, frozenset[str]], version: str) -> Finding:
    if found is None:
        # That one release did without a place says nothing of the next: only the number tells them apart.
        absent = any(key.source == GONE and version in releases for key, releases in read.items())
        return Finding(place, ABSENT if absent else MISSING, None)
    if found in read:
        return Finding(place, FITS, found)
    same = any(found.signature == key.signature for key in read if key.source != GONE) or not read
    return Finding(place, BODY if same else SIGNATURE, found)
