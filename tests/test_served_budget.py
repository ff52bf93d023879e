"""Budgets on a running server, against the same requests on sglang without the plugin: float32, overlap on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import servers
from demo_requests import BUDGETS, NEW, body, check_all, prompts
from rescan import Rescan
from servers import FLOAT32


@pytest.fixture(scope="module")
def close(demo_tokenizer: Any) -> list[int]:
    return demo_tokenizer.encode("</think>") + demo_tokenizer.encode("\n\n")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def free(stock_demo_server: servers.Server, demo_tokenizer: Any) -> list[list[int]]:
    """What stock sglang answers to the 16 prompts, in one batch."""
    results = stock_demo_server.generate_all([body(p) for p in prompts(demo_tokenizer, len(BUDGETS))])
    return [r["output_ids"] for r in results]


def test_sixteen_mixed_budgets(demo_server: servers.Server, demo_tokenizer: Any, demo_rescan: Rescan,
                               free: list[list[int]], close: list[int]) -> None:
    """Under overlap scheduling line break and end marker must not come twice: there is exactly one end. Requests
    without a budget must not change: they are what sglang without the plugin answers."""
    requests_ = [body(p, b) for p, b in zip(prompts(demo_tokenizer, len(BUDGETS)), BUDGETS, strict=True)]
    check_all(demo_server.generate_all(requests_), free, close, demo_rescan)


def test_cached_prefix_that_ends_inside_the_block(demo_server: servers.Server, demo_tokenizer: Any,
                                                  demo_rescan: Rescan, free: list[list[int]],
                                                  close: list[int]) -> None:
    """The prompt holds the first thoughts of an earlier response, all of it in the prefix cache."""
    story = 4
    prompt = demo_tokenizer.encode(prompts(demo_tokenizer, story + 1)[story])
    begun = prompt + free[story][:10]
    first = demo_server.generate(input_ids=begun, sampling_params={"temperature": 0, "max_new_tokens": 8})
    assert first["meta_info"]["completion_tokens"] > 0
    again = demo_server.generate(input_ids=begun, sampling_params={"temperature": 0, "max_new_tokens": 20,
                                                                   "think_budget": 4, "ignore_eos": True})
    assert again["meta_info"]["cached_tokens"] >= len(begun) - 1
    demo_rescan.check_forced(again["output_ids"], 4, close, free[story][10:])


def test_two_samples_each_have_their_own_budget(demo_server: servers.Server, demo_tokenizer: Any,
                                                demo_rescan: Rescan, close: list[int]) -> None:
    """Which do not end on their own before: what would begin to is unlikely."""
    request = body(prompts(demo_tokenizer, 1)[0], 6, new=40, sampling_params={
        "n": 2, "temperature": 1.0, "logit_bias": {str(close[0]): -100.0}})
    results = demo_server.post("/generate", request).json()
    assert len(results) == 2
    for result in results:
        demo_rescan.check_wall(result["output_ids"], 6)
        assert result["meta_info"]["think"]["tokens"] == 6


def test_a_half_written_marker_is_completed(demo_server: servers.Server, demo_tokenizer: Any, demo_rescan: Rescan,
                                            close: list[int]) -> None:
    """By a token of the model's own, which the end does not repeat."""
    request = body(prompts(demo_tokenizer, 1)[0], 5, new=12, sampling_params={"logit_bias": {str(close[0]): 100.0}})
    result = demo_server.generate(**request)
    assert result["output_ids"][:5] == close[:1] * 5
    assert result["output_ids"][5 : 4 + len(close)] == close[1:]
    demo_rescan.check_wall(result["output_ids"], 5)
    assert result["meta_info"]["think"]["tokens"] == 5


def test_streaming_gives_the_same_ids(demo_server: servers.Server, demo_tokenizer: Any, free: list[list[int]],
                                      close: list[int]) -> None:
    request = {**body(prompts(demo_tokenizer, 1)[0], 5, new=24), "stream": True}
    with requests.post(demo_server.url + "/generate", json=request, stream=True, timeout=120) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[-1]["output_ids"][: 5 + len(close)] == free[0][:5] + close
    used = [e["meta_info"]["think"]["tokens"] for e in events]
    assert used == sorted(used)
    assert events[-1]["meta_info"]["think"]["outcome"] == "forced"


