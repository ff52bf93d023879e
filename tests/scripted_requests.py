"""Requests to the scripted model: its scripts, and limits of every kind."""

from __future__ import annotations

from typing import Any

import servers

OPEN = "<think>\n"
STARTS = [(OPEN, "loop"), (OPEN, "P1"), (OPEN, "P2"), ("", "P3"), ("", "P4"), (OPEN, "P5"), ("", "loop")]
LIMITS: list[Any] = [None, -1, 0, 1, 2, 3, 5, 8, 17, {"max_tokens": 6, "message": "loolooploanswer"},
                     {"max_tokens": 12, "min_tokens": 10}, {"max_tokens": 9, "grace_tokens": 8},
                     {"max_tokens": 20, "answer_tokens": 18}]


def answers(server: servers.Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results in batches of 16."""
    return [r for at in range(0, len(bodies), 16) for r in server.generate_all(bodies[at : at + 16])]
