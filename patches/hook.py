"""A row of the table of hooks."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class HookError(RuntimeError):
    """A hook that does not fit the installed sglang, or was not applied."""


@dataclass(frozen=True)
class Hook:
    """One row of the table of hooks.

    Attributes:
        target: dotted path below `sglang.srt`.
        function: `module.function` of this folder; for kind `around`, it is called as
            `function(original, *args, **kwargs)`.
        reason: what it adds, and why no official extension point serves, or which one this is.
        signature: parameters of the target, without annotations and defaults; several where releases differ.
        kind: `around` a function, or `fields` added to a request model.
        without: what a release that has no such place does not do, or why it needs no hook there; None if every
            release must have it.
        needed: whether a server with these arguments cannot do without the place.
    """

    target: str
    function: str
    reason: str
    signature: str | tuple[str, ...]
    kind: str = "around"
    without: str | None = None
    needed: Callable[[Any], bool] = lambda server_args: False

    @property
    def signatures(self) -> tuple[str, ...]:
        """What the target may take."""
        return (self.signature,) if isinstance(self.signature, str) else self.signature

    @property
    def expected(self) -> str:
        """The same, for a message."""
        return " or ".join(f"({signature})" for signature in self.signatures)

    @property
    def path(self) -> str:
        return f"sglang.srt.{self.target}"

    def resolve(self) -> Callable[..., Any]:
        """The function, whose module is imported where it was not yet."""
        module, name = self.function.split(".")
        found: Callable[..., Any] = pkgutil.resolve_name(f"{__package__}.{module}:{name}")
        return found


def fields(target: str, function: str, reason: str, without: str | None = None) -> Hook:
    """A row for a request or response model (pydantic)."""
    return Hook(target, function, reason, "", kind="fields", without=without)
