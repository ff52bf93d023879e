"""Prometheus: what a server's requests thought, in exact numbers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import requests
import servers
from prometheus_client.parser import text_string_to_metric_families
from told_model import CLOSE, LOOP, PLAIN, STOPS, THREE

OUTCOMES = "sglang_ext:think_outcomes_total"


def counted(server: servers.Server, *bodies: dict[str, Any]) -> dict[str, float]:
    """What the requests add to the counters."""
    before = server.metrics()
    for body in bodies:
        params = {"max_new_tokens": 12, "temperature": 0, **body.pop("sampling_params", {})}
        server.generate(sampling_params=params, **body)
    return dict(server.metrics() - before)


def prompt(last: str, budget: Any) -> dict[str, Any]:
    return {"text": "<think>" + last, "sampling_params": {"think_budget": budget}}


def test_requests_are_counted_to_the_token(scripted_server: servers.Server) -> None:
    added = counted(scripted_server, prompt(THREE, 9), prompt(LOOP, 4), prompt(LOOP, 5), prompt(STOPS, 9),
                    prompt(LOOP, -1), {"text": PLAIN, "sampling_params": {"think_budget": 3}})
    assert added == {
        "sglang_ext:think_tokens_total": 6 + 4 + 5 + 1 + 12,
        "sglang_ext:think_forced_tokens_total": 3 * CLOSE,
        f"{OUTCOMES}{{natural}}": 1, f"{OUTCOMES}{{forced}}": 2, f"{OUTCOMES}{{eos}}": 1, f"{OUTCOMES}{{open}}": 1,
        f"{OUTCOMES}{{none}}": 1,
        "sglang_ext:think_tokens_histogram_count": 6, "sglang_ext:think_tokens_histogram_sum": 6 + 4 + 5 + 1 + 12,
    }


def test_requests_without_a_budget_are_not_counted(scripted_server: servers.Server) -> None:
    assert counted(scripted_server, {"text": "<think>" + LOOP}) == {}


def test_a_request_of_several_choices_counts_each(scripted_server: servers.Server) -> None:
    body = prompt(LOOP, 4)
    body["sampling_params"]["n"] = 3
    before = scripted_server.metrics()
    scripted_server.post("/generate", {"text": body["text"], "sampling_params": {"max_new_tokens": 12, "temperature": 0,
                                                                             **body["sampling_params"]}})
    assert scripted_server.metrics()[f"{OUTCOMES}{{forced}}"] - before[f"{OUTCOMES}{{forced}}"] == 3


def test_an_abort_while_thinking_is_open(scripted_server: servers.Server) -> None:
    before = scripted_server.metrics()
    body = {"rid": "doomed", "text": "<think>" + LOOP,
            "sampling_params": {"max_new_tokens": 1900, "temperature": 0, "think_budget": -1}}
    thread = threading.Thread(target=scripted_server.post, args=("/generate", body))
    thread.start()
    time.sleep(1)
    scripted_server.post("/abort_request", {"rid": "doomed"})
    thread.join()
    added = scripted_server.metrics() - before
    assert added[f"{OUTCOMES}{{open}}"] == 1
    assert 0 < added["sglang_ext:think_tokens_total"] < 1900


@pytest.mark.parametrize("name", ["sglang_ext:think_tokens_total", OUTCOMES])
def test_labels_are_sglangs(scripted_server: servers.Server, name: str) -> None:
    counted(scripted_server, prompt(LOOP, 4))
    text = requests.get(scripted_server.url + "/metrics", timeout=60).text
    own = next(s for family in text_string_to_metric_families(text) for s in family.samples
               if s.name == "sglang:num_requests_total")
    sample = next(s for s in scripted_server.samples() if s.name == name)
    assert set(sample.labels) - {"outcome"} == set(own.labels) - {"is_streaming"}
    assert sample.labels["model_name"] == "told"
