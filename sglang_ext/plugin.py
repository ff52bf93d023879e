"""The entry point that sglang calls in each of its processes (group `sglang.srt.plugins`)."""

from __future__ import annotations

import sys


def register() -> None:
    """Register every hook, or end the process: sglang would only log an exception and serve without the budgets."""
    from sglang_ext import cpu
    from sglang_ext.config import SettingsError
    from sglang_ext.patches import register_all
    from sglang_ext.patches.hook import HookError
    from sglang_ext.uag import algorithm

    try:
        register_all()
        algorithm.register()
        if cpu.wanted():
            cpu.register_attention()
    except (HookError, SettingsError) as error:
        print(f"sglang-ext: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
