"""Ends that come before the limit, on a running server: loops, deadlines, on demand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from asked_ends import (
    LONG,
    check_choices,
    check_cut,
    check_endpoints_choices,
    check_ends,
    end,
    last_of_each,
    looping,
    streamed,
    until_known,
    while_running,
)
from servers import FLOAT32
from told_model import LOOP, OPENS
from transformers import AutoTokenizer, PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(scripted_model)


def test_ends_of_every_kind(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    check_ends(scripted_server, tokenizer, "plain")


def test_a_loop_ends_when_it_is_one(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    """Within two cycles, one of three ids here; with a limit beside it the first to come counts."""
    for budget, outcome, most in ({"loops": True}, "loop", -1), ({"loops": True, "max_tokens": 700}, "loop", 700):
        result = scripted_server.generate(**looping(tokenizer, budget))
        assert 512 <= check_cut(tokenizer, result, outcome, budget=most) <= 512 + 6
    result = scripted_server.generate(**looping(tokenizer, {"loops": True, "max_tokens": 300}))
    assert check_cut(tokenizer, result, "forced", budget=300) == 300
    free = scripted_server.generate(**looping(tokenizer, {"loops": False}, new=700))
    assert free["meta_info"]["think"]["outcome"] == "open"


def test_a_loop_in_the_answer_is_none_of_our_business(scripted_server: servers.Server,
                                                      tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [*tokenizer.encode("no block: "), tokenizer.convert_tokens_to_ids("loop")]
    params = {"temperature": 0, "max_new_tokens": 700, "think_budget": {"loops": True}}
    result = scripted_server.generate(input_ids=ids, sampling_params=params)
    assert len(result["output_ids"]) == 700
    assert result["meta_info"]["think"]["outcome"] == "none"


def test_deadlines_by_the_clock_of_the_server(scripted_server: servers.Server,
                                              tokenizer: PreTrainedTokenizerFast) -> None:
    """Sixteen at once: who has five times the time thinks longer."""
    seconds = [0.3] * 8 + [1.5] * 8
    since = ["arrival", "first_token"]
    bodies = [looping(tokenizer, {"seconds": s, "since": since[i % 2]}) for i, s in enumerate(seconds)]
    results = scripted_server.generate_all(bodies)
    lengths = [check_cut(tokenizer, result, "deadline") for result in results]
    assert max(lengths[:8]) < min(lengths[8:]), lengths


def test_no_time_at_all(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    """Time that is up before a block begins: it ends before its first token, the server's message is not said, and a
    request's own is."""
    assert check_cut(tokenizer, scripted_server.generate(**looping(tokenizer, {"seconds": 0})), "deadline") == 0
    told = {"seconds": 0, "message": "late "}
    assert check_cut(tokenizer, scripted_server.generate(**looping(tokenizer, told)), "deadline", "late ") == 0


def test_a_deadline_stands_for_blocks_that_open_later(scripted_server: servers.Server,
                                                      tokenizer: PreTrainedTokenizerFast) -> None:
    """The model opens a block by itself, after its time."""
    ids = [*tokenizer.encode(""), tokenizer.convert_tokens_to_ids("P3")]
    params = {"temperature": 0, "max_new_tokens": 60, "think_budget": {"seconds": 0, "message": ""}}
    result = scripted_server.generate(input_ids=ids, sampling_params=params)
    think = result["meta_info"]["think"]
    assert (think["tokens"], think["outcome"]) == (0, "deadline")
    assert tokenizer.decode(result["output_ids"]) == "intro\n<think></think>\n\nanswer<|end|>"


