"""Ask servers for the end of requests' thinking, on the scripted model, whose every next token is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import requests
import servers
from transformers import PreTrainedTokenizerFast

OPEN = "<think>\n"
CYCLE = ("lo", "loo", "loop")
END = ("</", "think", ">", "\n\n")


def looping(tokenizer: PreTrainedTokenizerFast, budget: Any, new: int = 1200, rid: str | None = None,
            **params: Any) -> dict[str, Any]:
    """A request that thinks for ever."""
    ids = [*tokenizer.encode(OPEN), tokenizer.convert_tokens_to_ids("loop")]
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": new, "think_budget": budget,
                                                  **params}}
    return body if rid is None else {**body, "rid": rid}


def check_cut(tokenizer: PreTrainedTokenizerFast, result: dict[str, Any], outcome: str, message: str = "",
              budget: int = -1) -> int:
    """A thought that was ended, whole and once, and the answer behind it; return how long it was."""
    think = result["meta_info"]["think"]
    pieces = [str(p).replace("Ċ", "\n").replace("Ġ", " ")
              for p in tokenizer.convert_ids_to_tokens(result["output_ids"])]
    written = [str(p).replace("Ċ", "\n").replace("Ġ", " ")
               for p in tokenizer.convert_ids_to_tokens(tokenizer.encode(message))]
    chosen = think["tokens"]
    assert pieces[:chosen] == [CYCLE[i % 3] for i in range(chosen)]
    assert "".join(pieces[chosen:]) == message + "</think>\n\nanswer<|end|>"
    assert think == {"budget": budget, "tokens": chosen, "forced_tokens": len(written) + 3, "outcome": outcome}
    assert result["meta_info"]["reasoning_tokens"] == chosen + len(written) + 3
    return int(chosen)


def end(server: servers.Server, rid: str, **more: Any) -> requests.Response:
    return server.post("/end_thinking", {"rid": rid, **more})


def while_running(server: servers.Server, bodies: list[dict[str, Any]],
                  act: Callable[[], Any]) -> tuple[list[dict[str, Any]], Any]:
    """Results of streamed requests, and of what is done once each of them has brought something."""
    begun = threading.Barrier(len(bodies) + 1)

    def stream(body: dict[str, Any]) -> dict[str, Any]:
        import json

        with requests.post(server.url + "/generate", json={**body, "stream": True}, stream=True,
                           timeout=120) as response:
            lines = (line[6:] for line in response.iter_lines() if line.startswith(b"data: {"))
            first = list(islice(lines, 4))
            begun.wait(60)
            return json.loads([*first, *lines][-1])  # type: ignore[no-any-return]

    with ThreadPoolExecutor(len(bodies)) as pool:
        results = [pool.submit(stream, body) for body in bodies]
        begun.wait(60)
        done = act()
        return [result.result() for result in results], done


def check_ends(server: servers.Server, tokenizer: PreTrainedTokenizerFast, name: str, loop: bool = True) -> None:
    """Ends of every kind at once, beside requests that have none.

    Args:
        name: begins the ids of the requests.
        loop: ask for a loop too, which takes some hundred tokens.
    """
    asked = [looping(tokenizer, -1, rid=f"{name}-asked-{i}") for i in range(4)]
    told = looping(tokenizer, {"max_tokens": 900, "message": "not this "}, rid=f"{name}-told")
    late = looping(tokenizer, {"max_tokens": -1, "seconds": 0.25, "since": "first_token"})
    plain = looping(tokenizer, {"max_tokens": 40})
    circling = looping(tokenizer, {"max_tokens": -1, "loops": True, "message": "circles "})
    others = [late, plain, *([circling] if loop else [])]

    def act() -> list[requests.Response]:
        time.sleep(0.2)
        return [*(end(server, body["rid"]) for body in asked), end(server, told["rid"], message="enough ")]

    results, answers = while_running(server, [*asked, told, *others], act)
    for body, answer in zip([*asked, told], answers, strict=True):
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["rid"], found["done"]) == (body["rid"], "ending")
    for result, answer in zip(results[:4], answers, strict=False):
        assert check_cut(tokenizer, result, "asked") >= answer.json()["tokens"]
    check_cut(tokenizer, results[4], "asked", "enough ", budget=900)
    assert check_cut(tokenizer, results[5], "deadline") > 0
    assert check_cut(tokenizer, results[6], "forced", budget=40) == 40
    if loop:
        assert 512 <= check_cut(tokenizer, results[7], "loop", "circles ") < 512 + 64
    assert end(server, f"{name}-nobody").status_code == 404
    assert end(server, asked[0]["rid"]).status_code == 404, "it is over"
