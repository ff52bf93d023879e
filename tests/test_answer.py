"""An answer remains: where the thinking has a limit, a part of `max_tokens` is kept for what comes after it.

Reported: a budget at or above `max_tokens` brought nothing but thinking. The server runs with its defaults.
"""

from __future__ import annotations

from typing import Any

import pytest
import servers
from told_model import CLOSE, LOOP, THREE, think

SAYS = [{"role": "user", "content": LOOP}]


def chat(server: servers.Server, most: int, **body: Any) -> tuple[dict[str, Any], str]:
    response = server.post("/v1/chat/completions", {"model": "told", "messages": SAYS, "temperature": 0,
                                                    "max_tokens": most, **body})
    assert response.status_code == 200, response.text
    return response.json()["usage"].get("think"), response.json()["choices"][0]["message"]["content"] or ""


@pytest.mark.parametrize(("most", "kept"), [(16, 2), (40, 5), (80, 10), (800, 100)])
@pytest.mark.parametrize("budget", [0, 3, 1000, 2**31 - 2])
def test_an_eighth_is_kept(scripted_server: servers.Server, most: int, kept: int, budget: int) -> None:
    limit = min(budget, most - kept - CLOSE)
    told, answer = chat(scripted_server, most, think_budget=budget)
    assert told == think(limit, limit, CLOSE, "forced")
    assert answer.strip() == "answer"


@pytest.mark.parametrize("most", range(1, 9))
def test_short_responses(scripted_server: servers.Server, most: int) -> None:
    """One token is kept where more than the end of the thinking has room; else the limit is what was asked for."""
    told, answer = chat(scripted_server, most, think_budget=5)
    limit = min(5, most - 1 - CLOSE) if most > CLOSE else 5
    assert told["budget"] == limit
    assert told["tokens"] == min(limit, most)
    assert bool(answer) == (most > CLOSE)


def test_a_message_without_room_beside_an_answer(scripted_server: servers.Server) -> None:
    """Thinking is not given up for a message that leaves no room for an answer anyway."""
    said = "I have to stop here and answer now. "
    told, _ = chat(scripted_server, 10, think_budget={"max_tokens": 6, "message": said})
    assert (told["budget"], told["tokens"]) == (6, 6)


def test_what_keeps_nothing(scripted_server: servers.Server) -> None:
    """No limit, and a request that says so itself."""
    assert chat(scripted_server, 16)[0] is None
    assert chat(scripted_server, 16, think_budget=-1)[0] == think(-1, 16, 0, "open")
    assert chat(scripted_server, 16, think_budget={"max_tokens": 50, "answer_tokens": 0})[0] == think(50, 16, 0, "open")
    four = {"max_tokens": 50, "answer_tokens": 4}
    assert chat(scripted_server, 16, think_budget=four)[0] == think(9, 9, CLOSE, "forced")


def test_an_end_of_its_own_is_not_hurried(scripted_server: servers.Server) -> None:
    says = [{"role": "user", "content": THREE}]
    assert chat(scripted_server, 12, messages=says, think_budget=100)[0] == think(8, 6, 0, "natural")


def test_several_choices_and_a_batch(scripted_server: servers.Server) -> None:
    """The engine reads their common prompt with a request of its own, of no tokens."""
    told, _ = chat(scripted_server, 16, think_budget=100, n=3)
    assert told["choices"] == [think(11, 11, CLOSE, "forced")] * 3
    params = [{"max_new_tokens": most, "temperature": 0, "think_budget": 100} for most in (16, 40)]
    body = {"text": ["<think>" + LOOP] * 2, "sampling_params": params}
    got = scripted_server.post("/generate", body).json()
    assert [each["meta_info"]["think"]["budget"] for each in got] == [11, 32]
