"""Tensor parallelism: the first rank drafts for all of them, and budgets are the same on each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import servers
import torch
from uag_models import build_random_model

from sglang_ext.demo.reasoner import reasoner
from sglang_ext.uag.ranks import Ranks

pytestmark = pytest.mark.served

TWO_RANKS = ("--demo", "reasoner", "--tp", "2", "--dtype", "float32", "--max-running-requests", "8")
ASKED = ["Add 17, 25, 38, 64, 9, 51, 83.", "What is 45 + 12 - 30 + 8?", "What is the largest of 23, 87, 4, 61?",
         "How many of 23, 87, 4, 61 are above 50?", 'Say "river".', "What colour is the sky?"]
BUDGETS = [-1, 0, 5, 12, -1, 3]


def bodies(tokenizer: Any) -> list[dict[str, Any]]:
    """Greedy ones, and some that ask for more: with budgets, logprobs, a grammar, a stop string, penalties."""
    texts = [tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False,
                                           add_generation_prompt=True) for text in ASKED]
    params = {"temperature": 0, "max_new_tokens": 60}
    plain = [{"text": text, "sampling_params": {**params, "think_budget": budget}}
             for text, budget in zip(texts, BUDGETS, strict=True)]
    more: list[dict[str, Any]] = [{"think_budget": 6, "regex": "[0-9]+"}, {"stop": ["+"]}, {"frequency_penalty": 0.3},
                                  {"temperature": 0.8, "top_k": 1}]
    return plain + [{"text": texts[0], "sampling_params": {**params, **extra}} for extra in more] + [
        {"text": texts[1], "sampling_params": params, "return_logprob": True}]


def ids(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["output_ids"] for result in results]


@pytest.fixture(scope="module")
def asked() -> list[dict[str, Any]]:
    from transformers import AutoTokenizer

    return bodies(AutoTokenizer.from_pretrained(reasoner()))


@pytest.fixture(scope="module")
def plain(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    server = servers.launch(*TWO_RANKS)
    try:
        return server.generate_all(asked)
    finally:
        assert not server.stop()


OVERLAPPED = {"SGLANG_EXT_UAG_OVERLAP": "1", "SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "7"}


class Drafted(NamedTuple):
    """A server, and whether its draft is its target."""

    server: servers.Server
    itself: bool


@pytest.fixture(scope="module", params=["itself", "three heads"])
def drafted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafted]:
    """Drafts by the target itself; and by a model that two ranks could not divide, of lengths that the clock tells,
    while decoding runs ahead of the host and requests are taken off their slots."""
    if request.param == "itself":
        draft, flags, variables = reasoner(), ("--uag-lengths", "fixed", "--uag-sources", "draft"), {}
    else:
        draft = build_random_model(tmp_path_factory.mktemp("draft"), hidden=48)
        flags, variables = (), OVERLAPPED
    server = servers.launch(*TWO_RANKS, "--speculative-algorithm", "UAG", "--speculative-draft-model-path", str(draft),
                            *flags, **variables)
    yield Drafted(server, request.param == "itself")
    assert not server.stop()


def test_budgets_hold(plain: list[dict[str, Any]]) -> None:
    for result, budget in zip(plain, BUDGETS, strict=False):
        think = result["meta_info"]["think"]
        assert think["outcome"] == "natural" or think["tokens"] == budget
        assert budget < 0 or think["tokens"] <= budget
    assert plain[2]["meta_info"]["think"]["outcome"] == "forced"


def test_texts_are_those_without_drafts(drafted: Drafted, plain: list[dict[str, Any]],
                                        asked: list[dict[str, Any]]) -> None:
    """In a batch and alone."""
    together = drafted.server.generate_all(asked)
    assert ids(together) == ids(plain)
    assert ids([drafted.server.generate(**body) for body in asked]) == ids(plain)
    assert [r["meta_info"].get("think") for r in together] == [r["meta_info"].get("think") for r in plain]


def test_drafts_are_counted(drafted: Drafted, asked: list[dict[str, Any]]) -> None:
    """Of a draft that is the target itself nearly all are accepted."""
    meta = drafted.server.generate(**asked[0])["meta_info"]
    assert meta["spec_num_correct_drafts"] == meta["uag"]["accepted"] <= meta["uag"]["proposed"]
    if drafted.itself:
        assert meta["uag"]["proposed"] > 10
        assert meta["uag"]["accepted"] > 0.9 * meta["uag"]["proposed"]


def one_of_two(rank: int, store: str) -> None:
    """What a rank sees: its samples and the chains it was given are printed."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks = Ranks(SimpleNamespace(world_size=2, rank_in_group=rank, ranks=[0, 1], cpu_group=dist.group.WORLD,
                                  broadcast=dist.broadcast))
    sampled = torch.tensor([5, 6, 7], dtype=torch.int32) + 100 * rank
    chains = ranks.broadcast_chains([[4, 9, 2], [8], [1, 1]] if ranks.first else None, 3, 4)
    print(json.dumps([chains, ranks.broadcast(sampled).tolist()]))


def test_all_ranks_take_the_first_ones_chains_and_samples(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda rank: servers.run("tests/test_uag_ranks.py", str(rank), str(tmp_path / "store"),
                                                      PYTHONPATH="tests"), range(2)))
    for process in done:
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout) == [[[4, 9, 2], [8], [1, 1]], [5, 6, 7]]


def test_one_rank_has_nothing_to_ask() -> None:
    ranks = Ranks(SimpleNamespace(world_size=1, rank_in_group=0))
    sampled = torch.tensor([3], dtype=torch.int32)
    assert ranks.first
    assert ranks.broadcast_chains([[3, 4]], 1, 2) == [[3, 4]]
    assert ranks.broadcast(sampled) is sampled
    assert isinstance(ranks.single_rank(), nullcontext)


if __name__ == "__main__":
    one_of_two(int(sys.argv[1]), sys.argv[2])
