"""Registration of the hooks, and the checks that keep a server from running without them."""

from __future__ import annotations

import inspect
import multiprocessing
import pkgutil
import sys
from typing import Any

from .fit import installed, refuse_misfits
from .hook import Hook, HookError
from .table import HOOKS

DETOKENIZER = "sglang.srt.managers.detokenizer_manager."


def register_all() -> None:
    """Check every signature and register every hook with sglang. Called once a process, by the plugin.

    Raises:
        HookError: a place that is gone, a signature that differs, or a process that came too far.
    """
    if multiprocessing.parent_process() is None:  # those that it starts have the same sglang
        refuse_misfits()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    rows = [hook for hook in HOOKS if not _detokenizes() or hook.path.startswith(DETOKENIZER)]
    targets = {hook: target for hook in rows if (target := _target(hook)) is not None}
    for hook, target in targets.items():
        _check_signature(hook, target)
    for hook, target in targets.items():
        if hook.kind == "fields":
            hook.resolve()(target)
        else:
            HookRegistry.register(hook.path, hook.resolve(), HookType.AROUND)


def check_applied() -> None:
    """Raises HookError unless every hook is in place in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [hook.path for hook in HOOKS if hook.kind == "around"
               and hook.path not in HookRegistry._patched and _target(hook) is not None]
    if missing:
        raise HookError(f"hooks did not apply on sglang {installed().version}, so think budgets would not be enforced: "
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


def _target(hook: Hook) -> Any:
    """The place of a hook; None where the release has none and can do without."""
    try:
        return pkgutil.resolve_name(hook.path)
    except (ImportError, AttributeError) as error:
        if hook.without is not None:
            return None
        raise HookError(f"sglang {installed().version} has no {hook.path}: {error}") from None


def _check_signature(hook: Hook, target: Any) -> None:
    if hook.kind != "around":
        return
    found = ", ".join(_parameters(target))
    if found not in hook.signatures:
        raise HookError(f"{hook.path} of sglang {installed().version} takes ({found}), expected {hook.expected}")


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
