"""Where and under which names a request says how much it may think. No engine is imported.

One table of names and one of places: every name is read in every place, on every endpoint. Names are compared by their
words, so `thinkingBudget` and `thinking-budget` are `thinking_budget`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .contract import FIELD, UNLIMITED, BudgetError, Limits, parse, shown
from .names import BOOLEANS, SWITCHES, canonical, decoded, read_switches, words_of

ALIASES = (
    "thinking_budget", "thinking_token_budget", "max_thinking_tokens", "thinking_budget_tokens", "reasoning_budget",
    "reasoning_budget_tokens", "reasoning_max_tokens", "max_reasoning_tokens",
)
"""Flat names that other servers have for the same integer: Qwen's API, vLLM and TensorRT-LLM, sglang and NIM, llama.cpp
(three), FastDeploy, and one that clients write."""
NESTED = {"reasoning": "max_tokens", "thinking": "budget_tokens", "thinking_config": "thinking_budget"}
"""Names inside an object: OpenRouter's, Anthropic's and Gemini's."""
PLACES = ("custom_params", "chat_template_kwargs", "metadata", "custom_labels", "options", "nvext", "generation_config")
"""Objects in a request whose entries are read as the request's own are."""
TEXTS = ("metadata", "custom_labels")
"""Places whose values are strings: a number, a switch or an object stands there as JSON. Most entries are the client's
own."""
WRAPPER = "extra_body"
"""An argument of client libraries. In a body it stands for its contents."""
PROCESSOR = "custom_logit_processor"
"""A processor of the client's own. `custom_params` are then its arguments."""

_NAMES = (FIELD, *ALIASES)
_THINKING = frozenset({"think", "thinking", "thought", "thoughts", "reason", "reasoning"})
_CAP = frozenset({"budget", "budgets", "limit", "limits", "max", "maximum", "cap", "ceiling", "quota"})
_EARLY = frozenset({"seconds", "deadline", "timeout", "loops"})
_LIMIT = _CAP | _EARLY | {"tokens", "length", "len"}
_NO_LIMIT: frozenset[str] = frozenset()
_BARE = frozenset({"budget", "token", "tokens", "max"})
_OURS = frozenset({*_NAMES, *NESTED, *SWITCHES, *PLACES, WRAPPER})
_SCHEMAS = frozenset({"properties", "$defs", "definitions", "patternProperties"})
_DEPTH = 64


@dataclass(frozen=True)
class Off:
    """Thinking is switched off. Once the prompt is known, it is either done by the template or a budget of 0.

    Attributes:
        templated: a template wrote the prompt, and its switches are set.
    """

    templated: bool


@dataclass(frozen=True)
class Wish:
    """What a request says about its thinking.

    Attributes:
        budgets: every budget, with the name that it has there.
        off: name of a switch that turns thinking off, or None.
        error: why the request is not accepted, or None.
    """

    budgets: tuple[tuple[str, Any], ...] = ()
    off: str | None = None
    error: str | None = None

    def given(self, limits: Limits, templated: bool) -> list[tuple[str, Any]]:
        """The budgets to admit. With a switch that turns thinking off: `Off`, or a budget of 0 beside another budget.

        Args:
            templated: whether a chat template writes the prompt.

        Raises:
            BudgetError: the request is not accepted.
        """
        if self.error is not None:
            raise BudgetError(self.error)
        if self.off is None:
            return list(self.budgets)
        message = ""
        for name, value in self.budgets:
            budget = parse(value, limits, name)
            explicit = not isinstance(value, Mapping) or "max_tokens" in value
            if budget.min_tokens > 0 or (explicit and budget.max_tokens not in (0, UNLIMITED)):
                raise BudgetError(f"{self.off} switches thinking off, and {name} is {shown(value)}; accepted: one of "
                                  "them, or a budget of 0")
            if isinstance(value, Mapping):
                message = value.get("message", message)
        if self.budgets:
            return [(self.budgets[0][0], {"max_tokens": 0, "message": message})]
        return [(self.off, Off(templated))]


