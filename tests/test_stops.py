"""Text that the server writes stops no response: message, end marker, and the seams to what the model chose.

Reported: `stop: ["\\n\\n"]`, `["."]` or `["</think>"]` with a budget met the server's own stop sentence or end marker,
and the answer was empty. The same requests without speculation, with NGRAM's drafts and with UAG's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import requests
import servers
from scripted_model import TOLD_TOO, build_scripted_model
from told_model import CLOSE, LOOP, STOPS, THREE, think
from transformers import AutoTokenizer

MESSAGE = "M. answer\n\nS."
ALWAYS = "<|turn|><think>{{ messages[-1]['content'] }}"
"""A chat template that opens a block whatever it is told."""
THOUGHT = "looplolooloop"
WHOLE = f"{THOUGHT}{MESSAGE}</think>\n\nanswer"
BUDGET = {"max_tokens": 4}
WAYS = {
    "plain": (),
    "ngram": ("--speculative-ngram-capacity", "100000", "--speculative-algorithm", "NGRAM",
              "--speculative-num-draft-tokens", "5"),
    "uag": ("--speculative-algorithm", "UAG", "--speculative-num-draft-tokens", "6", "--uag-lengths", "fixed"),
}


pytestmark = pytest.mark.served


@dataclass
class Stopping:
    """A server whose operator's message is MESSAGE, and the ids of its model's pieces."""

    server: servers.Server
    tokenizer: Any

    def id(self, piece: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(piece.replace("\n", "Ċ")))

    def ask(self, start: str, stream: bool = False, **params: Any) -> dict[str, Any]:
        body = {"text": "<think>" + start, "stream": stream,
                "sampling_params": {"max_new_tokens": 60, "temperature": 0, **params}}
        if not stream:
            return self.server.generate(**body)
        response = requests.post(self.server.url + "/generate", json=body, timeout=60)
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
        messages = [json.loads(line) for line in lines]
        texts = [m["text"] for m in messages]
        assert all(after.startswith(before) for before, after in pairwise(texts)), "nothing is taken back"
        return messages[-1]

    def text(self, start: str, stream: bool = False, **params: Any) -> str:
        return str(self.ask(start, stream, **params)["text"])


@pytest.fixture(scope="module", params=WAYS)
def stopping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopping]:
    folder = build_scripted_model(tmp_path_factory.mktemp("stops"), TOLD_TOO, ALWAYS)
    draft = ("--speculative-draft-model-path", str(folder)) if request.param == "uag" else ()
    attention = ("--attention-backend", "torch_native") if request.param == "plain" else ()
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", "deepseek-r1", "--dtype", "float32",
                            "--served-model-name", "m", "--think-message", MESSAGE, *attention,
                            *WAYS[request.param], *draft)
    yield Stopping(server, AutoTokenizer.from_pretrained(folder))
    assert not server.stop()


FORCED_TEXTS = ["</think>", ".", "hink", "think>", "S.", "M. a", "pM", "loopM", ">\n\n", "S.</", "</", "\n\nS",
                "answer\n"]


@pytest.mark.parametrize("more", [{}, {"no_stop_trim": True}, {"stream": True}], ids=str)
@pytest.mark.parametrize("stop", FORCED_TEXTS)
def test_forced_text_stops_nothing(stopping: Stopping, stop: str, more: dict[str, Any]) -> None:
    got = stopping.ask(LOOP, think_budget=BUDGET, stop=[stop, "nowhere"], **more)
    assert got["text"] == WHOLE
    assert got["meta_info"]["think"]["outcome"] == "forced"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("regex", [r"</?think>", r"M\.", "S", r"pM?M", r"k>\s", r"answer\s", r"\.$"])
def test_a_regex_is_met_by_none_of_it(stopping: Stopping, regex: str, stream: bool) -> None:
    assert stopping.text(LOOP, stream, think_budget=BUDGET, stop_regex=regex) == WHOLE


@pytest.mark.parametrize("piece", ["</", "think", ">", "M", "S", "."])
def test_a_forced_id_stops_nothing(stopping: Stopping, piece: str) -> None:
    assert stopping.text(LOOP, think_budget=BUDGET, stop_token_ids=[stopping.id(piece)]) == WHOLE


@pytest.mark.parametrize("budget", [{"max_tokens": 0, "message": ""}, {"max_tokens": 0, "message": "So. "}], ids=str)
def test_a_block_that_is_closed_with_the_first_token(stopping: Stopping, budget: dict[str, Any]) -> None:
    """The first token of all comes with the prompt, by another way through the engine."""
    whole = budget["message"] + "</think>\n\nanswer"
    for stop in ({"stop": ["</", "So", ".", ">"]}, {"stop_regex": "^[<S]"},
                 {"stop_token_ids": [stopping.id("</"), stopping.id("S")]}):
        assert stopping.text(LOOP, think_budget=budget, **stop) == whole


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_the_model_wrote_stops_as_in_sglang(stopping: Stopping, stream: bool) -> None:
    """Also where the server wrote the same text before: the response is cut at the model's own."""
    before = WHOLE.removesuffix("answer")
    for stop in ({"stop": ["answer"]}, {"stop": "swer"}, {"stop_regex": "answer"}):
        literal = next(iter(stop.values()))
        text = literal if isinstance(literal, str) else literal[0]
        end = before + "answer".partition(text)[0]
        assert stopping.text(LOOP, stream, think_budget=BUDGET, **stop) == end
        assert stopping.text(LOOP, stream, think_budget=BUDGET, no_stop_trim=True, **stop) == end + text
    assert stopping.text(LOOP, stream, think_budget=BUDGET, stop_token_ids=[stopping.id("answer")]) == before
    assert stopping.text(LOOP, stream, think_budget=BUDGET, stop="\n\n") == before.removesuffix("\n\n")
    assert stopping.text(LOOP, stream, think_budget=BUDGET, stop="loopl") == ""  # a thought's text, as sglang has it
    assert stopping.text(LOOP, stream, think_budget=BUDGET, stop="lolo") == "loop"


