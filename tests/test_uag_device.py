"""The device bookkeeping of a UAG verification: against obvious references, and on fake CUDA tensors.

Fake tensors raise where values are read, which on a GPU waits for the device, and where devices are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import device_watch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from sglang_ext.uag import worker
from sglang_ext.uag.draft import PAD, Draft, accept_index, full_mask
from sglang_ext.uag.verify import Verifier, _expanded, sample

VOCAB = 50


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Draft of ids, and a width that fits them."""
    width = draw(st.integers(1, 7))
    chain = st.lists(st.integers(0, 3), min_size=1, max_size=width)  # few ids, so that samples agree with drafts
    return draw(st.lists(chain, min_size=1, max_size=6)), width


@given(batches())
def test_layout(batch: tuple[list[list[int]], int]) -> None:
    chains, width = batch
    laid = Draft.of(chains, width, "cpu")
    padded = [[*chain, *[PAD] * (width - len(chain))] for chain in chains]
    real = [(i, i * width + j) for i, chain in enumerate(chains) for j in range(len(chain))]
    assert laid.width == width
    assert laid.tokens.tolist() == padded
    assert laid.lengths.tolist() == [len(chain) for chain in chains]
    assert list(zip(laid.owners.tolist(), laid.rows.tolist(), strict=True)) == real
    assert laid.input_ids.tolist() == [max(token, 0) for row in padded for token in row]


@given(batches(), st.sampled_from([torch.int32, torch.int64]), st.data())
def test_positions(batch: tuple[list[list[int]], int], dtype: torch.dtype, data: st.DataObject) -> None:
    """They are the forward's own: sglang's Gemma 3 for images adds one to them in place."""
    chains, width = batch
    before = data.draw(st.lists(st.integers(0, 99), min_size=len(chains), max_size=len(chains)))
    lengths = torch.tensor(before, dtype=dtype)
    found = Draft.of(chains, width, "cpu").positions(lengths)
    assert found.dtype == torch.int64
    assert found.tolist() == [length + j for length in before for j in range(width)]
    found += 1
    assert lengths.tolist() == before


@given(batches(), st.data())
def test_slots(batch: tuple[list[list[int]], int], data: st.DataObject) -> None:
    chains, width = batch
    before = data.draw(st.lists(st.integers(0, 92), min_size=len(chains), max_size=len(chains)))
    rows = data.draw(st.permutations(range(8)))[: len(chains)]
    table, laid = torch.randint(1, 1000, (8, 99), dtype=torch.int32), Draft.of(chains, width, "cpu")
    found = laid.slots(table, torch.tensor(rows), laid.positions(torch.tensor(before)))
    assert found.dtype == torch.int64
    assert found.tolist() == [slot for row, length in zip(rows, before, strict=True)
                              for slot in table[row, length : length + width].tolist()]


@given(batches())
def test_links(batch: tuple[list[list[int]], int]) -> None:
    """A walk along the links visits the chain and nothing else."""
    chains, width = batch
    index, following, siblings = Draft.of(chains, width, "cpu").links()
    assert index.flatten().tolist() == list(range(len(chains) * width))
    assert siblings.tolist() == [[-1] * width] * len(chains)
    for chain, links in zip(chains, following.tolist(), strict=True):
        at, seen = 0, 1
        while links[at] != -1:
            assert links[at] == at + 1
            at, seen = links[at], seen + 1
        assert seen == len(chain)
        assert links[at:] == [-1] * (width - at)


def accepted(chain: Sequence[int], sampled: Sequence[int]) -> int:
    """Samples that stand: one, and one more for each draft in a row that the sample before it agrees with."""
    stand = 1
    while stand < len(chain) and chain[stand] == sampled[stand - 1]:
        stand += 1
    return stand


@given(batches(), st.data())
def test_acceptance(batch: tuple[list[list[int]], int], data: st.DataObject) -> None:
    """Padding is never accepted, even where a sample is PAD as well."""
    chains, width = batch
    ids = st.lists(st.integers(PAD, 3), min_size=width, max_size=width)
    sampled = data.draw(st.lists(ids, min_size=len(chains), max_size=len(chains)))
    lens = Draft.of(chains, width, "cpu").accept(torch.tensor(sampled, dtype=torch.int32).flatten())
    assert lens.dtype == torch.int32
    assert lens.tolist() == [accepted(chain, row) for chain, row in zip(chains, sampled, strict=True)]
    places = accept_index(lens, width)
    assert places.dtype == torch.int32
    assert places.tolist() == [[i * width + j if j < n else -1 for j in range(width)]
                               for i, n in enumerate(lens.tolist())]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 6))