def read(body: Mapping[str, Any], known: Collection[str] = ()) -> Wish:
    """What a request says about its thinking.

    Args:
        body: the request as its client wrote it, unwrapped.
        known: fields that the server reads itself: they hold no budget, whatever their names are.
    """
    try:
        return Wish(*_read(body, known))
    except BudgetError as error:
        return Wish(error=str(error))


def _read(body: Mapping[str, Any], known: Collection[str]) -> tuple[tuple[tuple[str, Any], ...], str | None]:
    budgets: list[tuple[str, Any]] = []
    switches: list[tuple[str, bool, bool]] = []
    for where, place, source in _sources(body):
        if place != "custom_params" or not body.get(PROCESSOR):
            _refuse_unread(source, where, known if not where else (), _CAP if place in TEXTS else _LIMIT)
        budgets += spellings(source, where)
        if place != "custom_params":  # a processor of the client's own may have such a switch
            switches += read_switches(source, where)
    on = next((name for name, value, _ in switches if value), None)
    forced_on = any(value and boolean for _, value, boolean in switches)
    off = [(name, boolean) for name, value, boolean in switches if not value]
    off = [(name, boolean) for name, boolean in off if boolean or not forced_on or "effort" not in name.lower()]
    if on is not None and off:
        raise BudgetError(f"{on} and {off[0][0]} differ: one switches thinking on, the other off; accepted: one of "
                          "them")
    return tuple(budgets), off[0][0] if off else None


