"""A budget is parsed once in the process that serves HTTP, and once where the scheduler reads its object form back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang_ext.patches import scheduler
from sglang_ext.patches.request_models import WISH, convert_messages_request, with_checked_budget
from sglang_ext.patches.tokenizer_manager import create_tokenized_object

from sglang_ext.budget import contract, service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.byte_rules import Markers
from sglang_ext.budget.contract import FIELD, Limits, ThinkBudget
from sglang_ext.budget.spelling import Wish, read

CHAT = {"messages": [], "thinking_budget": 12, "chat_template_kwargs": {"thinking_budget": 12}}
OBJECT = {"messages": [], "think_budget": {"max_tokens": 12, "min_tokens": 3, "message": "", "seconds": 4}}
PROMPT = [0, 1]
PIECES = [b"a", b"\n", b"<t>", b"</t>", b"<|end|>"]
AUTOMATON = Automaton(Markers(b"<t>", b"</t>", b"\n"), Vocabulary(PIECES, 2, (3,), (1,), (4,), frozenset({4})))


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_current", Admission(Limits(), AUTOMATON, lambda text: []))
    monkeypatch.setattr(scheduler.ends, "note_request", lambda *args: None)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every value that is parsed, but those that were checked before."""
    values: list[Any] = []
    original = contract.parse

    def parse(value: Any, limits: Limits, field: str = FIELD) -> ThinkBudget:
        if not isinstance(value, ThinkBudget):
            values.append(value)
        return original(value, limits, field)

    monkeypatch.setattr(contract, "parse", parse)
    return values


class Request:
    """A chat request as the endpoints have it, with its wish."""

    def __init__(self, body: dict[str, Any]) -> None:
        setattr(self, WISH, read(body))
        self.max_tokens, self.thinking, self.chat_template_kwargs, self.rid = 64, None, None, None


def tokenized(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they are sent to the scheduler."""
    manager = SimpleNamespace(preferred_sampling_params=None, context_len=512, tokenizer=None, rid_to_state={})
    obj = SimpleNamespace(sampling_params=params, max_thinking_tokens=None, custom_logit_processor=None,
                          require_reasoning=False, input_embeds=None, rid=None)
    create_tokenized_object(lambda *args: None, manager, obj, "", PROMPT)
    return dict(obj.sampling_params)


def received(params: dict[str, Any]) -> Any:
    """The request in the scheduler."""
    req = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=params["custom_params"]), rid="r")
    scheduler.init_request(lambda self: None, req)
    return req


@pytest.mark.parametrize("body", [CHAT, OBJECT])
def test_a_chat_request(body: dict[str, Any], parsed: list[Any]) -> None:
    wish: Wish = read(body)
    params = with_checked_budget(Request(body), {"max_new_tokens": 64}, templated=False)
    assert len(parsed) == len(wish.budgets)
    sent = tokenized(params)
    assert len(parsed) == len(wish.budgets)
    assert isinstance(sent["custom_params"][FIELD], dict)
    req = received(sent)
    assert len(parsed) == len(wish.budgets) + 1
    assert req.think_error is None
    assert req.think.budget == params["custom_params"][FIELD]


def test_an_anthropic_request(parsed: list[Any]) -> None:
    chat = convert_messages_request(lambda self, request: Request({}), None, Request(OBJECT))
    params = with_checked_budget(chat, {"max_new_tokens": 64}, templated=True)
    tokenized(params)
    assert len(parsed) == 1
    assert params["custom_params"][FIELD].max_tokens == 12


def test_a_request_that_came_past_the_tokenizer_manager_is_checked() -> None:
    """Under any name, as gRPC and Rust send it."""
    assert received({"custom_params": {"thinking_budget": 9}}).think.budget.max_tokens == 9
    for value in ("x", {"max_tokens": "x"}, {"max": 4}, [1]):
        req = received({"custom_params": {FIELD: value}})
        assert req.think is None
        assert req.think_error.startswith("custom_params.think_budget")
    for custom in (None, "x", {}):
        assert received({"custom_params": custom}).think_error is None
