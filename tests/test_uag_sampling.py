"""UAG changes no distribution: what comes of drafts is compared with plain sampling by chi-squared tests.

Run as a program, this file draws with sglang's own sampler in a process of its own, since sglang's runtime is set up
once a process: `test_uag_sampling.py MODEL` prints counts as JSON. The model is there to set up the runtime; what is
sampled is a table of 64 tokens, each with the logits of its successors.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import servers
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chi2_contingency, chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer
from uag_models import build_spoken_draft, build_spoken_model

VOCAB, DRAWS, ROOT = 64, 10_000, 0
ENOUGH = 1e-3
"""Smallest p-value of two samples of one distribution; draws have a fixed seed."""
NEUTRAL = {"temperature": 1.0, "top_k": VOCAB, "top_p": 1.0, "min_p": 0.0}
SETTINGS: dict[str, list[dict[str, float]]] = {
    "temperature": [{"temperature": 0.7}],
    "top-k": [{"top_k": 5}],
    "top-p": [{"top_p": 0.8}],
    "min-p": [{"min_p": 0.1}],
    "mixed": [{"temperature": 0.5, "top_k": 9}, {"top_p": 0.6, "min_p": 0.05}, {"temperature": 1.5, "top_k": 1}, {}],
}
"""Parameters of a batch's requests, in turn."""
DRAFTS = ("likeliest", "least likely", "random")


def successors() -> torch.Tensor:
    """[64, 64] logits of the next token, by the last one."""
    return 2.0 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(7))