def test_the_reason_names_what_was_met(stopping: Stopping) -> None:
    reason = stopping.ask(LOOP, think_budget=BUDGET, stop=["nowhere", "answer"])["meta_info"]["finish_reason"]
    assert reason == {"type": "stop", "matched": "answer"}


def test_an_end_that_an_eos_became(stopping: Stopping) -> None:
    """The model wanted to end the response; the marker in the place of its EOS is the server's."""
    closed = "partly</think>\n\nanswer"
    for stop in ({"stop": ["</think>"]}, {"stop": "partly</"}, {"stop": "</"}, {"stop_token_ids": [stopping.id("</")]},
                 {"stop_regex": "</"}):
        got = stopping.ask(STOPS, think_budget=9, **stop)
        assert (got["text"], got["meta_info"]["think"]["outcome"]) == (closed, "eos")


def test_an_end_of_the_models_own_stops(stopping: Stopping) -> None:
    for budget in ({}, {"think_budget": 9}):
        assert stopping.text(THREE, stop="</think>", **budget) == "onetwothree"
        assert stopping.text(THREE, stop_token_ids=[stopping.id("</")], **budget) == "onetwothree"


@pytest.mark.parametrize("budget", [3, 4, 5])
def test_a_marker_that_the_server_completed(stopping: Stopping, budget: int) -> None:
    """At the limit the model has written a part of the end marker: it lies across the seam."""
    got = stopping.ask(THREE, think_budget={"max_tokens": budget, "message": ""}, stop=["</think>", "think>"])
    assert got["text"] == "onetwothree</think>\n\nanswer"
    assert got["meta_info"]["think"] == think(budget, budget, 3 + CLOSE - budget, "forced")


def test_budget_0_says_nothing_of_the_operators(stopping: Stopping) -> None:
    """Nothing was thought, so there is nothing to say about it; a message of the request's is said."""
    assert stopping.text(LOOP, think_budget=0) == "</think>\n\nanswer"
    for said in ("So: ", MESSAGE):
        got = stopping.text(LOOP, think_budget={"max_tokens": 0, "message": said})
        assert got == said + "</think>\n\nanswer"
    assert stopping.text(LOOP, think_budget=1) == f"loop{MESSAGE}</think>\n\nanswer"
    body = {"model": "m", "messages": [{"role": "user", "content": LOOP}], "max_tokens": 40, "temperature": 0}
    message = stopping.server.post("/v1/chat/completions", {**body, "think_budget": 0}).json()["choices"][0]["message"]
    assert not message["reasoning_content"]
    assert message["content"].strip() == "answer"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("off", [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}, {"think": False},
                                 {"chat_template_kwargs": {"enable_thinking": False}}], ids=str)
def test_off_where_no_template_has_a_switch(stopping: Stopping, path: str, off: dict[str, Any]) -> None:
    """A family that always thinks: its block is closed at once, without a word."""
    body = {"input": LOOP} if path == "/v1/responses" else {"messages": [{"role": "user", "content": LOOP}]}
    most = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 40}
    response = stopping.server.post(path, {"model": "m", "temperature": 0, **body, **most, **off})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["think"] == think(0, 0, CLOSE, "forced")
    assert "answer" in response.text
    assert "loop" not in response.text


def test_stops_on_the_other_endpoints(stopping: Stopping) -> None:
    says = {"model": "m", "messages": [{"role": "user", "content": LOOP}], "max_tokens": 40, "temperature": 0,
            "think_budget": 4}
    chat = stopping.server.post("/v1/chat/completions", {**says, "stop": ["</think>", ".", "M"]}).json()["choices"][0]
    assert chat["message"]["content"].strip() == "answer"
    assert chat["message"]["reasoning_content"].startswith(THOUGHT)
    for stream in (False, True):
        options = {"stream": stream, "return_output_ids_in_sglext": True, **({"stream_options": {"include_usage": True}}
                                                                              if stream else {})}
        response = stopping.server.post("/v1/chat/completions", {**says, "stop": ["answer"], **options})
        assert response.status_code == 200, response.text
        assert '"matched_stop":"answer"' in response.text.replace(": ", ":")
        assert not stream or response.text.rstrip().endswith("data: [DONE]")
    blocks = stopping.server.post("/v1/messages", {**says, "stop_sequences": ["</think>", "."]}).json()["content"]
    assert blocks[-1]["text"].strip() == "answer"
    options = {"temperature": 0, "num_predict": 40, "think_budget": 4, "stop": ["</think>", "."]}
    ollama = {"model": "m", "prompt": "<think>" + LOOP, "stream": False, "options": options}
    assert stopping.server.post("/api/generate", ollama).json()["response"] == WHOLE