def test_an_end_outside_a_block_is_none(scripted_server: servers.Server,
                                        tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [*tokenizer.encode("no block: "), tokenizer.convert_tokens_to_ids("loop")]
    body = {"input_ids": ids, "rid": "outside",
            "sampling_params": {"temperature": 0, "max_new_tokens": LONG, "think_budget": -1}}
    result, answer = while_running(scripted_server, body, lambda: end(scripted_server, "outside"))
    assert answer.json()["done"] == "not thinking"
    assert len(result["output_ids"]) == LONG
    assert result["meta_info"]["think"] == {"budget": -1, "tokens": 0, "forced_tokens": 0, "outcome": "none"}


def test_an_end_is_asked_for_once(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    def act() -> list[str]:
        with ThreadPoolExecutor(6) as pool:
            return [r.json().get("done", "over") for r in pool.map(lambda _: end(scripted_server, "twice"), range(6))]

    result, done = while_running(scripted_server, looping(tokenizer, -1, LONG, "twice"), act)
    assert set(done) <= {"ending", "ending already", "not thinking", "over"}
    assert done.count("ending") == 1
    check_cut(tokenizer, result, "asked")


@pytest.mark.parametrize(("body", "parts"), [
    ({}, ["rid", "null"]), ({"rid": ""}, ["rid", '""']), ({"rid": 5}, ["rid", "5"]), ({"rid": ["a"]}, ["rid", "a"]),
    ({"rid": "a", "message": 5}, ["message", "5", "string"]),
    ({"rid": "a", "message": "x</think>"}, ["message", "marker"]),
    ({"rid": "a", "message": "<|end|>"}, ["message", "control token"]),
    ({"rid": "a", "message": "x" * 5000}, ["message", "4096"]),
    ({"rid": "a", "mesage": "x"}, ["mesage", "rid, message"]), ([1], ["[1]", "object"]), ("a", ["object"]),
], ids=str)
def test_what_is_not_accepted(scripted_server: servers.Server, body: Any, parts: list[str]) -> None:
    response = requests.post(scripted_server.url + "/end_thinking", json=body, timeout=60)
    assert response.status_code == 400
    assert all(part in response.json()["error"]["message"] for part in parts), response.text


def test_a_request_without_a_budget(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    """Nothing watches it, and that is said."""
    body = looping(tokenizer, None, LONG, "free")
    result, answer = while_running(scripted_server, body, lambda: end(scripted_server, "free"))
    assert (answer.status_code, "-1" in answer.json()["error"]["message"]) == (400, True)
    assert len(result["output_ids"]) == LONG
    assert requests.post(scripted_server.url + "/end_thinking", data=b"{", timeout=60).status_code == 400
    assert requests.get(scripted_server.url + "/end_thinking", timeout=60).status_code == 405


@pytest.mark.parametrize(("path", "field", "body"), [
    ("/v1/chat/completions", "usage", {"messages": [{"role": "user", "content": LOOP}], "max_tokens": 700}),
    ("/v1/completions", "usage", {"prompt": "<think>" + LOOP, "max_tokens": 700}),
    ("/v1/responses", "usage", {"input": LOOP, "max_output_tokens": 700}),
    ("/v1/messages", "usage", {"messages": [{"role": "user", "content": LOOP}], "max_tokens": 700}),
])
def test_every_endpoint_tells(scripted_server: servers.Server, path: str, field: str, body: dict[str, Any]) -> None:
    before = scripted_server.metrics()
    outcomes = []
    for budget in ({"loops": True}, {"seconds": 0.2}):
        response = scripted_server.post(path, {"model": "told", "temperature": 0, "think_budget": budget, **body})
        assert response.status_code == 200, response.text
        outcomes.append(response.json()[field]["think"]["outcome"])
    assert outcomes == ["loop", "deadline"]
    after = scripted_server.metrics()
    name = "sglang_ext:think_outcomes_total{%s}"
    assert [after[name % o] - before[name % o] for o in outcomes] == [1, 1]
    for bad in ({"seconds": "8"}, {"seconds": True}, {"seconds": -1}, {"loops": "yes"}, {"loops": 1},
                {"seconds": 1, "since": "now"}):
        response = scripted_server.post(path, {"model": "told", "think_budget": bad, **body})
        assert response.status_code == 400
        assert f"think_budget.{[*bad][-1]}" in response.text


def test_choices_are_ended_by_the_id_that_the_client_gave(scripted_server: servers.Server,
                                                          tokenizer: PreTrainedTokenizerFast) -> None:
    check_choices(scripted_server, tokenizer, "choices")


def test_choices_that_are_not_streamed(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    """The end is asked for while sglang still reads their prompt, before there are any."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(scripted_server.post, "/generate", looping(tokenizer, -1, LONG, "unstreamed", n=2))
        answer = until_known(scripted_server, "unstreamed")
        assert len(answer.json()["choices"]) == 2, answer.text
        for result in pending.result().json():
            check_cut(tokenizer, result, "asked")


def test_choices_of_a_response_are_ended_by_its_id(scripted_server: servers.Server) -> None:
    check_endpoints_choices(scripted_server, "my-choices")


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/messages", {"messages": [{"role": "user", "content": LOOP}], "max_tokens": LONG}),
    ("/api/chat", {"messages": [{"role": "user", "content": LOOP}], "options": {"num_predict": LONG}}),
    ("/api/generate", {"prompt": "<think>" + LOOP, "options": {"num_predict": LONG}}),
])
def test_endpoints_without_an_id_of_their_own_take_one(scripted_server: servers.Server, path: str,
                                                       body: dict[str, Any]) -> None:
    name = path.replace("/", "-")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(scripted_server.post, path, {
            "model": "told", "temperature": 0, "think_budget": -1, "stream": False, "rid": name, **body})
        assert until_known(scripted_server, name).json()["done"] in ("ending", "waiting")
        told = pending.result().json()
    assert told.get("usage", told)["think"]["outcome"] == "asked"
    refused = scripted_server.post(path, {"model": "told", "rid": 7, **body})
    assert refused.status_code in (400, 422), refused.text
    assert "rid" in refused.text


def test_choices_without_a_budget(scripted_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    body = looping(tokenizer, None, LONG, n=2)
    objects, answer = streamed(scripted_server, "/generate", {**body, "parts": 2},
                               lambda first: end(scripted_server, first["meta_info"]["id"]))
    assert (answer.status_code, "-1" in answer.json()["error"]["message"]) == (400, True)
    assert [len(result["output_ids"]) for result in last_of_each(objects)] == [LONG, LONG]


def test_a_chat_is_ended_by_the_id_of_its_response(scripted_server: servers.Server) -> None:
    """The id is in the stream's first chunk."""
    body = {"model": "told", "messages": [{"role": "user", "content": OPENS}], "max_tokens": 900, "temperature": 0,
            "think_budget": -1, "stream": True, "stream_options": {"include_usage": True}}
    with requests.post(scripted_server.url + "/v1/chat/completions", json=body, stream=True, timeout=120) as response:
        lines = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith(b"data: {"))
        first = next(lines)
        answer = end(scripted_server, first["id"], message="That will do. ")
        chunks = [first, *lines]
    assert answer.status_code == 200, answer.text
    assert chunks[-1]["usage"]["think"]["outcome"] == "asked"
    text = "".join(c["choices"][0]["delta"].get("reasoning_content") or "" for c in chunks if c["choices"])
    assert text.endswith("That will do. ")


def test_what_is_told_before_a_request(scripted_server: servers.Server) -> None:
    told = requests.get(scripted_server.url + "/server_info", timeout=60).json()["think_budget"]
    assert (told["loops"], told["seconds"]) == (False, None)
    assert told["keys"] == ["max_tokens", "min_tokens", "grace_tokens", "message", "answer_tokens", "loops", "seconds",
                            "since"]


@pytest.fixture(scope="module")
def guarded_server(scripted_model: Path) -> Iterator[servers.Server]:
    """Defaults of the operator's, keys, and requests that are taken off their slots every 211 forwards: in the longer
    test below, not in the one before it."""
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32,
                            "--think-loops", "--think-seconds", "60", "--api-key", "user", "--admin-api-key", "admin",
                            "--max-total-tokens", "4096", "--max-running-requests", "6", "--enable-mixed-chunk",
                            "--chunked-prefill-size", "64", "--schedule-conservativeness", "0.05",
                            "--log-level", "debug", SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="211")
    yield server
    assert not server.stop()


def ask(server: servers.Server, body: dict[str, Any], path: str = "/generate", key: str = "user") -> requests.Response:
    return requests.post(server.url + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=300)


@pytest.mark.served
def test_requests_that_wait_end_as_they_begin(guarded_server: servers.Server,
                                              tokenizer: PreTrainedTokenizerFast) -> None:
    """Behind as many as run at once: one is asked for, the other's time is up, before the prompt is read."""
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(ask, guarded_server, looping(tokenizer, 100, new=150)) for _ in range(6)]
        time.sleep(0.15)
        waits = pool.submit(ask, guarded_server, looping(tokenizer, -1, rid="waits"))
        late = pool.submit(ask, guarded_server, looping(tokenizer, {"seconds": 0.1, "message": "late "}))
        time.sleep(0.05)
        answer = ask(guarded_server, {"rid": "waits", "message": "enough "}, "/end_thinking", "admin")
        assert answer.json() == {"rid": "waits", "done": "waiting", "tokens": 0}
        assert check_cut(tokenizer, waits.result().json(), "asked", "enough ") == 0
        assert check_cut(tokenizer, late.result().json(), "deadline", "late ") == 0
        assert all(check_cut(tokenizer, r.result().json(), "forced", budget=100) == 100 for r in first)


@pytest.mark.served
def test_defaults_keys_and_retraction(guarded_server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
    """Requests that say nothing loop and are ended, through retractions; the endpoint is the administrator's."""
    bodies = [looping(tokenizer, budget, rid=f"guarded-{i}") for i, budget in enumerate(
        [None, {"max_tokens": 30}, {"message": "circles "}, {"loops": False, "max_tokens": 560}, {"seconds": 1.0},
         None])]
    for body in bodies:
        if body["sampling_params"]["think_budget"] is None:
            del body["sampling_params"]["think_budget"]
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(ask, guarded_server, body) for body in bodies]
        time.sleep(0.6)
        refused = [ask(guarded_server, {"rid": "guarded-5"}, "/end_thinking", key).status_code
                   for key in ("user", "nobody")]
        allowed = ask(guarded_server, {"rid": "guarded-5"}, "/end_thinking", "admin")
        results = [p.result().json() for p in pending]
    assert refused == [401, 401]
    assert allowed.status_code == 200, allowed.text
    assert sum(r["meta_info"]["num_retractions"] for r in results) > 0
    assert 512 <= check_cut(tokenizer, results[0], "loop") <= 512 + 6
    check_cut(tokenizer, results[1], "forced", budget=30)
    check_cut(tokenizer, results[2], "loop", "circles ")
    check_cut(tokenizer, results[3], "forced", budget=560)
    check_cut(tokenizer, results[4], "deadline")
    check_cut(tokenizer, results[5], "asked")
    assert "ended the thinking (loop) after" in guarded_server.log.read_text()


ENGINE = """
import sys, threading, time
import sglang_ext, sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], reasoning_parser="qwen3", device="cpu", dtype="float32",
                           attention_backend="torch_native", max_total_tokens=4096, log_level="error")
    done = []
    def act():
        time.sleep(1)
        done.append(engine.end_thinking("mine", "enough "))
        try:
            engine.end_thinking("nobody")
        except LookupError as error:
            done.append(str(error))
    other = threading.Thread(target=act)
    other.start()
    ids = [int(i) for i in sys.argv[2].split(",")]
    result = engine.generate(input_ids=ids, rid="mine", sampling_params={
        "temperature": 0, "max_new_tokens": 1500, "think_budget": -1})
    other.join()
    try:
        engine.end_thinking(7)
    except ValueError as error:
        done.append(str(error))
    print("RESULT", done, result["meta_info"]["think"], repr(result["text"][-60:]))
    engine.shutdown()
"""


@pytest.mark.served
def test_the_engine(scripted_model: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """From another thread, while `generate` waits."""
    script = tmp_path / "ends.py"
    script.write_text(ENGINE)
    ids = looping(tokenizer, -1)["input_ids"]
    done = servers.run(str(script), str(scripted_model), ",".join(map(str, ids)), SGLANG_USE_CPU_ENGINE="1",
                       SGLANG_EXT_THINK_MESSAGE="")
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert "'done': 'ending'" in line
    assert "nobody" in line
    assert "rid: 7" in line
    assert "'outcome': 'asked'" in line
    assert "enough </think>" in line