def unwrapped(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the contents of a literal `extra_body` as its own, and of one in it.

    Raises:
        BudgetError: `extra_body` is no object, or names a field that the request has with another value.
    """
    merged = dict(body)
    while WRAPPER in merged:
        inner = merged.pop(WRAPPER)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise BudgetError(f"{WRAPPER}: {shown(inner)} is not accepted; accepted: an object, or its contents in the "
                              "request itself")
        for name, value in inner.items():
            if merged.get(name) is not None and merged[name] != value:
                raise BudgetError(f"{name} and {WRAPPER}.{name} differ: {shown(merged[name])} and {shown(value)}; "
                                  "accepted: one of them, or equal values")
        merged.update(inner)
    return merged


def spellings(source: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every budget among a set of parameters, with the name it has there, canonical names first. A null is no value.

    Args:
        where: prefix that tells a reader of an error where they stand, for example `custom_params.`.
    """
    found = []
    for name, value in source.items():
        flat = canonical(name)
        if value is None:
            continue
        if flat in _NAMES:
            found.append((_NAMES.index(flat), where + str(name), value))
        elif flat in NESTED and isinstance(value, Mapping):
            found += [(len(_NAMES), f"{where}{name}.{inner}", part) for inner, part in value.items()
                      if part is not None and canonical(inner) == NESTED[flat]]
    for _, name, value in sorted(found, key=lambda each: each[0]):
        yield name, value


def in_parameters(params: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every budget in an engine's sampling parameters and their `custom_params`, with its name."""
    given = list(spellings(params))
    custom = params.get("custom_params")
    if isinstance(custom, Mapping):
        given += spellings(custom, "custom_params.")
    return given


def is_budget(name: Any) -> bool:
    """Whether this is a flat name of a budget."""
    return canonical(name) in _NAMES


def without(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without the budgets among them."""
    rest = {name: value for name, value in params.items() if not is_budget(name)}
    for name, value in params.items():
        inner = NESTED.get(canonical(name))
        if inner and isinstance(value, Mapping) and inner in map(canonical, value):
            rest.pop(name, None)
    return rest


def names() -> list[str]:
    """Every name of a budget, as a client may write it."""
    return [*_NAMES, *(f"{outer}.{inner}" for outer, inner in NESTED.items())]


def _sources(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The request itself and its places: the prefix of names, the place, what stands there."""
    yield "", "", body
    for name, entries in body.items():
        place = canonical(name)
        if place in PLACES and isinstance(entries, Mapping):
            if place in TEXTS:
                entries = {key: decoded(part) if canonical(key) in _OURS else part for key, part in entries.items()}
            yield f"{name}.", place, entries


def _refuse_unread(source: Mapping[str, Any], where: str, known: Collection[str], limits: frozenset[str],
                   outer: tuple[str, ...] = (), depth: int = 0) -> None:
    """Raise BudgetError for a budget where nothing reads it, and for a name that reads like one and is none of ours.

    Args:
        known: fields that are not looked at.
        limits: words for a limit; with `_NO_LIMIT` only our own names are refused.
        outer: words of the objects that this one stands in.
        depth: how many objects and lists of the request or place it stands in.
    """
    for name, value in source.items():
        if not isinstance(name, str) or value is None:
            continue
        flat, own = canonical(name), words_of(name)
        words = (*outer, *own)
        nested = NESTED.get(flat)
        if flat in _NAMES:
            if depth:
                raise _unread(where + name, value)
        elif nested is not None and isinstance(value, Mapping):
            for key, part in value.items():
                if depth and part is not None and canonical(key) == nested:
                    raise _unread(f"{where}{name}.{key}", part)
            inside = {key: part for key, part in value.items() if canonical(key) != nested}
            _refuse_unread(inside, f"{where}{name}.", (), limits, words, depth + 1)
        elif (not where and flat in PLACES) or (name in known and nested is None) or _is_schema(name, own, value):
            continue
        elif _reads_like_a_budget(words, own, value, limits) and not (flat in BOOLEANS and value == 0):
            raise BudgetError(f"{where}{name}: {shown(value)} reads like a budget of thinking under a name that is not "
                              f"known; accepted: {', '.join(names())}; loops and seconds are keys of {FIELD}")
        else:
            _refuse_inside(value, f"{where}{name}", limits, words, depth + 1)


def _refuse_inside(value: Any, where: str, limits: frozenset[str], words: tuple[str, ...], depth: int) -> None:
    """The same for what stands in a value. The objects of a list are records, where only our own names are meant."""
    if depth > _DEPTH:
        return
    if isinstance(value, Mapping):
        _refuse_unread(value, f"{where}.", (), limits, words, depth)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            if isinstance(part, list) or (isinstance(part, Mapping) and not _is_schema("", (), part)):
                _refuse_inside(part, f"{where}[{place}]", _NO_LIMIT, words, depth + 1)


def _unread(name: str, value: Any) -> BudgetError:
    return BudgetError(f"{name}: {shown(value)} stands where nothing reads a budget; accepted: in the request "
                       f"itself (on /generate in its sampling_params), or there in {', '.join(PLACES)}")


def _is_schema(name: str, own: tuple[str, ...], value: Any) -> bool:
    """Whether a value is a JSON schema, or a set of them: its keys name parts of a response."""
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    return is_object or name in _SCHEMAS or "schema" in own or isinstance(value.get("properties"), Mapping)


def _reads_like_a_budget(words: tuple[str, ...], own: tuple[str, ...], value: Any, limits: frozenset[str]) -> bool:
    """The rule: a word for thinking and a word for a limit. Where every word for a limit counts, also nothing but
    `budget` and `tokens`, or a number under a word for thinking alone. A boolean is a switch, unless it is about loops.

    Args:
        words: of the name, and of the objects that it stands in.
        own: of the name alone.
        limits: words for a limit.
    """
    said = frozenset(words)
    if isinstance(value, bool):
        return limits == _LIMIT and bool(said & _THINKING) and "loops" in own
    if said & _THINKING and said & limits:
        return limits == _LIMIT or not isinstance(decoded(value), bool)
    if limits != _LIMIT:
        return False
    if isinstance(value, int | float) and words and said <= _THINKING:
        return True
    return "budget" in own and len(own) > 1 and _BARE.issuperset(own)
