"""Streams of `/generate`, and how many steps an end takes in one."""

from __future__ import annotations

import json
from typing import Any

import requests
import servers


def stream(server: servers.Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Every event of a response."""
    with requests.post(server.url + "/generate", json={**body, "stream": True}, stream=True, timeout=120) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines[:-1]]


def rounds_of_the_end(events: list[dict[str, Any]], thought: int) -> int:
    """Rounds of verification from where a response's wall is reached, after so many tokens, to where all that is forced
    stands. Each sends an event."""
    lengths, end = [len(e["output_ids"]) for e in events], thought + events[-1]["meta_info"]["think"]["forced_tokens"]
    wall, answer = (next(i for i, n in enumerate(lengths) if n >= length) for length in (thought, end))
    return answer - wall
