"""The start of an engine: no server without its budgets.

Plugin failures are only logged by sglang, and a plugin can be filtered out by `SGLANG_PLUGINS`. So every scheduler says
in its ready message that the hooks are in place, and the launching process refuses one that does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sglang_ext.config import Settings

from .registry import Hook, HookError, check_applied

READY_KEY = "sglang_ext"


def _launch_subprocesses(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    check_applied()
    Settings.from_environment()
    os.environ.setdefault("SGLANG_HTTP_SERVER_APP_PATH", "sglang_ext.http_worker:app")
    return original(*args, **kwargs)


def _wait_for_scheduler_ready(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    infos = original(*args, **kwargs)
    _check_ready(infos)
    return infos


def _record_scheduler_init_infos(original: Callable[..., Any], self: Any, infos: list[dict[str, Any]]) -> None:
    _check_ready(infos)
    original(self, infos)


def _controller_init_info(original: Callable[..., Any], self: Any) -> dict[str, Any]:
    return {**original(self), READY_KEY: True}


def _check_ready(infos: list[dict[str, Any]]) -> None:
    if not all(info.get(READY_KEY) for info in infos):
        raise HookError("a scheduler started without sglang-ext, so think budgets would not be enforced; is "
                        "SGLANG_PLUGINS set without sglang_ext?")


HOOKS = [
    Hook("entrypoints.engine.Engine._launch_subprocesses", _launch_subprocesses,
         "checks settings and hooks before anything is started; nothing official runs there",
         "server_args, init_tokenizer_manager_func, run_scheduler_process_func, run_detokenizer_process_func, "
         "port_args, placement_group"),
    Hook("entrypoints.engine._wait_for_scheduler_ready", _wait_for_scheduler_ready,
         "refuses a scheduler that runs without the hooks", "scheduler_pipe_readers, scheduler_procs"),
    Hook("managers.data_parallel_controller.DataParallelController._record_scheduler_init_infos",
         _record_scheduler_init_infos, "the same for the schedulers of a data parallel controller", "self, infos"),
    Hook("managers.data_parallel_controller.DataParallelController.get_init_info", _controller_init_info,
         "the controller, having checked its schedulers, answers for them", "self"),
]
