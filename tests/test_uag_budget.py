"""Budgets under UAG: every script with every limit, against the same requests without speculation.

The scripted draft writes what the target is going to write, in other tokens, so that drafts run into every wall; the
random one is always wrong, and what is looked up in the text is right at times; the third pair is one tokenizer with
padded embeddings on one side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import servers
from asked_ends import check_ends
from scripted_requests import LIMITS, OPEN, STARTS, answers
from streams import rounds_of_the_end, stream
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from uag_models import build_random_model, build_spoken_draft, build_spoken_model, pad_vocabulary

pytestmark = pytest.mark.served

FLAGS = ("--reasoning-parser", "qwen3", "--dtype", "float32", "--max-running-requests", "16")
MESSAGE = "Enough of it: the answer is"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_spoken_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def tokenizer(target: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(target)


def ask(tokenizer: PreTrainedTokenizerFast, prompt: str, start: str, new: int, budget: Any = None) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": new}
    if budget is not None:
        params["think_budget"] = budget
    return {"input_ids": [*tokenizer.encode(prompt), tokenizer.convert_tokens_to_ids(start)], "sampling_params": params}


@pytest.fixture(scope="module")
def cases(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """Lengths end a response anywhere within a draft."""
    starts = [(limit, *start) for limit in LIMITS for start in STARTS]
    return [ask(tokenizer, prompt, start, 25 + 3 * i % 17, limit) for i, (limit, prompt, start) in enumerate(starts)]


@pytest.fixture(scope="module")
def plain(target: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    server = servers.launch("--model-path", str(target), *FLAGS)
    try:
        return answers(server, cases)
    finally:
        server.stop()


@dataclass
class Served:
    """A server with UAG; `width` is 1 + the tokens of a draft."""

    server: servers.Server
    draft: str
    width: int


@pytest.fixture(scope="module", params=[
    ("scripted", 2, "draft"), ("scripted", 16, "draft,text"), ("random", 5, "draft,text"), ("padded", 5, "draft"),
    ("none", 5, "text")], ids=str)
def served(request: pytest.FixtureRequest, target: Path, plain: list[dict[str, Any]],
           tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    draft, width, sources = request.param
    folder = tmp_path_factory.mktemp("draft")
    if draft == "padded":
        pad_vocabulary(target, folder, 544)
    elif draft != "none":
        {"scripted": build_spoken_draft, "random": build_random_model}[draft](folder)
    model = [] if draft == "none" else ["--speculative-draft-model-path", str(folder)]
    server = servers.launch("--model-path", str(target), *FLAGS, "--speculative-algorithm", "UAG", *model,
                            "--speculative-num-draft-tokens", str(width), "--uag-sources", sources, "--uag-lengths",
                            "fixed")
    try:
        yield Served(server, draft, width)
    finally:
        left = server.stop()
    assert not left


def test_every_script_and_limit(served: Served, cases: list[dict[str, Any]], plain: list[dict[str, Any]]) -> None:
    found = answers(served.server, cases)
    for case, got, wanted in zip(cases, found, plain, strict=True):
        assert got["output_ids"] == wanted["output_ids"], case
        think = got["meta_info"].get("think")
        assert think == wanted["meta_info"].get("think"), case
        assert think is None or think["budget"] < 0 or think["tokens"] <= think["budget"], case
    uag = [result["meta_info"]["uag"] for result in found]
    assert sum(u["proposed"] for u in uag) > 100
    steps = sum(result["meta_info"]["spec_verify_ct"] for result in found)
    tokens = sum(result["meta_info"]["completion_tokens"] for result in found)
    most = {"scripted": 0.8, "padded": 0.4, "random": 1.0, "none": 1.0}[served.draft]
    assert steps < most * tokens, (steps, tokens)


def test_drafts_that_foresee_the_end_of_sequence_in_a_block(served: Served,
                                                            tokenizer: PreTrainedTokenizerFast) -> None:
    """The thought ends with EOS, in the draft too; a limited one has to answer."""
    result = served.server.generate(**ask(tokenizer, OPEN, "P5", 30, 9))
    assert tokenizer.decode(result["output_ids"]) == "halfthought</think>\n\nanswer<|end|>"
    assert result["meta_info"]["think"] == {"budget": 9, "tokens": 2, "forced_tokens": 3, "outcome": "eos"}


def test_a_forced_sequence_is_its_own_draft(served: Served, tokenizer: PreTrainedTokenizerFast) -> None:
    """Closing costs as many steps as the sequence is wide, the first token coming with the prompt, and no forward of
    the draft beyond the reading of the prompt."""
    budget = {"max_tokens": 0, "message": MESSAGE}
    one = served.server.generate(**ask(tokenizer, OPEN, "loop", 1, budget))["meta_info"]["uag"]
    assert (one["draft_forwards"], one["translated_tokens"]) == (0, 0), "nothing to draft for"
    n = len(tokenizer.encode(MESSAGE)) + 3
    assert n > 16
    result = served.server.generate(**ask(tokenizer, OPEN, "loop", n, budget))
    meta = result["meta_info"]
    assert tokenizer.decode(result["output_ids"]) == MESSAGE + "</think>"
    assert meta["think"] == {"budget": 0, "tokens": 0, "forced_tokens": n, "outcome": "forced"}
    assert meta["spec_verify_ct"] == ceil((n - 1) / served.width)
    assert meta["uag"]["draft_forwards"] <= 1
    assert (meta["uag"]["proposed"], meta["uag"]["rejections"]["verification"]) == (0, 0)
    assert meta["uag"]["forced"] == meta["uag"]["accepted"] == n - 1 - (n - 1) // served.width


def test_ends_that_come_before_the_limit(served: Served, tokenizer: PreTrainedTokenizerFast) -> None:
    check_ends(served.server, tokenizer, "uag", loop=served.width != 2)


@pytest.mark.parametrize("limit", [0, 1, 6])
def test_rounds_from_the_wall_to_the_answer(served: Served, tokenizer: PreTrainedTokenizerFast, limit: int) -> None:
    budget = {"max_tokens": limit, "message": MESSAGE, "answer_tokens": 0}
    events = stream(served.server, ask(tokenizer, OPEN, "loop", 60, budget))
    forced = events[-1]["meta_info"]["think"]["forced_tokens"]
    assert forced > 16
    assert rounds_of_the_end(events, limit) <= ceil(forced / served.width)


def test_a_wall_within_a_draft(served: Served, tokenizer: PreTrainedTokenizerFast) -> None:
    """A draft is no longer than the budget and goes on with what is forced: where all of it is right, the wall costs
    one step more than tokens need."""
    for limit in range(1, 12):
        result = served.server.generate(**ask(tokenizer, OPEN, "loop", 40, limit))
        assert result["meta_info"]["think"] == {"budget": limit, "tokens": limit, "forced_tokens": 3,
                                                "outcome": "forced"}
        text = tokenizer.decode(result["output_ids"])
        assert text.endswith("</think>\n\nanswer<|end|>")
        if served.draft == "padded":
            assert result["meta_info"]["spec_verify_ct"] <= ceil(limit / served.width) + ceil(6 / served.width) + 1
