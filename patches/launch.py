"""The start of an engine: no server without its budgets.

Plugin failures are only logged by sglang, and a plugin can be filtered out by `SGLANG_PLUGINS`. So every scheduler says
in its ready message that the hooks are in place, and the launching process refuses one that does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_ext.config import Settings

from .end_thinking import add_to_servers
from .fit import description, refuse_without, require_known, warn_of_unknown
from .hook import HookError
from .registry import check_applied

READY_KEY = "sglang_ext"
REFUSED = 2
"""Exit status of a process that refuses to serve."""
APPLICATION_VARIABLE = "SGLANG_HTTP_SERVER_APP_PATH"
APPLICATION = "sglang_ext.http_worker:app"

logger = logging.getLogger(__name__)


def launch_subprocesses(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    check_applied()
    require_known(Settings.from_environment().allow_unknown_sglang)
    warn_of_unknown()
    server_args = kwargs["server_args"] if "server_args" in kwargs else args[1]
    refuse_without(server_args)
    application = os.environ.setdefault(APPLICATION_VARIABLE, APPLICATION)
    if server_args.tokenizer_worker_num > 1 and application != APPLICATION:
        raise HookError(f"{APPLICATION_VARIABLE}={application} would serve without sglang-ext's hooks in the tokenizer "
                        "workers; unset it")
    add_to_servers()
    started = original(*args, **kwargs)
    served = description()
    logger.info("sglang-ext %s on sglang %s, table of hooks %s", served["version"], served["sglang"], served["table"])
    return started


def wait_for_scheduler_ready(original: Callable[..., Any], scheduler_pipe_readers: Any, scheduler_procs: Any) -> Any:
    try:
        infos = original(scheduler_pipe_readers, scheduler_procs)
    except RuntimeError:
        if any(process.exitcode == REFUSED for process in scheduler_procs):
            raise SystemExit(REFUSED) from None  # it has said why, in a line of its own
        raise
    _check_ready(infos)
    return infos


def record_scheduler_init_infos(original: Callable[..., Any], self: Any, infos: list[dict[str, Any]]) -> None:
    _check_ready(infos)
    original(self, infos)


def controller_init_info(original: Callable[..., Any], self: Any) -> dict[str, Any]:
    return {**original(self), READY_KEY: True}


def _check_ready(infos: list[dict[str, Any]]) -> None:
    if not all(info.get(READY_KEY) for info in infos):
        raise HookError("a scheduler started without sglang-ext, so think budgets would not be enforced; is "
                        "SGLANG_PLUGINS set without sglang_ext?")