def test_mask(lengths: list[int], width: int) -> None:
    """A place sees everything before the chain, and the chain up to itself."""
    expected = [column <= length + j for length in lengths for j in range(width) for column in range(length + width)]
    assert full_mask(lengths, width, "cpu").tolist() == expected


def sampling_info(n: int, device: str, **more: Any) -> SamplingBatchInfo:
    return SamplingBatchInfo(
        temperatures=torch.rand(n, 1, device=device), top_ps=torch.rand(n, device=device),
        top_ks=torch.arange(n, dtype=torch.int32, device=device), min_ps=torch.rand(n, device=device),
        is_all_greedy=False, is_any_greedy=False, need_top_p_sampling=True, need_top_k_sampling=True,
        need_min_p_sampling=True, vocab_size=VOCAB, device=device, **more)


class ArgmaxSampler:
    """Stands for sglang's sampler; notes what it was given."""

    def __call__(self, logits_output: Any, info: Any, return_logprob: bool, top_logprobs_nums: list[int],
                 token_ids_logprobs: list[Any], positions: torch.Tensor) -> torch.Tensor:
        self.logits, self.info, self.positions = logits_output.next_token_logits, info, positions
        return self.logits.argmax(-1).int()


@settings(deadline=None)  # the first call imports the engine's sampler
@given(batches())
def test_each_place_is_sampled_as_its_request(batch: tuple[list[list[int]], int]) -> None:
    """Only places of chains are drawn, with the parameters of their request, and each lands where it belongs."""
    chains, width = batch
    laid, n = Draft.of(chains, width, "cpu"), len(chains)
    seeds = torch.arange(100, 100 + n)
    info, sampler = sampling_info(n, "cpu", sampling_seed=seeds), ArgmaxSampler()
    logits = torch.randn(n * width, VOCAB)
    wanted = logits.argmax(-1).view(n, width)
    drawn = sample(sampler, info, SimpleNamespace(next_token_logits=logits.clone()), laid,
                   laid.positions(torch.zeros(n)), None, False)
    assert drawn.dtype == torch.int32
    assert drawn.view(n, width).tolist() == [
        [int(wanted[i, j]) if j < len(chain) else PAD for j in range(width)] for i, chain in enumerate(chains)]
    owners = [i for i, chain in enumerate(chains) for _ in chain]
    assert sampler.positions.tolist() == [j for chain in chains for j in range(len(chain))]
    assert torch.equal(sampler.logits, logits[laid.rows])
    for name in ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed"):
        assert torch.equal(getattr(sampler.info, name), getattr(info, name)[owners]), name


def test_what_changes_logits_is_applied_once_and_to_its_own_request() -> None:
    """Biases at every place; penalties at the first, whose output they know. The batch's own information stays."""
    laid = Draft.of([[1, 2], [1]], 2, "cpu")
    bias, penalty = torch.zeros(2, VOCAB), torch.zeros(2, VOCAB)
    bias[0, 7], bias[1, 8] = 5.0, 6.0
    penalty[0, 7] = 2.0
    info, sampler = sampling_info(2, "cpu", logit_bias=bias, acc_additive_penalties=penalty), ArgmaxSampler()
    drawn = sample(sampler, info, SimpleNamespace(next_token_logits=torch.zeros(4, VOCAB)), laid,
                   laid.positions(torch.zeros(2)), None, False)
    assert drawn.tolist() == [7, 7, 8, PAD]
    assert [row[7:9].tolist() for row in sampler.logits] == [[7, 0], [5, 0], [0, 6]]
    assert sampler.info.logit_bias is sampler.info.acc_additive_penalties is None
    assert info.logit_bias is bias
    assert info.acc_additive_penalties is penalty


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fake tensors on a CUDA device; a host tensor may go over, as a kernel's operand it is refused."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    with FakeTensorMode(allow_non_fake_inputs=False):
        yield


