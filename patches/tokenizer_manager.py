"""`TokenizerManager`: where every request in Python is checked.

HTTP, the OpenAI and Anthropic endpoints, `Engine` and the gRPC bridge all pass through `_create_tokenized_object`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.contract import ALIASES, FIELD, BudgetError

from .asked import ASKED, REQUEST_KEY, Asked
from .budget_fields import given_in_sampling_params, settled, with_budget
from .reasoning_parser import build_admission

DEFAULT_NEW_TOKENS = 128  # SamplingParams.max_new_tokens
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def init_tokenizer_and_processor(original: Callable[..., Any], self: Any) -> None:
    original(self)
    service.install(build_admission(self.tokenizer, self.model_config))


def generate_request(original: Callable[..., Any], self: Any, obj: Any, request: Any = None) -> Any:
    from sglang.srt.runtime_context import get_serving

    budget = getattr(obj, "max_thinking_tokens", None)
    if budget is not None and not get_serving().enable_strict_thinking:
        obj.max_thinking_tokens = None
        params, many = obj.sampling_params, isinstance(obj.sampling_params, list)
        each = [{**(p or {}), "max_thinking_tokens": budget} for p in (params if many else [params])]
        obj.sampling_params = each if many else each[0]
    return original(self, obj, request)


def create_tokenized_object(original: Callable[..., Any], self: Any, obj: Any, input_text: str,
                            input_ids: list[int] | None, *args: Any, **kwargs: Any) -> Any:
    params = getattr(obj, "sampling_params", None)
    if hasattr(obj, "max_thinking_tokens") and isinstance(params, dict):
        merged = {**(self.preferred_sampling_params or {}), **params}
        asked: Asked = merged.pop(ASKED, None) or Asked()
        given = given_in_sampling_params(merged)
        if obj.max_thinking_tokens is not None:
            given.append(("max_thinking_tokens", obj.max_thinking_tokens))
        most = merged.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        context_left = self.context_len - len(input_ids or ()) - 1
        budget = service.current().admit(settled(given, most, context_left), most)
        if budget is not None and budget.limited:
            _check_combination(obj, merged, input_ids or [])
        own = (FIELD, REQUEST_KEY) if obj.custom_logit_processor else (FIELD, REQUEST_KEY, *ALIASES)
        obj.sampling_params = with_budget(merged, budget.to_dict() if budget is not None else None, own)
        if budget is not None:
            grammar = any(merged.get(name) for name in GRAMMARS)
            request = asked.settle(bool(obj.require_reasoning), grammar, input_ids or [])
            obj.sampling_params["custom_params"][REQUEST_KEY] = asdict(request)
            if grammar and asked.start is not None and asked.start.closed:
                obj.require_reasoning = False  # the end that the grammar would wait for stands in the prompt
    return original(self, obj, input_text, input_ids, *args, **kwargs)


def _check_combination(obj: Any, params: dict[str, Any], input_ids: list[int]) -> None:
    """Refuse what cannot go with a budget, and let a grammar wait for the end of a block that the prompt opened.

    A grammar that is in force inside the block would refuse the forced end marker.
    """
    from sglang.srt.runtime_context import get_serving

    if (params.get("beam_width") or 1) > 1:
        raise BudgetError("think_budget: beam search cannot be limited; accepted: beam_width 1")
    if obj.input_embeds is not None:
        raise BudgetError("think_budget: a prompt of input_embeds does not tell whether it opens a thinking block; "
                          "accepted: a prompt of text or ids, or no limit (-1)")
    grammar = next((name for name in GRAMMARS if params.get(name)), None)
    if grammar is None or obj.require_reasoning or not service.current().opens_block(input_ids):
        return
    if not get_serving().reasoning_parser:
        raise BudgetError(f"think_budget: the prompt opens a thinking block, in which {grammar} cannot hold; start the "
                          "server with --reasoning-parser, so that the grammar begins after the thinking")
    obj.require_reasoning = True
