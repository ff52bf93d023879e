"""The draft's training, on a target of a few thousand random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import servers
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sglang_ext.uag.train import __main__ as script
from sglang_ext.uag.train.data import IGNORED, Rows
from sglang_ext.uag.train.draft import Options, train_draft
from sglang_ext.uag.train.model import Plan, Shape, Training
from sglang_ext.uag.train.prompts import KINDS, PromptMaker
from sglang_ext.uag.train.texts import Text, TransformersGenerator, read_texts
from sglang_ext.uag.train.tokenizer import SEPARATOR, splits_digits, train_tokenizer

SPECIALS = ["<|end|>", "<|user|>", "<|bot|>", "<|unused|>"]
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}<|bot|>"
SHAPE = Shape(vocabulary=300, hidden=32, feed_forward=64, layers=2, heads=2, positions=256)
PLAN = Plan(steps=16, batch=2, length=64, rate=1e-2, warm_up=2, drills=3, saved_every=5)


def tiny_tokenizer(digits: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  special_tokens=[AddedToken(s, special=True) for s in SPECIALS])
    lines = [PromptMaker(7).make("chat").text for _ in range(50)] + [str(n * 1234567) for n in range(50)]
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of one layer with a chat template."""
    folder = tmp_path_factory.mktemp("target")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=512, initializer_range=0.5, eos_token_id=0, bos_token_id=None,
    )).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def options(target: Path) -> Options:
    return Options(str(target), prompts=12, reply_tokens=12, dtype="float32", generator="transformers", seed=5,
                   shape=SHAPE, plan=PLAN)


