"""A batch of whole responses at once: what a server's tokens a second are told by."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from . import BenchError

SECONDS = 3600
"""Most seconds of a response."""


@dataclass(frozen=True)
class Batch:
    """Responses in the order of their requests, and the seconds until the last of them."""

    responses: list[dict[str, Any]]
    seconds: float


def send(url: str, bodies: Sequence[Mapping[str, Any]], headers: Mapping[str, str] | None = None) -> Batch:
    """Send all bodies at once.

    Args:
        url: address with its path.

    Raises:
        BenchError: one of them failed; with the server's own words.
    """

    def one(body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply = requests.post(url, json=body, headers=dict(headers or {}), timeout=SECONDS)
            if reply.status_code == requests.codes.ok:
                return dict(reply.json())
        except requests.RequestException as error:
            raise BenchError(f"{url}: {type(error).__name__}: {error}") from None
        raise BenchError(f"{url}: {reply.status_code}: {reply.text[:500]}")

    begin = time.perf_counter()
    with ThreadPoolExecutor(len(bodies)) as pool:
        responses = list(pool.map(one, bodies))
    return Batch(responses, time.perf_counter() - begin)
