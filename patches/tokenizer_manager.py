"""`TokenizerManager`: where every request in Python is checked.

HTTP, the OpenAI and Anthropic endpoints, `Engine` and the gRPC bridge all pass through `_create_tokenized_object`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.contract import FIELD, BudgetError
from sglang_ext.budget.spelling import Off, Wish, in_parameters, read

from .asked import ARRIVED_KEY, ASKED, REQUEST_KEY, Asked
from .budget_fields import has_switch, refuse_beams, resolved, with_budget
from .choices import CALL, ENDPOINT, carried, note_call
from .reasoning_parser import build_admission

DEFAULT_NEW_TOKENS = 128  # SamplingParams.max_new_tokens
LABELS = "custom_labels"
"""Labels of a request's metrics: strings that a router passes on."""
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
HOLDS_THINKING = "__sglang_reasoning_in_grammar"
"""Key in `custom_params` of a request whose grammar describes its thinking too, as sglang has it from 0.5.23 on."""


def init_tokenizer_and_processor(original: Callable[..., Any], self: Any) -> None:
    original(self)
    service.install(build_admission(self.tokenizer, self.model_config))


def generate_request(original: Callable[..., Any], self: Any, obj: Any, request: Any = None) -> Any:
    from sglang.srt.runtime_context import get_serving

    budget = getattr(obj, "max_thinking_tokens", None)
    if budget is not None and not get_serving().enable_strict_thinking:
        obj.max_thinking_tokens = None
        _each_params(obj, lambda params: {**params, "max_thinking_tokens": budget})
    _take_labels(obj)
    note_call(obj)
    return original(self, obj, request)


def _each_params(obj: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the sampling parameters of a request, or of each one of a batch."""
    params, many = obj.sampling_params, isinstance(obj.sampling_params, list)
    each = [change(p or {}) for p in (params if many else [params])]
    obj.sampling_params = each if many else each[0]


def _take_labels(obj: Any) -> None:
    """Take what a request's labels say about its thinking into its sampling parameters, and leave the labels that the
    operator allows: another one ends the server's tokenizer manager where there are metrics.

    Raises:
        BudgetError: it is not accepted, or differs from what the parameters say.
    """
    labels = getattr(obj, LABELS, None)
    if not labels:
        return
    obj.custom_labels = {name: value for name, value in labels.items() if name in _allowed_labels()} or None
    wish = read({LABELS: labels})
    if wish == Wish():
        return

    def change(params: dict[str, Any]) -> dict[str, Any]:
        both = Wish((*in_parameters(params), *wish.budgets), wish.off, wish.error)
        given = both.given(service.current().limits, templated=False)
        if both.budgets:
            return with_budget(params, service.current().admit(given, params.get("max_new_tokens", DEFAULT_NEW_TOKENS)))
        return with_budget(params, given[0][1])

    _each_params(obj, change)


def _allowed_labels() -> frozenset[str]:
    """Labels that the metrics have."""
    from sglang.srt.runtime_context import get_observability

    return frozenset(get_observability().tokenizer_metrics_allowed_custom_labels or ())


def create_tokenized_object(original: Callable[..., Any], self: Any, obj: Any, input_text: str,
                            input_ids: list[int] | None, *args: Any, **kwargs: Any) -> Any:
    params = getattr(obj, "sampling_params", None)
    if hasattr(obj, "max_thinking_tokens") and isinstance(params, dict):
        merged = {**(self.preferred_sampling_params or {}), **params}
        asked: Asked = merged.pop(ASKED, None) or Asked()
        call, endpoint = merged.pop(CALL, None), merged.pop(ENDPOINT, False)
        given = in_parameters(merged)
        if obj.max_thinking_tokens is not None:
            given.append(("max_thinking_tokens", obj.max_thinking_tokens))
        most = merged.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        context_left = self.context_len - len(input_ids or ()) - 1
        given = resolved(given, most, context_left, partial(_nothing_to_do, self.tokenizer, input_ids or []))
        budget = service.current().admit(given, most)
        if budget is not None and budget.limited:
            _check_combination(obj, merged, input_ids or [], budget.max_tokens)
        obj.sampling_params = with_budget(merged, budget.to_dict() if budget is not None else None,
                                          keep_names=bool(obj.custom_logit_processor))
        if budget is not None:
            grammar = any(merged.get(name) for name in GRAMMARS)
            request = asked.resolve(bool(obj.require_reasoning), grammar, input_ids or [])
            custom = obj.sampling_params["custom_params"]
            custom |= {REQUEST_KEY: asdict(request), **carried(call, obj.rid, endpoint)}
            if budget.seconds is not None:
                custom[ARRIVED_KEY] = _arrived(self, obj.rid)
            if grammar and asked.begins_with_the_answer:
                obj.require_reasoning = False  # the end that the grammar would wait for will not come
    return original(self, obj, input_text, input_ids, *args, **kwargs)


def _arrived(manager: Any, rid: Any) -> float:
    """When a request came to this server, in seconds since the epoch."""
    state = manager.rid_to_state.get(rid) if isinstance(rid, str) else None
    return time.time() - (time.perf_counter() - state.time_stats.created_time if state is not None else 0.0)


def _nothing_to_do(tokenizer: Any, prompt: list[int], off: Off) -> bool:
    """Whether a request with thinking switched off needs no budget: the chat template has a switch, which is set, and
    opened no block; or the model's markers are unknown."""
    admission = service.current()
    if admission.automaton is None:
        return True
    template = getattr(tokenizer, "chat_template", None)
    return (off.templated and isinstance(template, str) and has_switch(template)
            and not admission.opens_block(prompt))


def _check_combination(obj: Any, params: dict[str, Any], input_ids: list[int], limit: int) -> None:
    """Refuse what cannot go with a budget, and let a grammar wait for the end of a block that the prompt opened.

    A grammar that is in force inside the block would refuse the forced end marker; one that describes the thinking too
    refuses it where nothing was thought.
    """
    from sglang.srt.runtime_context import get_serving

    refuse_beams(FIELD, params.get("beam_width"))
    if obj.input_embeds is not None:
        raise BudgetError("think_budget: a prompt of input_embeds does not tell whether it opens a thinking block; "
                          "accepted: a prompt of text or ids, or no limit (-1)")
    grammar = next((name for name in GRAMMARS if params.get(name)), None)
    if limit == 0 and grammar is not None and (params.get("custom_params") or {}).get(HOLDS_THINKING):
        raise BudgetError("think_budget: 0 cannot be kept, as the server's tool parser holds this response by a "
                          "grammar that wants thinking; accepted: 1 and more, or no limit (-1)")
    if grammar is None or obj.require_reasoning or not service.current().opens_block(input_ids):
        return
    if not get_serving().reasoning_parser:
        raise BudgetError(f"think_budget: the prompt opens a thinking block, in which {grammar} cannot hold; start the "
                          "server with --reasoning-parser, so that the grammar begins after the thinking")
    obj.require_reasoning = True
