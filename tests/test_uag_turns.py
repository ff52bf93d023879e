"""A batch's requests as a round sees them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.uag.draft_request import DraftRequest, ids_between, may_draft, tokens_in_flight

WIDTH = 4


def request(prompt: Sequence[int], output: Sequence[int], forced: Sequence[int] = (), **params: Any) -> Any:
    """A request; with `forced`, one whose budget forces these ids next."""
    plain = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0,
             "max_new_tokens": 100}
    processor = params.pop("custom_logit_processor", None)
    lookahead = SimpleNamespace(left=0, complete=lambda draft, most: list(forced[:most]))
    return SimpleNamespace(
        origin_input_ids=array("q", prompt), origin_input_ids_unpadded=list(prompt), output_ids=array("q", output),
        sampling_params=SimpleNamespace(**plain | params), custom_logit_processor=processor, input_embeds=None,
        multimodal_inputs=None, finished=lambda: False,
        think=SimpleNamespace(lookahead=lambda output: lookahead) if forced else None)


def relayed(rounds: Sequence[Sequence[int]], lens: Sequence[int], reqs: Sequence[Any]) -> Any:
    """A batch as the engine hands it over: tokens with keys and values, and each request's last round."""
    tokens = torch.tensor([[*ids, *[0] * (WIDTH - len(ids))] for ids in rounds], dtype=torch.int32)
    relay = SimpleNamespace(accept_tokens=tokens.flatten(), accept_lens=torch.tensor(list(map(len, rounds))).int())
    return SimpleNamespace(reqs=reqs, seq_lens_cpu=torch.tensor(lens), spec_info=relay)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(1, WIDTH), st.booleans()), min_size=1))
def test_what_the_engine_has_processed_is_not_taken_twice(cases: list[tuple[int, int, int, bool]]) -> None:
    """A round launched before the last one was processed if a prefill stood between."""
    reqs, rounds, lens, wanted = [], [], [], []
    for prompt, before, size, processed in cases:
        last = list(range(100, 100 + size))
        output = [*range(before), *(last if processed else ())]
        reqs.append(request(range(prompt), output))
        rounds.append(last)
        lens.append(prompt + before + size - 1)
        wanted.append([] if processed else last)
    assert [list(late) for late in tokens_in_flight(relayed(rounds, lens, reqs))] == wanted


def test_the_token_of_a_prefill_is_taken() -> None:
    assert tokens_in_flight(relayed([[7]], [3], [request([1, 2, 3], [])])) == [[7]]


@pytest.mark.parametrize(("params", "alone"), [
    ({}, False), ({"temperature": 0.7}, False), ({"frequency_penalty": 0.5}, True), ({"presence_penalty": -0.5}, True),
    ({"repetition_penalty": 1.2}, True), ({"min_new_tokens": 5}, True), ({"custom_logit_processor": "x"}, True)])
def test_who_samples_token_by_token_is_not_forced_in_chains(params: dict[str, Any], alone: bool) -> None:
    """The token after a chain would be sampled without what depends on the tokens in it."""
    req = request([1], [2, 3], forced=[8, 9, 10, 11, 12], **params)
    one = DraftRequest.of(req, [], WIDTH)
    assert may_draft(req) is not alone
    assert one.complete(()) == ([] if alone else [8, 9, 10])
    assert one.max_tokens == (0 if alone else WIDTH - 1)


def test_no_draft_beyond_the_most_tokens() -> None:
    asked = [DraftRequest.of(request([1], range(n), max_new_tokens=6), [], WIDTH) for n in range(1, 7)]
    assert [one.max_tokens for one in asked] == [3, 3, 2, 1, 0, 0]
    assert DraftRequest.of(request([1], [2], max_new_tokens=6), [3, 4, 5], WIDTH).max_tokens == 1


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9)), st.data())
def test_ids_between(prompt: list[int], output: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(prompt) + len(output)))
    end = data.draw(st.integers(start, len(prompt) + len(output)))
    assert list(ids_between(request(prompt, output), output, start, end)) == [*prompt, *output][start:end]