@pytest.fixture(scope="module")
def trained(options: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy draft, trained without an interruption."""
    folder = tmp_path_factory.mktemp("trained")
    return train_draft(options, folder / "draft", folder / "work")


def same_weights(one: Path, other: Path) -> bool:
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_loss_falls(trained: Path) -> None:
    losses = torch.load(trained.parent / "work" / "training.pt", weights_only=True)["losses"]
    assert len(losses) == PLAN.steps
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_interrupted_is_as_uninterrupted(options: Options, trained: Path, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off while the target writes, then in training, between two states on disk."""
    out, work = tmp_path / "draft", tmp_path / "work"
    monkeypatch.setattr(TransformersGenerator, "batch", 4)
    with monkeypatch.context() as patch:
        patch.setattr(TransformersGenerator, "write", interrupted(TransformersGenerator.write, at=1))
        with pytest.raises(KeyboardInterrupt):
            train_draft(options, out, work)
    assert len(read_texts(work / "texts.jsonl")) == 4
    with (work / "texts.jsonl").open("a") as file:
        file.write('{"kind": "chat", "pro')  # the machine went down in the middle of a line
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", interrupted(Training._step, at=12))
        with pytest.raises(KeyboardInterrupt):
            train_draft(options, out, work)
    assert len(torch.load(work / "training.pt", weights_only=True)["losses"]) == 10
    train_draft(options, out, work)
    uninterrupted = train_draft(options, tmp_path / "whole", tmp_path / "whole-work")
    assert (work / "copies.jsonl").read_text() == (tmp_path / "whole-work" / "copies.jsonl").read_text()
    assert same_weights(out, uninterrupted)
    assert (out / "tokenizer.json").read_text() == (uninterrupted / "tokenizer.json").read_text()


def interrupted(function: Any, at: int) -> Any:
    """The function, but Ctrl-C instead of its call number `at`."""
    calls = iter(range(at + 1))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return wrapper


def test_seed_decides(options: Options, trained: Path, tmp_path: Path) -> None:
    again = train_draft(options, tmp_path / "again", tmp_path / "again-work")
    other = train_draft(replace(options, seed=6), tmp_path / "other", tmp_path / "other-work")
    assert same_weights(trained, again)
    assert not same_weights(trained, other)


def test_texts_are_the_targets_own(options: Options, target: Path, trained: Path) -> None:
    """A greedy text is what the target writes one prompt at a time."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for text in read_texts(trained.parent / "work" / "texts.jsonl")[:3]:
        inputs = tokenizer(text.prompt, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**inputs, max_new_tokens=options.reply_tokens, do_sample=False)[0]
        new = tokenizer.decode(out[inputs["input_ids"].shape[1]:])
        assert new == text.reply + ("<|end|>" if text.finished else "")


def test_prompts_of_a_file(options: Options, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One prompt\n\nAnother prompt\n")
    out = train_draft(replace(options, texts=str(prompts)), tmp_path / "draft", tmp_path / "work")
    written = read_texts(tmp_path / "work" / "texts.jsonl")
    assert [t.prompt for t in written] == ["<|user|>One prompt<|end|><|bot|>", "<|user|>Another prompt<|end|><|bot|>"]
    assert (out / "model.safetensors").exists()


@pytest.mark.parametrize("change", [{"seed": 6}, {"reply_tokens": 13}])
def test_work_of_another_recipe_is_refused(options: Options, trained: Path, tmp_path: Path,
                                           change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"another recipe.*{next(iter(change))}"):
        train_draft(replace(options, **change), tmp_path, trained.parent / "work")


@pytest.mark.parametrize("change", [{"plan": replace(PLAN, steps=20)}, {"shape": replace(SHAPE, feed_forward=96)},
                                    {"prompts": 10}])
def test_training_of_another_recipe_is_refused(options: Options, trained: Path, tmp_path: Path,
                                               change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="other texts, in another shape or by another plan"):
        train_draft(replace(options, **change), tmp_path, trained.parent / "work")


@pytest.mark.parametrize(("flags", "named"), [
    (["--steps", "0"], "0: accepted are integers from 1"), (["--steps", "5", "--minutes", "1"], "not allowed with"),
    (["--generator", "x"], "invalid choice: 'x'"), (["--dtype", "int8"], "invalid choice: 'int8'")])
def test_bad_flags(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["--target", "t", "--out", "o", *flags])
    assert named in capsys.readouterr().err


def test_vocabulary_too_small(options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"vocabulary 200: accepted is 256 bytes \+ \d special"):
        train_draft(replace(options, shape=replace(SHAPE, vocabulary=200)), tmp_path / "d", tmp_path / "w")


def test_empty_file_of_prompts(options: Options, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"none\.txt has no prompts"):
        train_draft(replace(options, texts=str(tmp_path / "none.txt")), tmp_path / "d", tmp_path / "w")


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_prompts_are_never_training_prompts(kind: str) -> None:
    seen = [{maker.make(kind).text for _ in range(3000)}
            for maker in (PromptMaker(1), PromptMaker(1, held_out=True))]
    assert all(len(texts) > 50 for texts in seen)
    assert not seen[0] & seen[1]


@pytest.mark.parametrize("digits", [True, False])
def test_tokenizer_follows_the_target(digits: bool) -> None:
    target = tiny_tokenizer(digits)
    text = Text("chat", "<|user|>Say 1234 5678 in full<|end|><|bot|>", "1234 5678 1234 5678 caf\u00e9 \U0001f600", True)
    tokenizer = train_tokenizer(target, [text] * 3, 300)
    assert splits_digits(target) == digits
    assert splits_digits(tokenizer) == digits
    assert tokenizer.eos_token == "<|end|>"
    ids = tokenizer(text.prompt + text.reply)["input_ids"]
    assert tokenizer.decode(ids) == text.prompt + text.reply
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|user|>")
    assert "<|unused|>" not in tokenizer.get_vocab()


def test_rows_hold_the_texts_and_lose_on_replies_alone() -> None:
    target = tiny_tokenizer()
    texts = [Text("chat", f"<|user|>QUESTION {c}<|end|><|bot|>", f"reply {c * 3} now", True) for c in "abcdefgh"]
    tokenizer = train_tokenizer(target, texts, 300)
    ids, labels = next(Rows(target, tokenizer, texts, 4096, 1).batches(1))
    documents = tokenizer.decode(ids[0]).split(SEPARATOR)
    wanted = tokenizer.decode([i for i in labels[0].tolist() if i != IGNORED])
    for text in texts:
        assert text.prompt + text.reply + "<|end|>" in documents
        assert text.reply + "<|end|>" in wanted
    assert "QUESTION" not in wanted
    assert SEPARATOR not in wanted


def test_rows_skip_to_where_they_were() -> None:
    target = tiny_tokenizer()
    texts = [Text("chat", "<|user|>a<|end|><|bot|>", f"number {n}", False) for n in range(9)]
    rows = Rows(target, train_tokenizer(target, texts, 300), texts, 32, 1)
    through = rows.batches(2)
    third = [next(through) for _ in range(3)][2]
    skipped = next(rows.batches(2, skip=2))
    assert (third[0] == skipped[0]).all()
    assert (third[1] == skipped[1]).all()


@pytest.mark.served
def test_loads_in_transformers_and_sglang(trained: Path) -> None:
    """Both load the checkpoint, and write the same greedy text."""
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    inputs = tokenizer("<|user|>hello<|end|><|bot|>", return_tensors="pt", return_token_type_ids=False)
    expected = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1]:].tolist()
    server = servers.launch("--model-path", str(trained), "--dtype", "float32")
    try:
        answer = server.generate(input_ids=inputs["input_ids"][0].tolist(),
                                 sampling_params={"temperature": 0, "max_new_tokens": 16})
    finally:
        server.stop()
    assert answer["output_ids"] == expected
