"""Requests that say nothing about loops and deadlines, on a server where others do: the same ids as from sglang."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import servers
from asked_ends import end, until_known

PLAIN = ["How many days are in three weeks?", "Write a poem about the sea.", "<think>\nLet me count:", "1, 2, 3,"]
OPEN = "<|im_start|>user\nWhat is a clock?<|im_end|>\n<|im_start|>assistant\n<think>\n"


def asked(text: str, budget: Any = None, new: int = 40, **more: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    return {"text": text, "sampling_params": params if budget is None else {**params, "think_budget": budget}, **more}


@pytest.fixture(scope="module")
def as_published(stock_demo_server: servers.Server) -> list[list[int]]:
    return [result["output_ids"] for result in stock_demo_server.generate_all([asked(text) for text in PLAIN])]


def test_ids_beside_requests_that_are_ended(demo_server: servers.Server, as_published: list[list[int]]) -> None:
    """While others are ended by a deadline, on demand and at once, and one is watched for loops."""
    others = [asked(OPEN, {"max_tokens": -1, "seconds": 0.5, "message": "late"}, new=120),
              asked(OPEN, -1, new=120, rid="demo-ends"), asked(OPEN, {"seconds": 0}, new=120),
              asked(OPEN, {"loops": True}, new=120)]
    with ThreadPoolExecutor(8) as pool:
        ended = [pool.submit(demo_server.generate, **body) for body in others]
        plain = [pool.submit(demo_server.generate, **asked(text)) for text in PLAIN]
        assert until_known(demo_server, "demo-ends").json()["done"] in ("ending", "waiting")
        results, ends = [p.result() for p in plain], [e.result()["meta_info"]["think"]["outcome"] for e in ended]
    assert ends == ["deadline", "asked", "deadline", "open"]
    assert [result["output_ids"] for result in results] == as_published
    assert all("think" not in result["meta_info"] for result in results)
    assert end(demo_server, "demo-ends").status_code == 404
