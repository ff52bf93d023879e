"""The small reasoner: trained for a few steps, and as shipped, on running servers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import servers
import torch
from safetensors.torch import load_file

from sglang_ext.demo.reasoner import reasoner
from sglang_ext.demo.reasoner.messages import QWEN
from sglang_ext.demo.train_reasoner import Job, train

pytestmark = pytest.mark.served

MOST_BYTES = 8 << 20
SUM = "Add 17, 25, 38, 64, 9, 51, 83."
ANSWERS = {SUM: "287", "What is 45 + 12 - 30 + 8?": "35", "What is the largest of 23, 87, 4, 61?": "87",
           "How many of 23, 87, 4, 61 are above 50?": "2", 'Say "river".': "river", "What colour is the sky?": "blue"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A model after a few small steps, and its losses."""
    folder = tmp_path_factory.mktemp("toy")
    return folder, train(folder, Job(seed=5, steps=24, tokens=512, workers=1))


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    server = servers.launch("--demo", "reasoner")
    yield server
    assert not server.stop()


def chat(server: servers.Server, question: str, **body: Any) -> dict[str, Any]:
    """The choice, without the empty line that stands before an answer; no limit unless one is given."""
    response = server.post("/v1/chat/completions", {
        "model": "reasoner", "messages": [{"role": "user", "content": question}], "max_tokens": 200,
        "return_meta_info": True, "think_budget": -1, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    choice["message"]["content"] = choice["message"]["content"].strip()
    return choice


def card() -> str:
    return (reasoner() / "README.md").read_text()


def test_training_lowers_the_loss(toy: tuple[Path, list[float]]) -> None:
    _, losses = toy
    assert len(losses) == 24
    assert mean(losses[-5:]) < mean(losses[:5]) - 0.3


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, toy: tuple[Path, list[float]]) -> None:
    job = Job(seed=6, steps=2, tokens=256)
    first, again = (tmp_path / name for name in ("first", "again"))
    assert train(first, job) == train(again, job)
    weights, same, different = (load_file(folder / "model.safetensors") for folder in (first, again, toy[0]))
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert not all(torch.equal(weights[name], different[name]) for name in weights)
    assert (first / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()


def test_what_was_trained_can_be_served(toy: tuple[Path, list[float]]) -> None:
    server = servers.launch("--model-path", str(toy[0]), "--reasoning-parser", "qwen3", "--served-model-name",
                            "reasoner")
    try:
        choice = chat(server, "Add 1, 2.", think_budget=4, max_tokens=24)
        assert choice["meta_info"]["completion_tokens"] > 0
        assert choice["meta_info"]["think"]["budget"] == 4
    finally:
        assert not server.stop()


def test_the_files_are_those_on_the_card() -> None:
    files = {path.name: path for path in reasoner().iterdir()}
    listed = {name: int(size.replace(",", "")) for name, size in re.findall(r"\| `([\w.]+)` \| ([\d,]+) \|", card())}
    assert listed == {name: path.stat().st_size for name, path in files.items() if name != "README.md"}
    assert sum(path.stat().st_size for path in files.values()) <= MOST_BYTES
    assert hashlib.sha256(files["model.safetensors"].read_bytes()).hexdigest() in card()


def test_the_special_ids_are_those_on_the_card() -> None:
    tokens = {t["content"]: t["id"] for t in json.loads((reasoner() / "tokenizer.json").read_text())["added_tokens"]}
    listed = {name: int(token) for name, token in re.findall(r"\| `(<[^`]+>)` \| (\d+) \|", card())}
    assert listed == tokens
    for name in ("config.json", "generation_config.json"):
        assert json.loads((reasoner() / name).read_text())["eos_token_id"] == tokens["<|im_end|>"]


def test_the_weights_are_in_bfloat16() -> None:
    weights = load_file(reasoner() / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert f"{sum(w.numel() for w in weights.values()):,} parameters" in card()


@pytest.mark.parametrize("question", ANSWERS)
def test_it_is_right_with_full_thinking(server: servers.Server, question: str) -> None:
    choice = chat(server, question)
    assert choice["message"]["content"] == ANSWERS[question]
    assert choice["finish_reason"] == "stop"
    assert choice["meta_info"]["think"]["outcome"] == "natural"


@pytest.mark.parametrize("message", ["", QWEN, "\n\nThe bus leaves; run!\n"], ids=["empty", "qwen", "unseen"])
@pytest.mark.parametrize("budget", [0, 1, 7, 20])
def test_it_answers_when_it_is_cut(server: servers.Server, budget: int, message: str) -> None:
    choice = chat(server, SUM, think_budget={"max_tokens": budget, "message": message})
    assert choice["meta_info"]["think"]["outcome"] == "forced"
    assert choice["meta_info"]["think"]["tokens"] == budget
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].isdecimal()
    assert choice["message"]["content"] != ANSWERS[SUM]


def test_a_budget_that_suffices_changes_nothing(server: servers.Server) -> None:
    free = chat(server, SUM)
    enough = chat(server, SUM, think_budget=free["meta_info"]["think"]["tokens"])
    assert enough["message"] == free["message"]
    assert enough["meta_info"]["think"]["outcome"] == "natural"


def test_thinking_switched_off(server: servers.Server) -> None:
    choice = chat(server, SUM, chat_template_kwargs={"enable_thinking": False})
    assert not choice["message"]["reasoning_content"]
    assert choice["message"]["content"].isdecimal()
    assert choice["finish_reason"] == "stop"


def test_hard_questions_take_longer(server: servers.Server) -> None:
    easy, hard = (chat(server, q)["meta_info"]["think"]["tokens"] for q in ("What colour is the sky?", SUM))
    assert hard >= 5 * easy


def test_an_earlier_turn_does_not_disturb(server: servers.Server) -> None:
    messages = [{"role": "user", "content": "Add 1, 2."}, {"role": "assistant", "content": "3"},
                {"role": "user", "content": SUM}]
    assert chat(server, "", messages=messages)["message"]["content"] == ANSWERS[SUM]


@pytest.mark.parametrize(("flags", "expected"), [
    (["--demo", "gpt"], ["--demo", "gpt", "smollm2", "reasoner"]),
    (["--demo"], ["--demo", "expected one argument"]),
    (["--demo", "reasoner", "--model-path", "/a/model"], ["--demo", "--model-path"]),
    (["--demo=reasoner", "--model=/a/model"], ["--demo", "--model-path"]),
])
def test_bad_demos_end_with_status_2(flags: list[str], expected: list[str]) -> None:
    done = servers.run("launch.py", *flags)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-2]
    assert all(part in last for part in expected), done.stderr
    assert "Traceback" not in done.stderr


def test_help_shows_the_demos() -> None:
    shown = servers.run("launch.py", "--help").stdout
    assert "--demo {smollm2,reasoner}" in shown
