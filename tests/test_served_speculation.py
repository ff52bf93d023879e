"""Budgets under speculative decoding: sglang's NGRAM, whose drafts are trees, against the same requests without it.

The scripted model repeats itself, so that drafts are long and mostly accepted. Reported failures 2, 3 and 15: a draft
of any width goes over the budget, rows of a verification get another request's budget, a budget of 1 is not met.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import servers
from asked_ends import check_ends
from demo_requests import BUDGETS, body, check_all, prompts
from rescan import Rescan
from scripted_requests import LIMITS, OPEN, STARTS, answers
from streams import rounds_of_the_end, stream
from transformers import AutoTokenizer, PreTrainedTokenizerFast

NGRAM = ("--speculative-ngram-capacity", "100000", "--speculative-algorithm", "NGRAM",
         "--speculative-num-draft-tokens")


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(scripted_model)


@pytest.fixture(scope="module")
def requests_(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """Every script with every limit; lengths that end a response anywhere within a draft."""
    made = []
    for i, limit in enumerate(LIMITS):
        for prompt, start in STARTS:
            ids = [*tokenizer.encode(prompt), tokenizer.convert_tokens_to_ids(start)]
            params = {"temperature": 0, "max_new_tokens": 25 + (5 * i + len(made)) % 17}
            if limit is not None:
                params["think_budget"] = limit
            made.append({"input_ids": ids, "sampling_params": params})
    return made


@pytest.fixture(scope="module")
def plain(scripted_server: servers.Server, requests_: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return answers(scripted_server, requests_)


@pytest.fixture(scope="module", params=[1, 5, 16])
def speculating_server(request: pytest.FixtureRequest, scripted_model: Path) -> Iterator[servers.Server]:
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--dtype", "float32",
                            *NGRAM, str(request.param))
    server.width = request.param  # type: ignore[attr-defined]
    yield server
    assert not server.stop()


def test_every_script_and_limit(speculating_server: servers.Server, requests_: list[dict[str, Any]],
                                plain: list[dict[str, Any]]) -> None:
    """Twice: at first nothing is known to draft from, then everything is."""
    for _ in range(2):
        found = answers(speculating_server, requests_)
        for request, got, wanted in zip(requests_, found, plain, strict=True):
            assert got["output_ids"] == wanted["output_ids"], request
            assert got["meta_info"].get("think") == wanted["meta_info"].get("think"), request
    if speculating_server.width > 1:  # type: ignore[attr-defined]
        steps = sum(r["meta_info"].get("spec_verify_ct") or 0 for r in found)
        assert steps < 0.7 * sum(r["meta_info"]["completion_tokens"] for r in found), "nothing was drafted"


@pytest.mark.usefixtures("plain")  # so that it runs beside the test above, on the same servers
def test_drafts_that_foresee_the_end_of_sequence_in_a_block(speculating_server: servers.Server,
                                                            tokenizer: PreTrainedTokenizerFast) -> None:
    """Responses without a budget teach the drafts that this thought ends with EOS; a limited one has to answer."""
    ids = [*tokenizer.encode(OPEN), tokenizer.convert_tokens_to_ids("P5")]
    for _ in range(3):
        speculating_server.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 9})
    result = speculating_server.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 30,
                                                                         "think_budget": 9})
    assert tokenizer.decode(result["output_ids"]) == "halfthought</think>\n\nanswer<|end|>"
    assert result["meta_info"]["think"] == {"budget": 9, "tokens": 2, "forced_tokens": 3, "outcome": "eos"}


@pytest.mark.usefixtures("plain")
def test_ends_that_come_before_the_limit(speculating_server: servers.Server,
                                         tokenizer: PreTrainedTokenizerFast) -> None:
    check_ends(speculating_server, tokenizer, "ngram")


@pytest.mark.parametrize("limit", [0, 1, 6])
@pytest.mark.usefixtures("plain")
def test_a_forced_sequence_is_its_own_draft(speculating_server: servers.Server, tokenizer: PreTrainedTokenizerFast,
                                            limit: int) -> None:
    """Though no response had this message before."""
    width = speculating_server.width  # type: ignore[attr-defined]
    message = f"said {'never'[:limit]} before in {width} words. "
    budget = {"max_tokens": limit, "message": message, "answer_tokens": 0}
    ids = [*tokenizer.encode(OPEN), tokenizer.convert_tokens_to_ids("loop")]
    events = stream(speculating_server, {"input_ids": ids, "sampling_params": {
        "temperature": 0, "max_new_tokens": 80, "think_budget": budget}})
    assert message + "</think>\n\nanswer" in events[-1]["text"]
    forced = events[-1]["meta_info"]["think"]["forced_tokens"]
    assert forced > 16
    assert rounds_of_the_end(events, limit) <= ceil(forced / width)


@pytest.fixture(scope="module")
def speculating_demo(demo_model: Path) -> Iterator[servers.Server]:
    server = servers.launch("--dtype", "float32", *NGRAM, "5", "--max-running-requests", "16", "--max-total-tokens",
                            "4096", "--chunked-prefill-size", "64", "--constrained-json-disable-any-whitespace")
    yield server
    assert not server.stop()


@pytest.mark.served
def test_mixed_budgets(speculating_demo: servers.Server, demo_tokenizer: Any, demo_rescan: Rescan) -> None:
    """Against the same server without budgets."""
    close = demo_tokenizer.encode("</think>") + demo_tokenizer.encode("\n\n")
    texts, budgets = prompts(demo_tokenizer, 8), BUDGETS[:8]
    free = [result["output_ids"] for result in speculating_demo.generate_all([body(t) for t in texts])]
    limited = speculating_demo.generate_all([body(t, b) for t, b in zip(texts, budgets, strict=True)])
    check_all(limited, free, close, demo_rescan, budgets)


@pytest.mark.served
def test_two_samples_and_a_grammar(speculating_demo: servers.Server, demo_tokenizer: Any) -> None:
    """The grammar begins after the forced end, in a verification as in a plain step."""
    body_ = {"messages": [{"role": "user", "content": "Give me a number as JSON."}], "temperature": 0.7, "n": 2,
             "max_tokens": 60, "think_budget": 4, "return_meta_info": True, "response_format": {
                 "type": "json_schema", "json_schema": {"name": "n", "schema": {
                     "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                     "additionalProperties": False}}}}
    response = speculating_demo.post("/v1/chat/completions", body_)
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        assert choice["message"]["content"].replace(" ", "").replace("\n", "") in ('{"n":1}', '{"n":2}')
        assert choice["meta_info"]["think"]["tokens"] == 4


def test_other_verifications_are_refused(demo_model: Path) -> None:
    """DFLASH and DSPARK verify on their own; a default budget there must not start a server."""
    done = servers.run("launch.py", "--think-budget", "5", "--speculative-algorithm", "DFLASH",
                       "--speculative-draft-model-path", str(demo_model))
    assert done.returncode != 0
    assert "DFLASH" in done.stdout + done.stderr