class Draws:
    """Two tokens for each of many requests, with drafts and without."""

    def __init__(self, sampler: Any, setting: Sequence[dict[str, float]]) -> None:
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

        self.sampler, self.table = sampler, successors()
        chosen = [{**NEUTRAL, **setting[i % len(setting)]} for i in range(DRAWS)]

        def column(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([one[name] for one in chosen], dtype=dtype)

        self.info = SamplingBatchInfo(
            temperatures=column("temperature", torch.float32)[:, None], top_ps=column("top_p", torch.float32),
            top_ks=column("top_k", torch.int32), min_ps=column("min_p", torch.float32), is_all_greedy=False,
            is_any_greedy=False, need_top_p_sampling=True, need_top_k_sampling=True,
            need_min_p_sampling=any(one["min_p"] for one in chosen), vocab_size=VOCAB, device="cpu")

    def plain(self, last: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """[n] the next token of each request, as a decoding step samples it."""
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        where = torch.zeros(DRAWS, dtype=torch.int64) if positions is None else positions
        return self.sampler(LogitsProcessorOutput(next_token_logits=self.table[last]), self.info, False, [], [],
                            where).long()

    def verified(self, chains: Any, positions: torch.Tensor | None = None) -> torch.Tensor:
        """[n, width] what a verification samples."""
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        from sglang_ext.uag.verify import sample

        output = LogitsProcessorOutput(next_token_logits=self.table[chains.input_ids])
        where = torch.zeros(chains.tokens.numel(), dtype=torch.int64) if positions is None else positions
        return sample(self.sampler, self.info, output, chains, where, None, False).view(DRAWS, -1).long()

    def two_plain(self) -> torch.Tensor:
        first = self.plain(torch.full((DRAWS,), ROOT))
        return torch.stack([first, self.plain(first)], 1)

    def two_drafted(self, draft: str) -> torch.Tensor:
        """Where the first token is not the draft's, the second one is the next round's."""
        from sglang_ext.uag.draft import Draft

        chains = Draft.of(self.chains(draft), 3, "cpu")
        sampled = self.verified(chains)
        accepted = chains.accept(sampled.flatten())
        next_round = self.verified(Draft.of([[first] for first in sampled[:, 0].tolist()], 1, "cpu"))[:, 0]
        return torch.stack([sampled[:, 0], torch.where(accepted > 1, sampled[:, 1], next_round)], 1)

    def chains(self, draft: str) -> list[list[int]]:
        if draft == "random":
            return [[ROOT, *pair] for pair in torch.randint(VOCAB, (DRAWS, 2)).tolist()]
        table = self.table if draft == "likeliest" else -self.table
        one = int(table[ROOT].argmax())
        return [[ROOT, one, int(table[one].argmax())]] * DRAWS

    def seeded_draws_agree(self) -> bool:
        """Whether a seed draws the same tokens at the same positions in a verification as one at a time."""
        from dataclasses import replace

        from sglang_ext.uag.draft import Draft

        self.info = replace(self.info, sampling_seed=torch.arange(DRAWS))
        chains = Draft.of(self.chains("random"), 3, "cpu")
        before = torch.arange(DRAWS) % 50
        together = self.verified(chains, chains.positions(before))
        alone = [self.plain(chains.tokens[:, j], before + j) for j in range(3)]
        return bool((together == torch.stack(alone, 1)).all())


def counted(pairs: torch.Tensor, groups: int) -> dict[str, int]:
    """How often each pair of tokens came, by the parameters it was drawn with."""
    return dict(Counter(f"{i % groups} {a} {b}" for i, (a, b) in enumerate(pairs.tolist())))


def main(model: str) -> None:
    from cpu_runner import CpuRunner

    sampler = CpuRunner(model, "float32").runner.sampler
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        draws = Draws(sampler, setting)
        torch.manual_seed(1)
        plain = [counted(draws.two_plain(), len(setting)) for _ in range(2)]
        found[name] = {"plain": plain[0], "plain again": plain[1]}
        found[name] |= {draft: counted(draws.two_drafted(draft), len(setting)) for draft in DRAFTS}
    found["seeded"] = Draws(sampler, SETTINGS["temperature"]).seeded_draws_agree()
    print(json.dumps(found))


def agreement(one: dict[str, int], other: dict[str, int]) -> float:
    """p-value of two samples being of one distribution; what is seldom counts as one kind."""
    often = [kind for kind in one.keys() | other.keys() if one.get(kind, 0) + other.get(kind, 0) >= 20]
    table = [[counts.get(kind, 0) for kind in often] for counts in (one, other)]
    rest = [sum(counts.values()) - sum(row) for counts, row in zip((one, other), table, strict=True)]
    columns = list(zip(*table, strict=True)) + ([tuple(rest)] if sum(rest) else [])
    return float(chi2_contingency(columns).pvalue) if len(columns) > 1 else 1.0


@pytest.fixture(scope="module")
def drawn(scripted_model: Path) -> dict[str, Any]:
    done = servers.run("tests/test_uag_sampling.py", str(scripted_model), timeout=500, PYTHONPATH="tests",
                       SGLANG_USE_CPU_ENGINE="1", TORCHDYNAMO_DISABLE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_drafts_change_no_distribution(drawn: dict[str, Any], setting: str, draft: str) -> None:
    found = drawn[setting]
    assert sum(found[draft].values()) == DRAWS
    assert agreement(found["plain"], found["plain again"]) > ENOUGH
    assert agreement(found["plain"], found[draft]) > ENOUGH


def test_nothing_comes_that_was_cut_off(drawn: dict[str, Any]) -> None:
    """The least likely token is a draft that top-k, top-p and min-p never let through."""
    for setting in ("top-k", "top-p", "min-p"):
        possible = {kind.split()[1] for kind in drawn[setting]["plain"]} | {
            kind.split()[1] for kind in drawn[setting]["plain again"]}
        assert {kind.split()[1] for kind in drawn[setting]["least likely"]} <= possible


def test_seeds_draw_the_same_tokens(drawn: dict[str, Any]) -> None:
    assert drawn["seeded"] is True


def firsts(counts: dict[str, int]) -> dict[str, int]:
    """Counts of the first tokens alone."""
    total: Counter[str] = Counter()
    for kind, count in counts.items():
        total[kind.split()[1]] += count
    return dict(total)


def test_the_test_finds_acceptance_by_the_ratio_of_probabilities(drawn: dict[str, Any]) -> None:
    """Scoring the likeliest token of a draft model as if it had been sampled from it, p/q and the residual of p - q,
    is biased, however near the draft is to the target."""
    generator = torch.Generator().manual_seed(2)
    target = torch.softmax(successors()[ROOT] / 0.7, -1)
    noise = 0.3 * torch.randn(VOCAB, generator=generator)
    draft = torch.softmax(successors()[ROOT] / 0.7 + noise, -1)
    guess = int(draft.argmax())
    kept = torch.rand(DRAWS, generator=generator) < target[guess] / draft[guess]
    residual = torch.multinomial((target - draft).clamp(min=0), DRAWS, replacement=True, generator=generator)
    biased = dict(Counter(map(str, torch.where(kept, guess, residual).tolist())))
    plain = firsts(drawn["temperature"]["plain"])
    assert agreement(plain, biased) < 1e-20
    assert agreement(plain, firsts(drawn["temperature"]["likeliest"])) > ENOUGH


def make_noisy(folder: Path) -> Path:
    """A scripted target that follows its script about every second time."""
    build_spoken_model(folder)
    weights = load_file(folder / "model.safetensors")
    head = weights["lm_head.weight"]
    weights["lm_head.weight"] = 0.2 * head + 0.05 * torch.randn(head.shape, generator=torch.Generator().manual_seed(3))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


SAMPLES, AT_ONCE, TOP_K, LENGTH = 4000, 8, 6, 3


def exact(model: Path, start: int) -> dict[str, float]:
    """Probability of each response of three tokens: a token's successor depends on nothing else."""
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        top = target(input_ids=torch.arange(target.config.vocab_size)[:, None]).logits[:, -1].topk(TOP_K)
    likely, successors_ = torch.softmax(top.values, -1).tolist(), top.indices.tolist()
    paths = {(start,): 1.0}
    for _ in range(LENGTH):
        paths = {(*path, token): p * q for path, p in paths.items()
                 for token, q in zip(successors_[path[-1]], likely[path[-1]], strict=True)}
    return {" ".join(map(str, path[1:])): p for path, p in paths.items()}


@pytest.mark.served
def test_samples_of_a_server(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
    target, draft = make_noisy(tmp_path / "target"), build_spoken_draft(tmp_path / "draft")
    start = AutoTokenizer.from_pretrained(target).convert_tokens_to_ids("loop")
    server = servers.launch("--model-path", str(target), "--dtype", "float32", "--max-running-requests", "64",
                            "--random-seed", "11", "--speculative-algorithm", "UAG", "--speculative-draft-model-path",
                            str(draft), "--speculative-num-draft-tokens", "4", "--uag-lengths", "fixed")
    try:
        params = {"temperature": 1.0, "top_k": TOP_K, "max_new_tokens": LENGTH, "ignore_eos": True,
                  "n": SAMPLES // AT_ONCE}
        results = [r for group in server.generate_all([{"input_ids": [start], "sampling_params": params}] * AT_ONCE)
                   for r in group]
    finally:
        assert not server.stop()
    drawn = Counter(" ".join(map(str, r["output_ids"])) for r in results)
    proposed, accepted = (sum(r["meta_info"]["uag"][key] for r in results) for key in ("proposed", "accepted"))
    assert sum(drawn.values()) == SAMPLES
    assert proposed > accepted > 0.1 * SAMPLES
    expected = exact(target, start)
    assert drawn.keys() <= expected.keys()
    often = [path for path, p in expected.items() if p * SAMPLES >= 5]
    assert len(often) > 50
    counts = [drawn[path] for path in often]
    wanted = [expected[path] * SAMPLES for path in often]
    rest = [SAMPLES - sum(counts)], [SAMPLES - sum(wanted)]
    assert chisquare(counts + rest[0], wanted + rest[1]).pvalue > ENOUGH


if __name__ == "__main__":
    main(sys.argv[1])
