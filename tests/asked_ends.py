"""Ask servers for the end of requests' thinking, on the scripted model, whose every next token is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import requests
import servers
from told_model import LOOP
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


def streamed(server: servers.Server, path: str, body: dict[str, Any], begun: Callable[[dict[str, Any]], Any]
             ) -> tuple[list[dict[str, Any]], Any]:
    """A stream's objects, and what is done when all its parts have brought something.

    Args:
        begun: is given the stream's first object.
    """
    parts, objects, done = body.pop("parts"), [], None
    seen: set[int] = set()
    with requests.post(server.url + path, json={**body, "stream": True}, stream=True, timeout=120) as response:
        for line in response.iter_lines():
            if not line.startswith(b"data: {"):
                continue
            objects.append(json.loads(line[6:]))
            assert "error" not in objects[-1], objects[-1]
            seen |= {choice["index"] for choice in objects[-1].get("choices", [objects[-1]])}
            if len(seen) == parts and done is None:
                done = begun(objects[0])
    return objects, done


def last_of_each(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last object of each part of a streamed `/generate`."""
    return [by_index for _, by_index in sorted({o["index"]: o for o in objects}.items())]


def check_choices(server: servers.Server, tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """An id of the client's ends all that it named, as stream or at once; a choice's own id ends that one alone."""
    one = looping(tokenizer, -1, LONG)
    two = {**one, "input_ids": [one["input_ids"]] * 2}
    choices = {**one, "sampling_params": {**one["sampling_params"], "n": 2}}
    of_two = {**choices, "input_ids": two["input_ids"]}
    for i, (body, parts, rid, asked) in enumerate([
            (choices, 2, f"{name}-a", [f"{name}-a"]), (two, 2, f"{name}-b", [f"{name}-b"]),
            (of_two, 4, f"{name}-c", [f"{name}-c"]),
            (of_two, 4, [f"{name}-d", f"{name}-e"], [f"{name}-d", f"{name}-e"])]):
        objects, answers = streamed(server, "/generate", {**body, "rid": rid, "parts": parts},
                                    lambda _, asked=asked: [end(server, a, message="both ") for a in asked])
        results = last_of_each(objects)
        told = [choice for answer in answers for choice in answer.json()["choices"]]
        assert [answer.status_code for answer in answers] == [200] * len(asked), i
        assert all(answer.json().keys() == {"rid", "choices"} for answer in answers)
        assert sorted(c["id"] for c in told) == sorted(r["meta_info"]["id"] for r in results)
        assert {c["done"] for c in told} == {"ending"}
        for result in results:
            check_cut(tokenizer, result, "asked", "both ")
        assert [end(server, a).status_code for a in asked] == [404] * len(asked), "it is over"

    def end_one(first: dict[str, Any]) -> Any:
        return end(server, first["meta_info"]["id"], message="one "), first["meta_info"]["id"]

    limited = {**choices["sampling_params"], "think_budget": 700}
    objects, (answer, own) = streamed(server, "/generate", {**choices, "sampling_params": limited, "parts": 2}, end_one)
    assert answer.json() == {"rid": own, "done": "ending", "tokens": answer.json()["tokens"]}
    for result in last_of_each(objects):
        if result["meta_info"]["id"] == own:
            check_cut(tokenizer, result, "asked", "one ", budget=700)
        else:
            assert check_cut(tokenizer, result, "forced", budget=700) == 700


def until_known(server: servers.Server, rid: str) -> requests.Response:
    """The answer to an end of a request that is on its way to the server."""
    for _ in range(1000):
        answer = end(server, rid)
        if answer.status_code != 404:
            return answer
        time.sleep(0.002)
    raise AssertionError(f"{rid} never came")


def check_endpoints_choices(server: servers.Server, rid: str) -> None:
    """Choices of a chat, and prompts of a completion, by the id of the response or by the client's own."""
    chat = {"model": "told", "messages": [{"role": "user", "content": LOOP}], "n": 2}
    completion = {"model": "told", "prompt": ["<think>" + LOOP] * 2}
    for path, body in ("/v1/chat/completions", chat), ("/v1/completions", completion):
        body |= {"max_tokens": LONG, "temperature": 0, "think_budget": -1, "parts": 2,
                 "stream_options": {"include_usage": True}}
        for own in None, rid:
            objects, answer = streamed(server, path, {**body, **({} if own is None else {"rid": own})},
                                       lambda first, own=own: end(server, own or first["id"]))
            assert answer.status_code == 200, answer.text
            assert [choice["done"] for choice in answer.json()["choices"]] == ["ending"] * 2
            thinks = objects[-1]["usage"]["think"]["choices"]
            assert [think["outcome"] for think in thinks] == ["asked"] * 2, path