def on_cuda(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


STEPS: dict[str, Callable[[Draft], Any]] = {
    "input_ids": lambda chains: chains.input_ids,
    "positions": lambda chains: chains.positions(torch.empty(3, dtype=torch.int32, device="cuda")),
    "slots": lambda chains: chains.slots(torch.empty(5, 99, dtype=torch.int32, device="cuda"),
                                         torch.empty(3, dtype=torch.int64, device="cuda"),
                                         torch.empty(12, dtype=torch.int64, device="cuda")),
    "links": lambda chains: chains.links(),
    "accept": lambda chains: chains.accept(torch.empty(12, dtype=torch.int32, device="cuda")),
    "accept_index": lambda _: accept_index(torch.empty(3, dtype=torch.int32, device="cuda"), 4),
    "full_mask": lambda _: full_mask([5, 0, 9], 4, "cuda"),
    "expanded": lambda chains: tuple(vars(_expanded(sampling_info(3, "cuda"), chains)).values()),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_stays_on_the_device(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch):
        found = STEPS[step](Draft.of([[1, 2], [3], [4, 5, 6, 7]], 4, "cuda"))
    tensors = [x for x in (found if isinstance(found, tuple) else [found]) if isinstance(x, torch.Tensor)]
    assert tensors
    assert all(map(on_cuda, tensors))


def test_a_round_without_drafts_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ArgmaxSampler()
    with fake_cuda(monkeypatch):
        laid = Draft.of([[1], [3], [4]], 1, "cuda")
        where = laid.positions(torch.empty(3, dtype=torch.int64, device="cuda"))
        logits = torch.empty(3, VOCAB, dtype=torch.bfloat16, device="cuda")
        drawn = sample(sampler, sampling_info(3, "cuda"), SimpleNamespace(next_token_logits=logits), laid, where, None,
                       False)
        made = (drawn, laid.accept(drawn), *laid.links(), laid.tokens, laid.lengths, laid.rows, laid.owners)
    assert sampler.logits is logits
    assert all(map(on_cuda, made))


@pytest.mark.parametrize("keep_logits", [False, True])
def test_sampling_stays_on_the_device(keep_logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[torch.Tensor] = []
    sampler = ArgmaxSampler()
    with fake_cuda(monkeypatch):
        laid = Draft.of([[1, 2], [3], [4, 5, 6, 7]], 4, "cuda")
        where = laid.positions(torch.empty(3, dtype=torch.int64, device="cuda"))
        info = sampling_info(3, "cuda", logit_bias=torch.zeros(3, VOCAB, device="cuda"),
                             sampling_seed=torch.zeros(3, dtype=torch.int64, device="cuda"))
        logits = torch.empty(12, VOCAB, dtype=torch.bfloat16, device="cuda")
        drawn = sample(sampler, info, SimpleNamespace(next_token_logits=logits), laid, where, masked.append,
                       keep_logits)
        lens = laid.accept(drawn)
    assert masked[0] is logits
    assert drawn.shape == (12,)
    assert lens.shape == (3,)
    assert sampler.logits.shape == (7, VOCAB)
    assert all(map(on_cuda, (drawn, lens, sampler.logits, sampler.positions)))


@pytest.mark.parametrize("step", STEPS)
def test_a_step_makes_nothing_wait(step: str) -> None:
    """A copy from pageable memory waits too, such as that of a number which is assigned through an index."""
    with device_watch.fake_cuda():
        STEPS[step](Draft.of([[1, 2], [3], [4, 5, 6, 7]], 4, "cuda"))


def test_fake_tensors_notice_a_wait_and_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above rely on."""
    with fake_cuda(monkeypatch):
        laid = Draft.of([[1, 2]], 2, "cuda")
        with pytest.raises(DataDependentOutputException):
            laid.lengths.tolist()
        with pytest.raises(Exception, match="same device"):
            laid.accept(torch.empty(2, dtype=torch.int32))


@pytest.mark.parametrize(("declared", "made"), [(None, True), (True, True), (False, False)])
def test_a_mask_is_made_where_the_attention_reads_one(declared: bool | None, made: bool,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """`declared`: what the target's backend says of masks, as far as it does. The draft is a chain either way."""
    backend = SimpleNamespace(verify_mask=None if declared is None else SimpleNamespace(is_read=declared))
    verifier = Verifier(SimpleNamespace(device="cuda", attn_backend=backend), lambda sampled: sampled)
    with fake_cuda(monkeypatch):
        batch = SimpleNamespace(seq_lens=torch.empty(2, dtype=torch.int64, device="cuda"),
                                seq_lens_cpu=SimpleNamespace(tolist=lambda: [5, 7]))
        found = verifier.input(batch, Draft.of([[1, 2], [3]], 2, "cuda"))
    assert (found.custom_mask is not None) is made
    assert found.tree_topk == 1


@pytest.mark.parametrize(("device", "backends", "graphs", "fixed"), [
    ("cpu", ("torch_batched", "torch_batched"), False, False),
    ("cuda", ("flashinfer", "triton"), False, False),
    ("cuda", ("flashinfer", "triton"), True, True),
    ("cuda", ("fa3", "triton"), False, True),
])
def test_when_every_verification_has_the_same_width(device: str, backends: tuple[str, str], graphs: bool, fixed: bool,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: with graphs, which were captured for one, or an attention that was set up for one."""
    monkeypatch.setattr(worker, "attention_backends", lambda: backends)
    monkeypatch.setattr(worker, "check_cuda_graph_backend",
                        lambda phase, backend: (phase, backend) == (Phase.DECODE, Backend.DISABLED) and not graphs)
    assert worker.needs_fixed_width(device) is fixed
