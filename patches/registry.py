"""Registration of the hooks, and the checks that keep a server from running without them."""

from __future__ import annotations

import importlib.metadata
import inspect
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SGLANG_VERSION = "0.5.23"
DETOKENIZER = "managers.detokenizer_manager."


class HookError(RuntimeError):
    """A hook that does not fit the installed sglang, or was not applied."""


@dataclass(frozen=True)
class Hook:
    """One row of the table of hooks.

    Attributes:
        target: dotted path below `sglang.srt`.
        function: for kind `around`, called as `function(original, *args, **kwargs)`.
        reason: what it adds, and why no official extension point serves, or which one this is.
        signature: parameters of the target, without annotations and defaults.
        kind: `around` a function, or `fields` added to a request model.
    """

    target: str
    function: Callable[..., Any]
    reason: str
    signature: str
    kind: str = "around"

    @property
    def path(self) -> str:
        return f"sglang.srt.{self.target}"


def _hooks() -> tuple[Hook, ...]:
    from .table import HOOKS

    return HOOKS


def register_all() -> None:
    """Check every signature and register every hook with sglang. Called once a process, by the plugin.

    Raises:
        HookError: another version of sglang, a signature that differs, or a process that came too far.
    """
    check_version()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = [hook for hook in _hooks() if not _detokenizes() or hook.target.startswith(DETOKENIZER)]
    for hook in hooks:
        _check_signature(hook)
    for hook in hooks:
        if hook.kind == "fields":
            hook.function(pkgutil.resolve_name(hook.path))
        else:
            HookRegistry.register(hook.path, hook.function, HookType.AROUND)


def check_version() -> None:
    """Raises HookError unless the sglang that the hooks were written for is installed."""
    installed = importlib.metadata.version("sglang")
    if installed != SGLANG_VERSION:
        raise HookError(f"sglang-ext is written for sglang {SGLANG_VERSION}, installed is {installed}; "
                        f"install sglang=={SGLANG_VERSION}, or the release of sglang-ext for {installed}")


def check_applied() -> None:
    """Raises HookError unless every hook is in place in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [hook.path for hook in _hooks() if hook.kind == "around" and hook.path not in HookRegistry._patched]
    if missing:
        raise HookError(f"hooks did not apply on sglang {SGLANG_VERSION}, so think budgets would not be enforced: "
                        f"{', '.join(missing)}")


def _detokenizes() -> bool:
    """Whether this is a spawned process without a scheduler, a controller or a server, that is, a detokenizer: there
    the other hooks would only cost the import of the modules they are for."""
    roles = ("managers.scheduler", "managers.data_parallel_controller", "entrypoints.http_server")
    spawned = multiprocessing.parent_process() is not None
    return spawned and not any(f"sglang.srt.{role}" in sys.modules for role in roles) and not _serves_http()


def _serves_http() -> bool:
    """Whether this process is a server worker that imports its application through `sglang_ext.http_worker`."""
    return "sglang_ext.http_worker" in sys.modules


def _check_signature(hook: Hook) -> None:
    try:
        target = pkgutil.resolve_name(hook.path)
    except (ImportError, AttributeError) as error:
        raise HookError(f"sglang {SGLANG_VERSION} has no {hook.path}: {error}") from None
    found = ", ".join(_parameters(target)) if hook.kind == "around" else hook.signature
    if found != hook.signature:
        raise HookError(f"{hook.path} of sglang {SGLANG_VERSION} takes ({found}), expected ({hook.signature})")


def _parameters(target: Any) -> list[str]:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names: list[str] = []
    bare_star = False
    for p in inspect.signature(target).parameters.values():
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            bare_star = True
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not bare_star:
            names.append("*")
            bare_star = True
        names.append(marks.get(p.kind, "") + p.name)
    return names
