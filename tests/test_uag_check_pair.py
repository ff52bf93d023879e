"""The pair tester, refusals, and rounds played without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from uag_tokenizers import MISTRAL, byte_fallback, byte_level, tokenizer, translator, vocabulary

from sglang_ext.uag import check_pair
from sglang_ext.uag.check_pair import SAMPLE, main, report
from sglang_ext.uag.offline_acceptance import Played, Tally, continue_greedily, play
from sglang_ext.uag.text.draft_context import draft_context
from sglang_ext.uag.text.translator import SpecialMap, Translator, refusal
from sglang_ext.uag.text.vocabulary import Vocabulary
from sglang_ext.uag.train.prompts import KINDS


def save(folder: Path, tokenizer: Any, weights: bool = True) -> str:
    """A tiny model with random weights, and this tokenizer."""
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id)
    config.save_pretrained(folder)
    if weights:
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return (save(tmp_path_factory.mktemp("target"), byte_level()),
            save(tmp_path_factory.mktemp("draft"), byte_fallback("first")))


def test_report(models: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*models, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["refusal"] is None
    assert found["same_tokenizer"] is False
    assert found["target"]["tokenizer"] == "byte-level BPE"
    assert found["target"]["vocabulary"] == len(vocabulary("byte-level").pieces)
    assert found["draft"]["start_of_text"] == "<s>"
    assert found["special_tokens"]["<|end|>"] == "</s>"
    assert found["draft_ends"] == {"</s>": "<|end|>"}
    assert 0 < found["shared_pieces"]["of_target"] < 1


def test_lines(models: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(models)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the pair works"
    assert any(line.startswith("steps ") for line in lines)
    assert "       not read by the draft: <|start|>" in lines


def test_steps_and_bytes_are_those_of_the_text() -> None:
    ours, theirs = vocabulary("byte-level"), vocabulary("mistral")
    found = report(ours, theirs, SAMPLE)
    ids, draft_ids = ours.encode(SAMPLE.encode(), start=True), theirs.encode(SAMPLE.encode(), start=True)
    assert found["draft_steps_per_target_token"] == round((len(draft_ids) + 1) / len(ids), 3)
    assert found["draft"]["bytes_per_token"] == round((len(SAMPLE.encode()) + 1) / len(draft_ids), 2)


def test_acceptance_on_a_text(models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """A model drafts perfectly for itself; two random ones hardly do."""
    monkeypatch.setattr(check_pair, "REPLY", 10)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 5)
    target, draft = models
    assert main([target, target, "--text", str(text), "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["same_tokenizer"] is True
    assert same["acceptance"]["4"]["text"]["acceptance"] > 0.98
    assert main([target, draft, "--text", str(text)]) == 0
    assert "text, drafts of 8: acceptance" in capsys.readouterr().out


def test_acceptance_on_held_out_prompts(models: tuple[str, str], capsys: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pair, "HELD_OUT_REPLY", 10)
    assert main([models[0], models[0], "--held-out", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["acceptance"]
    assert {width: list(kinds) for width, kinds in found.items()} == {"4": list(KINDS), "8": list(KINDS)}
    assert all(tally["acceptance"] > 0.98 for kinds in found.values() for tally in kinds.values())
    for wrong in (["--held-out", "0"], ["--held-out", "1", "--text", "x"]):
        with pytest.raises(SystemExit):
            main([*models, *wrong])
        assert "--held-out" in capsys.readouterr().err


def test_no_weights(models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox")
    bare = save(tmp_path / "bare", byte_level(), weights=False)
    assert main([models[0], bare, "--text", str(text)]) == 0
    assert "no acceptance: " in capsys.readouterr().out


def test_mistrals_files_and_a_map(tmp_path: Path, models: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"[INST]": "<|start|>"}))
    assert main([str(MISTRAL / "tekken_240911.json"), models[0], "--map", str(path)]) == 0
    assert "[INST] -> <|start|>" in capsys.readouterr().out
    path.write_text("[]")
    with pytest.raises(SystemExit):
        main([*models, "--map", str(path)])
    assert "accepted is a JSON object" in capsys.readouterr().err
    path.write_text(json.dumps({"[INST]": "<nothing>"}))
    assert main([str(MISTRAL / "tekken_240911.json"), models[0], "--map", str(path)]) == 1
    assert "refused: special-token map: '[INST]' -> '<nothing>', which the draft does not" in capsys.readouterr().out


def test_no_such_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(tmp_path)])
    assert "error: " in capsys.readouterr().err


def test_refusals() -> None:
    """A pair is translated or refused, never taken for another; equal sizes prove nothing."""
    assert refusal(tokenizer("byte-level"), tokenizer("first")) is None
    assert refusal(tokenizer("wordpiece"), tokenizer("wordpiece")) is None  # the same: nothing is translated
    reason = "draft: the text WordPiece tokenizer does not write plain text back exactly"
    assert str(refusal(tokenizer("byte-level"), tokenizer("wordpiece"))).startswith(reason)
    assert str(refusal(tokenizer("wordpiece"), tokenizer("byte-level"))).startswith("target: ")
    assert refusal(None, tokenizer("byte-level")) == "the target has no tokenizer; translation needs both"
    unknown = refusal(tokenizer("byte-level"), tokenizer("first"), override={"x": ""})
    assert "the target has no token 'x'" in str(unknown)
    assert refusal(byte_level(), byte_level(), 512, 640) is None


def test_rounds_confirm_what_the_target_wrote(models: tuple[str, str]) -> None:
    """Every token of a reply is confirmed once, and proposals are counted as they are judged."""
    model: Any = AutoModelForCausalLM.from_pretrained(models[0])
    same = translator("byte-level", "byte-level")
    prompts = [[5, 6, 7], [9]]
    replies = continue_greedily(model, prompts, 12)
    texts = [Played(p, r) for p, r in zip(prompts, replies, strict=True)]
    seen: list[int] = []
    tallies = play(model, same, texts, 3, seen.append)
    assert sum(seen) == 24
    assert tallies == [Tally(rounds=3, proposed=9, accepted=9, draft_steps=9)] * 2
    wrong = [Played(p, [(i + 1) % 400 for i in r]) for p, r in zip(prompts, replies, strict=True)]
    assert sum(t.rounds for t in play(model, same, wrong, 3)) > 6


def test_a_translated_draft_plays_in_the_targets_tokens(models: tuple[str, str]) -> None:
    """The draft's own greedy text, in the target's tokens, is a reply that it drafts as a whole."""
    draft: Any = AutoModelForCausalLM.from_pretrained(models[1])
    ours = vocabulary("byte-level")
    theirs = Vocabulary.of(tokenizer("first"))
    pair = Translator(ours, theirs, SpecialMap.of(ours, theirs))
    prompt = ours.encode(b"The quick", start=True)
    reading = draft_context(pair)
    reading.confirm(prompt)
    proposal = reading.propose(continue_greedily(draft, [reading.draft_ids], 30)[0], 6)
    [tally] = play(draft, pair, [Played(prompt, proposal.ids)], 6)
    assert tally.accepted == len(proposal.ids)
