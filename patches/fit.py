"""Whether the installed sglang is one that the hooks were read against: by its source, not by its number.

The record (`sglang_ext/compat/known.txt`) has a digest for every place that we take of sglang. A place with another
source is unknown: nobody has read whether what we rely on still holds there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from functools import cache
from pathlib import Path
from typing import Any

from sglang_ext import __version__, cpu
from sglang_ext.compat.compare import ABSENT, SIGNATURE, STARTABLE, Finding, compare
from sglang_ext.compat.definitions import find
from sglang_ext.compat.digest import parameters_of
from sglang_ext.compat.known import Known, load
from sglang_ext.compat.places import HOOK, IMPORT, OPERATOR, Place, taken
from sglang_ext.compat.tree import Folder, Tree

from .hook import HookError
from .table import ROWS

ALLOW_FLAG = "--allow-unknown-sglang"
_SAID = {"gone": "gone", "signature": "another signature", "body": "another body"}

logger = logging.getLogger(__name__)


def places(known: Known, operators: bool = True) -> set[Place]:
    """What a server takes of sglang: the table's rows, and what the record has beside them.

    Args:
        operators: whether it uses the operators of sglang's CPU engine.
    """
    others = {place for place in known.entries if place.kind != HOOK and (operators or place.kind != OPERATOR)}
    return others | {Place(path, HOOK) for path in ROWS}


def needed() -> dict[Place, str]:
    """What a server takes of sglang, as our source has it, and why: what the record is to hold."""
    rows = {Place(path, HOOK): hook.reason for path, hook in ROWS.items()}
    others = {place: f"needed by {name}" for place, name in taken().items()
              if place.kind != IMPORT or place.path not in ROWS}
    return {**others, **rows}


@cache
def installed() -> Tree:
    """The source of the installed release."""
    spec = importlib.util.find_spec("sglang")
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    if not locations:
        raise HookError("sglang is not installed")
    return Folder(Path(locations[0]), importlib.metadata.version("sglang"))


@cache
def findings() -> tuple[Finding, ...]:
    """What the installed release is against the record, worst first."""
    known = load()
    return tuple(compare(installed(), known, places(known, cpu.wanted())))


def refuse_misfits() -> None:
    """Raises HookError where something that we take is gone, or has another signature."""
    if any(finding.verdict not in STARTABLE for finding in findings()):
        raise HookError(_text(f"{ALLOW_FLAG} does not help: not everything that the hooks need is there"))


def require_known(allowed: bool) -> None:
    """Raises HookError where the installed release has a place with a source that was not read.

    Args:
        allowed: start nevertheless, if all signatures fit.
    """
    refuse_misfits()
    if not allowed and _unknown():
        raise HookError(_text(f"{ALLOW_FLAG} starts nevertheless, with these places unread"))


def warn_of_unknown() -> None:
    """Tell of every place that nobody has read, at a start that is allowed nevertheless."""
    for finding in _unknown():
        logger.warning("sglang-ext: %s: unread in sglang %s: think budgets may not hold", _line(finding),
                       installed().version)


def refuse_without(server_args: Any) -> None:
    """Raises HookError where a server needs a place that its release does not have."""
    for finding in findings():
        hook = ROWS.get(finding.place.path)
        if finding.verdict == ABSENT and hook is not None and hook.needed(server_args):
            raise HookError(f"sglang {installed().version} has no {hook.path}: {hook.without}")


def description() -> dict[str, Any]:
    """The versions that serve, for a client or a log."""
    return {"version": __version__, "sglang": installed().version, "table": load().table,
            "unknown": [finding.place.path for finding in _unknown()]}


def _unknown() -> list[Finding]:
    return [finding for finding in findings() if not finding.known]


def _text(advice: str) -> str:
    version, releases = installed().version, load().releases
    lines = "".join(f"  {_line(finding)}\n" for finding in _unknown())
    return (f"sglang {version} is not as the hooks were read against it (known: {', '.join(releases)}):\n"
            f"{lines}`python -m sglang_ext.compat --diff --against {releases[-1]}` shows what changed. {advice}")


def _line(finding: Finding) -> str:
    """A place, what changed, and why it matters."""
    path = finding.place.path
    hook, said = ROWS.get(path), _SAID[finding.verdict]
    if hook is not None and finding.verdict == SIGNATURE:
        definition = find(installed(), path)
        takes = parameters_of(definition) if definition is not None else None
        said += f", takes ({takes}), expected {hook.expected}"
    return f"{path}: {said}; {needed().get(finding.place, 'needed by nothing')}"
