"""Where and under which names a request says how much it may think. No engine is imported.

One table of names and one of places: every name is read in every place, on every endpoint. Names are compared by their
words, so `thinkingBudget` and `thinking-budget` are `thinking_budget`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .contract import FIELD, UNLIMITED, BudgetError, Limits, parse, shown

ALIASES = (
    "thinking_budget", "thinking_token_budget", "max_thinking_tokens", "thinking_budget_tokens", "reasoning_budget",
    "reasoning_budget_tokens", "reasoning_max_tokens", "max_reasoning_tokens",
)
"""Flat names that other servers have for the same integer: Qwen's API, vLLM and TensorRT-LLM, sglang and NIM, llama.cpp
(three), FastDeploy, and one that clients write."""
NESTED = {"reasoning": "max_tokens", "thinking": "budget_tokens", "thinking_config": "thinking_budget"}
"""Names inside an object: OpenRouter's, Anthropic's and Gemini's."""
PLACES = ("custom_params", "chat_template_kwargs", "metadata", "custom_labels", "options", "nvext")
"""Objects in a request whose entries are read as the request's own are."""
TEXTS = ("metadata", "custom_labels")
"""Places whose values are strings: a number, a switch or an object stands there as JSON."""
WRAPPER = "extra_body"
"""An argument of client libraries. In a body it stands for its contents."""

_NAMES = (FIELD, *ALIASES)
_THINKING = frozenset({"think", "thinking", "thought", "thoughts", "reason", "reasoning"})
_LIMIT = frozenset({"budget", "budgets", "tokens", "limit", "limits", "max", "maximum", "cap", "ceiling", "length",
                    "len", "quota"})
_BARE = frozenset({"budget", "token", "tokens", "max"})
_DEPTH = 4


@dataclass(frozen=True)
class Off:
    """A request's wish not to think, until its prompt tells whether a chat template has seen to it.

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
        """The budgets to admit; a request that is not to think has `Off`, or a budget of 0 if it names a budget too.

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
    for where, source in _sources(body):
        _refuse_unknown(source, where, known if not where else ())
        budgets += spellings(source, where)
        if where != "custom_params.":  # a processor of the client's own may have such a switch
            switches += _switches(source, where)
    on = next((name for name, value, _ in switches if value), None)
    forced_on = any(value and boolean for _, value, boolean in switches)
    off = [(name, boolean) for name, value, boolean in switches if not value]
    off = [(name, boolean) for name, boolean in off if boolean or not forced_on or "effort" not in name]
    if on is not None and off:
        raise BudgetError(f"{on} and {off[0][0]} differ: one switches thinking on, the other off; accepted: one of "
                          "them")
    return tuple(budgets), off[0][0] if off else None


def unwrapped(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the contents of a literal `extra_body` as its own.

    Raises:
        BudgetError: `extra_body` is no object, or names a field that the request has with another value.
    """
    inner = body.get(WRAPPER)
    rest = {name: value for name, value in body.items() if name != WRAPPER}
    if inner is None:
        return rest
    if not isinstance(inner, Mapping):
        raise BudgetError(f"{WRAPPER}: {shown(inner)} is not accepted; accepted: an object, or its contents in the "
                          "request itself")
    for name, value in inner.items():
        if rest.get(name) is not None and rest[name] != value:
            raise BudgetError(f"{name} and {WRAPPER}.{name} differ: {shown(rest[name])} and {shown(value)}; accepted: "
                              "one of them, or equal values")
    return {**rest, **inner}


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


def canonical(name: Any) -> str:
    """A name in small letters, its words joined by underscores."""
    return "_".join(_words(name)) if isinstance(name, str) else ""


@lru_cache(maxsize=1024)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name[:200]))


def decoded(value: Any) -> Any:
    """A value of a place of strings: what the string says in JSON, or the string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _sources(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The request itself and its places, each with the prefix of its names."""
    yield "", body
    for place in PLACES:
        entries = body.get(place)
        if isinstance(entries, Mapping):
            if place in TEXTS:
                entries = {name: decoded(value) for name, value in entries.items()}
            yield place + ".", entries


def _switches(source: Mapping[str, Any], where: str) -> Iterator[tuple[str, bool, bool]]:
    """Every switch of thinking: its name, whether it is on, and whether it is a boolean that templates read."""
    for name in ("enable_thinking", "thinking", "think", "enable_reasoning"):
        value = _boolean(source.get(name))
        if value is not None:
            yield where + name, value, name in ("enable_thinking", "thinking")
    thinking, reasoning = source.get("thinking"), source.get("reasoning")
    if isinstance(thinking, Mapping) and isinstance(thinking.get("type"), str):
        yield f"{where}thinking.type", thinking["type"] not in ("disabled", "none", "off"), False
    if source.get("thinking_mode") == "disabled":
        yield f"{where}thinking_mode", False, False
    for name in ("reasoning_effort", "think"):
        if source.get(name) == "none":
            yield f"{where}reasoning_effort" if name != "think" else f"{where}think", False, False
    if isinstance(reasoning, Mapping):
        for name in ("enabled", "enable"):
            value = _boolean(reasoning.get(name))
            if value is not None:
                yield f"{where}reasoning.{name}", value, False
        for name in ("effort", "reasoning_effort"):
            if reasoning.get(name) == "none":
                yield f"{where}reasoning.{name}", False, False


def _boolean(value: Any) -> bool | None:
    """A switch's value; None if it is none."""
    if isinstance(value, str):
        said = value.strip().lower()
        return True if said in ("true", "on", "yes", "enabled") else False if said in (
            "false", "off", "no", "disabled") else None
    return value if isinstance(value, bool) else None


def _refuse_unknown(source: Mapping[str, Any], where: str, known: Collection[str], outer: tuple[str, ...] = (),
                    depth: int = 0) -> None:
    """Raise BudgetError for a name that reads like a budget of thinking and is none of ours."""
    for name, value in source.items():
        if not isinstance(name, str) or value is None or is_budget(name):
            continue
        own = _words(name)
        words = (*outer, *own)
        nested = NESTED.get(canonical(name))
        if nested is not None and isinstance(value, Mapping):
            inside = {key: part for key, part in value.items() if canonical(key) != nested}
            _refuse_unknown(inside, f"{where}{name}.", (), words, depth + 1)
        elif (not where and name in PLACES) or (name in known and nested is None):
            continue
        elif _reads_like_a_budget(words, own, value):
            raise BudgetError(f"{where}{name}: {shown(value)} reads like a budget of thinking under a name that is not "
                              f"known; accepted: {', '.join(names())}")
        elif isinstance(value, Mapping) and depth < _DEPTH:
            _refuse_unknown(value, f"{where}{name}.", (), words, depth + 1)


def _reads_like_a_budget(words: tuple[str, ...], own: tuple[str, ...], value: Any) -> bool:
    """The rule: a word for thinking and a word for a limit, or nothing but `budget` and `tokens`, or a number under a
    word for thinking alone. A boolean is a switch, whatever its name is.

    Args:
        words: of the name, and of the objects that it stands in.
        own: of the name alone.
    """
    if isinstance(value, bool):
        return False
    said = frozenset(words)
    if isinstance(value, int | float) and words and said <= _THINKING:
        return True
    return bool(said & _THINKING and said & _LIMIT) or ("budget" in own and len(own) > 1 and _BARE.issuperset(own))