def test_logprobs_of_forced_tokens(demo_server: servers.Server, demo_tokenizer: Any, close: list[int]) -> None:
    request = body(prompts(demo_tokenizer, 1)[0], 3, new=12, return_logprob=True, top_logprobs_num=2)
    result = demo_server.generate(**request)
    chosen = result["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in chosen] == result["output_ids"]
    assert [entry[0] for entry in chosen[3 : 3 + len(close)]] == [0.0] * len(close)
    assert chosen[0][0] < 0


def test_penalties_bias_and_sampling_cannot_move_the_wall(demo_server: servers.Server, demo_tokenizer: Any,
                                                          close: list[int]) -> None:
    bias = {str(i): -100.0 for i in close}
    request = body(prompts(demo_tokenizer, 1)[0], 4, new=12, sampling_params={
        "logit_bias": bias, "frequency_penalty": 2.0, "presence_penalty": 2.0, "temperature": 1.5, "top_p": 0.5,
        "top_k": 5, "min_p": 0.1, "sampling_seed": 7})
    result = demo_server.generate(**request)
    assert result["output_ids"][4 : 4 + len(close)] == close


def test_abort_while_forcing_leaves_the_slots_clean(demo_server: servers.Server, demo_tokenizer: Any,
                                                    demo_rescan: Rescan, free: list[list[int]],
                                                    close: list[int]) -> None:
    """Requests aborted in the middle of a long message; the next ones get their slots."""
    message = "I have thought long enough about this question and will answer now. " * 8
    texts = prompts(demo_tokenizer, len(BUDGETS))
    doomed = [{**body(t, {"max_tokens": 2, "message": message}, new=200), "rid": f"doomed-{i}"}
              for i, t in enumerate(texts)]
    threads = [threading.Thread(target=demo_server.post, args=("/generate", d)) for d in doomed]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    for d in doomed:
        demo_server.post("/abort_request", {"rid": d["rid"]})
    for thread in threads:
        thread.join()
    requests_ = [body(t, b) for t, b in zip(texts[:8], BUDGETS, strict=False)]
    check_all(demo_server.generate_all(requests_), free[:8], close, demo_rescan, BUDGETS[:8])


def test_message_is_forced_before_the_end(demo_server: servers.Server, demo_tokenizer: Any, free: list[list[int]],
                                          close: list[int]) -> None:
    message = "Time is up.\n"
    result = demo_server.generate(**body(prompts(demo_tokenizer, 1)[0], {"max_tokens": 5, "message": message}, new=30))
    said = demo_tokenizer.encode(message)
    assert result["output_ids"][: 5 + len(said) + len(close)] == free[0][:5] + said + close
    assert result["meta_info"]["think"] == {"budget": 5, "tokens": 5, "forced_tokens": len(said) + len(close),
                                            "outcome": "forced"}


def test_end_of_sequence_while_thinking_closes_the_block(demo_server: servers.Server, demo_tokenizer: Any,
                                                         close: list[int]) -> None:
    """The demo model is no reasoner: it answers inside the block and stops there."""
    prompt = prompts(demo_tokenizer, 2)[1]
    params = {"temperature": 0, "max_new_tokens": 64}
    plain = demo_server.generate(text=prompt, sampling_params=params)
    assert plain["meta_info"]["finish_reason"]["type"] == "stop"
    result = demo_server.generate(text=prompt, sampling_params={**params, "think_budget": 50})
    said = len(plain["output_ids"]) - 1
    assert result["output_ids"][: said + len(close)] == plain["output_ids"][:said] + close
    assert result["meta_info"]["think"] == {"budget": 50, "tokens": said, "forced_tokens": len(close),
                                            "outcome": "eos"}
    assert len(result["output_ids"]) > said + len(close) + 1


def test_history_with_closed_blocks_and_a_quoted_marker(demo_server: servers.Server, demo_tokenizer: Any,
                                                        close: list[int]) -> None:
    """Only what stands after the last turn boundary opens a block."""
    history = [
        {"role": "user", "content": "How do I parse <think> tags?"},
        {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nLook for <think> and </think>."},
        {"role": "user", "content": "And an unclosed <think> one?"},
    ]
    opened = demo_tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    shut = demo_tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True,
                                              enable_thinking=False)
    result = demo_server.generate(**body(opened, 3, new=16))
    assert result["output_ids"][3 : 3 + len(close)] == close
    plain, limited = demo_server.generate(**body(shut, new=16)), demo_server.generate(**body(shut, 0, new=16))
    assert plain["output_ids"] == limited["output_ids"]
    assert limited["meta_info"]["think"]["outcome"] == "none"


@pytest.fixture(scope="module")
def tight_server(demo_model: Path) -> Iterator[servers.Server]:
    """Small chunks, decoding rows mixed into them, and a pool that does not hold the batch to its end."""
    server = servers.launch(*FLOAT32, "--chunked-prefill-size", "64", "--enable-mixed-chunk", "--max-total-tokens",
                            "400", "--schedule-conservativeness", "0.01", "--max-running-requests", "16")
    yield server
    assert not server.stop()


@pytest.mark.served
def test_chunked_prefill_and_retraction(tight_server: servers.Server, demo_tokenizer: Any, demo_rescan: Rescan,
                                        close: list[int]) -> None:
    """Against the same server without budgets. No `ignore_eos`: with it, sglang admits only what surely fits."""
    endless = {"min_new_tokens": NEW, "ignore_eos": False}
    texts, budgets = prompts(demo_tokenizer, 8), BUDGETS[:8]
    plain = tight_server.generate_all([body(t, sampling_params=endless) for t in texts])
    limited = tight_server.generate_all([body(t, b, sampling_params=endless)
                                         for t, b in zip(texts, budgets, strict=True)])
    assert sum(r["meta_info"]["num_retractions"] for r in limited) > 0
    check_all(limited, [r["output_ids"] for r in plain], close, demo_rescan, budgets)


@pytest.mark.served
def test_prompts_longer_than_a_chunk(tight_server: servers.Server, demo_tokenizer: Any, close: list[int]) -> None:
    long = prompts(demo_tokenizer, 4, prefix="Some context first: " + "the fox runs over the hill. " * 20)
    for result in tight_server.generate_all([body(p, b, new=24) for p, b in zip(long, (0, 2, 5, 9), strict=True)]):
        budget = result["meta_info"]["think"]["budget"]
        assert result["output_ids"][budget : budget + len(close)] == close
