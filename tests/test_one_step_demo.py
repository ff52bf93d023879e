"""What follows an end that was read in one forward, by a model that attends to it: float32, against token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import servers
from demo_requests import BUDGETS, body, prompts
from servers import FLOAT32

MESSAGE = "I have thought long enough and will answer now.\n"
WALLS = BUDGETS[:8]
NEW = 30


@pytest.fixture(scope="module")
def stepwise_server() -> Iterator[servers.Server]:
    server = servers.launch(*FLOAT32, "--think-one-step", "off")
    yield server
    assert not server.stop()


def limited(budget: int | None) -> dict[str, Any] | None:
    return None if budget is None else {"max_tokens": budget, "message": MESSAGE}


def test_answers_and_neighbours(demo_server: servers.Server, stepwise_server: servers.Server,
                                demo_tokenizer: Any) -> None:
    """And what goes on from a response: the cache holds what was read."""
    texts = prompts(demo_tokenizer, len(WALLS))
    asked = [body(t, limited(b), NEW) for t, b in zip(texts, WALLS, strict=True)]
    one, other = (server.generate_all(asked) for server in (demo_server, stepwise_server))
    assert [r["output_ids"] for r in one] == [r["output_ids"] for r in other]
    assert [r["meta_info"].get("think") for r in one] == [r["meta_info"].get("think") for r in other]
    further = []
    for text, result in zip(texts, one, strict=True):
        ids = demo_tokenizer.encode(text) + result["output_ids"]
        further.append({"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 12}})
    one, other = (server.generate_all(further) for server in (demo_server, stepwise_server))
    assert [r["output_ids"] for r in one] == [r["output_ids"] for r in other]
    assert all(r["meta_info"]["cached_tokens"] >= len(f["input_ids"]) - 2 for r, f in zip(one, further, strict=True))
