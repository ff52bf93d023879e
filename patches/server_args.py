"""`prepare_server_args`: our flags on sglang's command line.

sglang compiles its flags when it is imported; a plugin cannot add one. They are taken off the line before sglang's
parser sees it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sglang_ext.cli import peel
from sglang_ext.uag.algorithm import refuse_missing_draft

from .fit import require_known
from .hook import HookError


def prepare_server_args(original: Callable[..., Any], argv: list[str]) -> Any:
    try:
        settings, rest = peel(argv)
        require_known(settings.allow_unknown_sglang)
        refuse_missing_draft(rest)
    except (ValueError, HookError) as error:
        print(f"sglang-ext: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    settings.to_environment()
    return original(rest)
