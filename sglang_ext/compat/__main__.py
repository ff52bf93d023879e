"""Compare a release of sglang, installed or not, with the ones that the hooks were read against.

    python -m sglang_ext.compat [RELEASE] [--all] [--diff [PLACE ...]]

RELEASE is a version, a wheel or a folder; the installed sglang if none is given. Nothing of it is imported. Status 0 if
it would serve, 1 if it would not, 2 if it cannot be read.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sglang_ext.patches.fit import installed, needed, places
from sglang_ext.patches.hook import HookError
from sglang_ext.patches.table import ROWS

from .compare import ABSENT, BODY, FITS, MISSING, SIGNATURE, STARTABLE, Finding, compare, prints
from .definitions import find
from .digest import NONE, parameters_of
from .known import GONE, Known, Print, load, store
from .places import HOOK, OPERATOR, Place
from .releases import open_release
from .tree import UNKNOWN, Tree, TreeError

WOULD_SERVE, WOULD_NOT, UNREADABLE = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Print the comparison, or update the record; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="sglang-ext-compat-") as folder:
            trees = [open_release(name, Path(folder)) for name in args.release] or [installed()]
            if args.update:
                return _update(trees)
            if len(trees) > 1:
                raise TreeError("compare one release at a time; only --update takes several")
            against = open_release(args.against, Path(folder)) if args.against else installed()
            return _compare(trees[0], against, args.diff, args.all)
    except (TreeError, HookError) as error:
        print(f"sglang_ext.compat: {error}", file=sys.stderr)
        return UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sglang_ext.compat", description="Compare a release of sglang with "
                                     "those that the hooks were read against, without importing it.")
    parser.add_argument("release", nargs="*", help="a version, a wheel or a folder (default: the installed sglang)")
    parser.add_argument("--all", action="store_true", help="list what fits too")
    parser.add_argument("--diff", nargs="*", metavar="PLACE", help="show what changed in every function that is not as "
                        "it was read, or in these places")
    parser.add_argument("--against", metavar="RELEASE", help="what --diff compares with (default: the "
                        "installed sglang)")
    parser.add_argument("--update", action="store_true", help="record these releases as read, in the source tree")
    return parser


def _compare(tree: Tree, against: Tree, diff: Sequence[str] | None, everything: bool) -> int:
    known = load()
    findings = compare(tree, known, places(known))
    print(f"{tree.name}, against the record of {', '.join(known.releases)} (table {known.table})\n")
    reasons = needed()
    for finding in findings:
        if everything or finding.verdict != FITS:
            print(f"{finding.verdict:<10}{finding.place.kind:<9}{finding.place.path}\n{'':19}"
                  f"{_note(finding, tree, reasons.get(finding.place, 'needed no more'))}")
    if diff is not None:
        _print_diffs(tree, against, known, [f for f in findings if _wanted(f, diff)])
    counts = Counter(finding.verdict for finding in findings)
    serves = all(finding.known for finding in findings)
    print("\n" + ", ".join(f"{name} {counts[name]}" for name in (FITS, ABSENT, BODY, SIGNATURE, MISSING)))
    print(_verdict(findings))
    return WOULD_SERVE if serves else WOULD_NOT


def _wanted(finding: Finding, diff: Sequence[str]) -> bool:
    path = finding.place.path
    return path in diff or path.removeprefix("sglang.srt.") in diff if diff else finding.verdict in (BODY, SIGNATURE)


def _verdict(findings: Sequence[Finding]) -> str:
    if all(finding.known for finding in findings):
        return "would serve"
    if all(finding.verdict in STARTABLE for finding in findings):
        return "would not start; with --allow-unknown-sglang it would, unread"
    return "would not start"


def _note(finding: Finding, tree: Tree, reason: str) -> str:
    """Why a place matters, and what of it does not fit."""
    hook = ROWS.get(finding.place.path) if finding.place.kind == HOOK else None
    if hook is not None and finding.verdict == ABSENT:
        return str(hook.without)
    if hook is not None and finding.verdict == SIGNATURE:
        definition = find(tree, hook.path)
        takes = parameters_of(definition) if definition is not None else None
        return f"takes ({takes}), expected {hook.expected}; {reason}"
    return reason


def _print_diffs(tree: Tree, against: Tree, known: Known, findings: Sequence[Finding]) -> None:
    """Print what changed since a release in which the places were read."""
    read = {f.place for f in compare(against, known, [f.place for f in findings]) if f.verdict == FITS}
    for finding in findings:
        print(f"\n{finding.place.path}")
        if finding.place not in read:
            print(f"  {against.name} does not have it as it was read; name a release that does with --against")
        print("\n".join(_diff(tree, against, finding.place)))


def _diff(tree: Tree, against: Tree, place: Place) -> Iterator[str]:
    if place.kind == OPERATOR:
        yield f"  its calls pass something else; search for {place.path}"
        return
    old, new = find(against, place.path), find(tree, place.path)
    if old is not None and new is not None:
        yield from difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), against.name, tree.name,
                                        lineterm="")


def _update(trees: Sequence[Tree]) -> int:
    """Record releases as they are; a place that one does not have must be one that it can do without."""
    known = load()
    wanted = set(needed())
    for tree in trees:
        if tree.version == UNKNOWN:
            raise TreeError(f"{tree.name}: nothing there tells the version; give the wheel, or its installation")
        found = prints(tree, wanted)
        for place in sorted(wanted - found.keys()):
            hook = ROWS.get(place.path)
            if hook is None or hook.without is None:
                raise TreeError(f"{tree.name} has no {place.path}, and no row says what is done without; not recorded")
            found[place] = Print(GONE, NONE)
        known = known.updated(tree.version, found, wanted)
    unread = [place.path for place in sorted(wanted) if not known.entries[place]]
    if unread:
        raise TreeError(f"in no release that was named: {', '.join(unread)}")
    print(f"{store(known)}: {len(wanted)} places of sglang {', '.join(known.releases)}, table {known.table}")
    return WOULD_SERVE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
