"""A row of the table of hooks."""

from __future__ import annotations

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
        function: for kind `around`, called as `function(original, *args, **kwargs)`.
        reason: what it adds, and why no official extension point serves, or which one this is.
        signature: parameters of the target, without annotations and defaults; several where releases differ.
        kind: `around` a function, or `fields` added to a request model.
        without: what a release that has no such place does not do, or why it needs no hook there; None if every
            release must have it.
        needed: whether a server with these arguments cannot do without the place.
    """

    target: str
    function: Callable[..., Any]
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
