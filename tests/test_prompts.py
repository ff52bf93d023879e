"""What a prompt leaves open, in each kind of family."""

from __future__ import annotations

from typing import Any

import pytest
from family_models import SHAPES, build
from flows import Flow

from sglang_ext.budget.prompt import Request

HARMONY = "<|start|>user<|message|>{}<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Flow] = {}

    def flow(name: str) -> Flow:
        if name not in known:
            known[name] = Flow(build(tmp_path_factory.mktemp("prompts"), SHAPES[name]), SHAPES[name].parser)
        return known[name]

    return flow


@pytest.mark.parametrize(("name", "prompt", "opened"), [
    ("gpt-oss", HARMONY.format("q"), False),
    ("gpt-oss", HARMONY.format("what is analysis?"), False),
    ("gpt-oss", HARMONY.format("q") + "<|channel|>analysis<|message|>", True),
    ("gpt-oss", HARMONY.format("q") + "<|channel|>analysis<|message|>so far", True),
    ("gpt-oss", HARMONY.format("q") + "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", False),
    ("gpt-oss", HARMONY.format("q") + "<|channel|>final<|message|>The answer", False),
    ("inkling", "<|message_model|><|content_thinking|>so far", True),
    ("inkling", "<|message_model|><|content_thinking|>hm<|end_message|><|message_model|><|content_text|>so", False),
    ("muse", "<|start|>assistant to=self<|message|>so far", True),
    ("muse", "<|start|>assistant", False),
    ("kimi_k3", "<|turn|><|open|>think<|sep|>", True),
    ("kimi_k3", "<|turn|><|open|>think<|sep|>so far", True),
    ("kimi_k3", "<|turn|><|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>", False),
    ("gemma4", "<|turn>model\n<|channel>thought\n", True),
    ("gemma4", "<|turn>model\n<|channel>", True),
    ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", False),
    ("mistral", "<|turn|>[THINK]so far", True),
    ("kimi", "<|turn|>◁think▷ so far", True),
    ("kimi", "<|turn|>the tag ◁think▷ so far", False),
    ("kimi", "the tag ◁think▷ is", False),
    ("kimi", "### Response:\n◁think▷\n", True),
    ("kimi", "◁think▷ so far", True),
    ("kimi", "a\n◁think▷ so far", False),
    ("kimi", "<|turn|>a\n◁think▷ so far", True),
    ("kimi", "<|turn|>◁think▷a◁/think▷", False),
])
def test_what_is_open(flows: Any, name: str, prompt: str, opened: bool) -> None:
    flow = flows(name)
    ids = flow.tokenizer.encode(prompt, add_special_tokens=False)
    assert flow.admission.start(ids, Request()).open == opened


@pytest.mark.parametrize(("prompt", "waits"), [
    ("<|turn|>q", True), ("<|turn|>◁think▷a◁/think▷", False), ("<|turn|>◁think▷", False),
])
def test_thinking_is_implied_where_the_prompt_holds_no_block(flows: Any, prompt: str, waits: bool) -> None:
    flow = flows("kimi")
    start = flow.admission.start(flow.tokenizer.encode(prompt), Request(implied=True))
    assert (start.word == flow.admission.automaton.implied_word(tools=False)) == waits
    assert start.closed == ("/think" in prompt)


@pytest.mark.parametrize("budget", range(3))
def test_an_implied_block_that_closes_at_once_is_written_whole(flows: Any, budget: int) -> None:
    """Start and end where nothing may be thought; else what the model says is its thinking."""
    from sglang_ext.budget.kernels.layout import NOT_FORCING, Word

    from sglang_ext.budget.contract import ThinkBudget

    flow = flows("kimi")
    row = flow.admission.row(ThinkBudget(budget), flow.tokenizer.encode("<|turn|>q"), 50, request=Request(implied=True))
    assert (row.words[Word.CURSOR] == NOT_FORCING) == (budget > 0)
    written = flow.tokenizer.decode([i for i in row.program if i >= 0])
    assert written == ("" if budget else "◁think▷◁/think▷")
