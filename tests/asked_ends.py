"""Ask servers for the end of requests' thinking, on the scripted model, whose every next token is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import requests
import servers
from transformers import PreTrainedTokenizerFast

OPEN = "<think>\n"
CYCLE = ("lo", "loo", "loop")
LONG = 1900
"""New tokens of a request that somebody else is to end: as many as the model's context has room for."""
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


def while_running(server: servers.Server, body: dict[str, Any],
                  act: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Result of a streamed request, and of what is done as soon as it has brought something."""
    with requests.post(server.url + "/generate", json={**body, "stream": True}, stream=True, timeout=120) as response:
        lines = (line[6:] for line in response.iter_lines() if line.startswith(b"data: {"))
        first = list(islice(lines, 4))
        done = act()
        return json.loads([*first, *lines][-1]), done


def check_ends(server: servers.Server, tokenizer: PreTrainedTokenizerFast, name: str, loop: bool = True) -> None:
    """Ends of every kind at once, beside requests that have none.

    Args:
        name: begins the ids of the requests.
        loop: ask for a loop too, which takes some hundred tokens.
    """
    asked = [looping(tokenizer, -1, LONG, f"{name}-asked-{i}") for i in range(4)]
    told = looping(tokenizer, {"max_tokens": 1500, "message": "not this "}, LONG, f"{name}-told")
    late = looping(tokenizer, {"max_tokens": -1, "seconds": 0.25, "since": "first_token"}, LONG)
    plain = looping(tokenizer, {"max_tokens": 40})
    circling = looping(tokenizer, {"max_tokens": -1, "loops": True, "message": "circles "})
    others = [late, plain, *([circling] if loop else [])]

    def ended(body: dict[str, Any]) -> tuple[dict[str, Any], requests.Response]:
        message = {"message": "enough "} if body is told else {}
        return while_running(server, body, lambda: end(server, body["rid"], **message))

    with ThreadPoolExecutor(len(others) + 5) as pool:
        beside = [pool.submit(server.generate, **body) for body in others]
        results, answers = zip(*pool.map(ended, [*asked, told]), strict=True)
        results = [*results, *(other.result() for other in beside)]
    for body, answer in zip([*asked, told], answers, strict=True):
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["rid"], found["done"]) == (body["rid"], "ending")
    for result, answer in zip(results[:4], answers, strict=False):
        assert check_cut(tokenizer, result, "asked") >= answer.json()["tokens"]
    check_cut(tokenizer, results[4], "asked", "enough ", budget=1500)
    assert check_cut(tokenizer, results[5], "deadline") > 0
    assert check_cut(tokenizer, results[6], "forced", budget=40) == 40
    if loop:
        assert 512 <= check_cut(tokenizer, results[7], "loop", "circles ") < 512 + 64
    assert end(server, f"{name}-nobody").status_code == 404
    assert end(server, asked[0]["rid"]).status_code == 404, "it is over"
