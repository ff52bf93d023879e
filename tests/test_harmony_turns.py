"""A response of /v1/responses whose built-in tools the server calls itself has one budget for all of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang_ext.patches import harmony_turns

from sglang_ext.budget import service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.contract import FIELD, Limits, ThinkBudget
from sglang_ext.budget.effort import Share
from sglang_ext.budget.results import ReasoningTokens


class Context:
    """sglang's context of a response, of which each turn but the last one calls a tool."""

    num_reasoning_tokens: Any = 0

    def __init__(self, turns: int) -> None:
        self.turns, self.taken = turns, list[Any]()

    def append_output(self, output: Any) -> None:
        self.taken.append(output)

    def need_builtin_tool_call(self) -> bool:
        self.turns -= 1
        return self.turns > 0

    async def call_tool(self) -> list[str]:
        return ["tool says"]

    def render_for_completion(self) -> list[int]:
        return [1, 2, 3]


class Engine:
    """Thinks as much as it may in each turn, at most `wish` tokens, in two outputs."""

    model_config, num_reserved_tokens = SimpleNamespace(context_len=1000), 0

    def __init__(self, wish: int, default: int | None = None) -> None:
        self.wish, self.default, self.budgets = wish, default, list[Any]()

    async def generate_request(self, request: Any, raw_request: Any = None) -> AsyncIterator[dict[str, Any]]:
        budget = (request.sampling_params.get("custom_params") or {}).get(FIELD)
        self.budgets.append(budget)
        limit = budget["max_tokens"] if isinstance(budget, dict) else self.default
        if limit is None:
            yield {"output_ids": [1], "meta_info": {"reasoning_tokens": self.wish}}
            return
        for tokens in (0, min(self.wish, limit)):
            think = {"budget": limit, "tokens": tokens, "forced_tokens": 2, "outcome": "forced"}
            count = ReasoningTokens(tokens, [think])
            yield {"output_ids": [1], "meta_info": {"think": think, "reasoning_tokens": count}}


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_current", Admission(Limits(), None, lambda text: []))


def run(engine: Engine, context: Context, params: dict[str, Any]) -> None:
    async def read() -> None:
        serving = SimpleNamespace(tokenizer_manager=engine, is_disaggregated=False)
        fields = ("stream", "session_id", "extra_key", "cache_salt", "return_logprob", "logprob_start_len",
                  "top_logprobs_num", "return_text_in_logprobs", "return_hidden_states", "background",
                  "require_reasoning")
        request = SimpleNamespace(sampling_params=params, **dict.fromkeys(fields))
        turns = harmony_turns.generate_with_builtin_tools(
            OpenAIServingResponses._generate_with_builtin_tools, serving, "r", None, request, params, context)
        async for _ in turns:
            pass

    asyncio.run(read())


def budget(most: int, **rest: Any) -> dict[str, Any]:
    return {"custom_params": {FIELD: {**ThinkBudget(most).to_dict(), **rest}}}


def test_one_budget_for_all_turns() -> None:
    engine, context = Engine(wish=4), Context(turns=4)
    run(engine, context, budget(10, min_tokens=6, grace_tokens=3))
    assert [(b["max_tokens"], b["min_tokens"], b["grace_tokens"]) for b in engine.budgets] == [
        (10, 6, 3), (6, 2, 3), (2, 0, 2), (0, 0, 0)]
    assert context.num_reasoning_tokens == 10
    assert context.num_reasoning_tokens.think == {"budget": 10, "tokens": 10, "forced_tokens": 8, "outcome": "forced"}


def test_the_servers_own_budget_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_current", Admission(Limits(ThinkBudget(7)), None, lambda text: []))
    engine = Engine(wish=5, default=7)
    run(engine, Context(turns=3), {})
    assert engine.budgets[0] is None
    assert [b["max_tokens"] for b in engine.budgets[1:]] == [2, 0]


def test_an_efforts_share_is_of_the_first_turn() -> None:
    engine = Engine(wish=5, default=8)
    run(engine, Context(turns=2), {"custom_params": {FIELD: Share(50, 100)}})
    assert engine.budgets[1]["max_tokens"] == 3


class Clock:
    """A clock on which nothing takes time but what says so. The context's tools take two seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
        self.now, self._call_tool = 50.0, context.call_tool
        monkeypatch.setattr(harmony_turns, "time", SimpleNamespace(monotonic=lambda: self.now))
        context.call_tool = self.call_tool  # type: ignore[method-assign]

    async def call_tool(self) -> list[str]:
        self.now += 2
        return await self._call_tool()


class SlowEngine(Engine):
    """Waits a second in the queue before a turn's first token and thinks for three."""

    def __init__(self, clock: Clock, outcome: str = "natural") -> None:
        super().__init__(wish=4)
        self.clock, self.outcome = clock, outcome

    async def generate_request(self, request: Any, raw_request: Any = None) -> AsyncIterator[dict[str, Any]]:
        self.clock.now += 1
        async for output in super().generate_request(request, raw_request):
            yield {**output, "meta_info": {**output["meta_info"],
                                           "think": {**output["meta_info"]["think"], "outcome": self.outcome}}}
            self.clock.now += 1.5


@pytest.mark.parametrize(("since", "seconds"), [("arrival", [8.5, 2.5, 0, 0]), ("first_token", [8.5, 3.5, 0, 0])])
def test_a_deadline_is_one_for_all_turns(monkeypatch: pytest.MonkeyPatch, since: str, seconds: list[float]) -> None:
    """The tools' time counts too. What is left counts from the next turn's arrival, whatever the first one's from."""
    context = Context(turns=4)
    engine = SlowEngine(Clock(monkeypatch, context))
    run(engine, context, budget(100, seconds=8.5, since=since))
    assert [b["seconds"] for b in engine.budgets] == seconds
    assert [b["since"] for b in engine.budgets] == [since, *["arrival"] * 3]


@pytest.mark.parametrize("outcome", ["loop", "deadline", "asked"])
def test_an_end_that_came_early_holds_for_all_turns(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    context = Context(turns=3)
    engine = SlowEngine(Clock(monkeypatch, context), outcome)
    run(engine, context, budget(100, min_tokens=9))
    assert [(b["max_tokens"], b["min_tokens"]) for b in engine.budgets] == [(100, 9), (0, 0), (0, 0)]


def test_no_budget_is_counted_and_not_limited() -> None:
    engine, context = Engine(wish=5), Context(turns=2)
    run(engine, context, {"temperature": 0})
    assert engine.budgets == [None, None]
    assert context.num_reasoning_tokens == 10
