"""Every hook on sglang, in one table (`table.py`), and the checks that keep a server from running without them."""

from .registry import check_applied, register_all

__all__ = ["check_applied", "register_all"]
