"""Make the processes that sglang spawns import `sglang_ext` before sglang.

A spawned process imports the parent's main module first, and only then unpickles its task, which imports sglang. Where
the main module is the `sglang` command or a notebook, nothing in it imports `sglang_ext` early enough. So a spawned
process is given this module as its main module; it runs the real one in its turn.
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import runpy
from typing import Any

_MAIN = "sglang_ext.cpu.spawned_main"
_NAME_VARIABLE = "SGLANG_EXT_MAIN_NAME"
_PATH_VARIABLE = "SGLANG_EXT_MAIN_PATH"
_prepare = multiprocessing.spawn.get_preparation_data


def install() -> None:
    """Change what this process tells the processes it spawns, once."""
    multiprocessing.spawn.get_preparation_data = _preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    data = _prepare(name)
    for key, variable in (("init_main_from_name", _NAME_VARIABLE), ("init_main_from_path", _PATH_VARIABLE)):
        value = data.pop(key, None)
        if value == _MAIN:  # this process is itself a spawned one: its real main module stays what it was
            break
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = str(value)
    data["init_main_from_name"] = _MAIN
    return data


def run_real_main() -> dict[str, Any]:
    """Run the parent's main module as a spawned process does; return its globals."""
    name, path = os.environ.get(_NAME_VARIABLE), os.environ.get(_PATH_VARIABLE)
    if name:
        return runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
    if path and os.path.basename(path) != "ipython" and os.path.exists(path):
        return runpy.run_path(path, run_name="__mp_main__")
    return {}
