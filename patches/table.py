"""The table of hooks on sglang: what is wrapped, by what, why, and the signature it was written against.

Targets are below `sglang.srt`; functions are named by module and function of this folder, so that the table is data and
imports nothing. The releases that were read, and the digest of each place in them, are in
`sglang_ext/compat/known.txt`. At start every source is checked, every signature in every process that needs the hooks,
and a server whose table does not fit or was not applied does not start.
"""

from __future__ import annotations

from .frontend_rows import FRONTEND
from .hook import Hook
from .scheduler_rows import SCHEDULER

HOOKS: tuple[Hook, ...] = (*FRONTEND, *SCHEDULER)
ROWS = {hook.path: hook for hook in HOOKS}
"""The rows by the path of their place."""
