"""What a double query is made of, checked; and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ..budget.byte_rules import Markers
from ..budget.contract import STOP_MESSAGE as MESSAGE
from ..budget.families import FAMILIES, PLAIN, Family
from .thinking import UNLIMITED
from .tokens import Prompt, Tokens, kind_of

START, END = PLAIN.start, PLAIN.end
MAX_TOKENS = 1024
APIS = {"generate": "/generate", "completions": "/v1/completions"}
MINIMUM = ("min_new_tokens", "min_tokens")  # sglang's name, and the one of completions
Api = Literal["generate", "completions"]

_ONE_RESPONSE = "one response is made of several calls; accepted: 1, or leave it out"
_GRAMMAR = "a grammar cannot go on from one call to the next; accepted: leave it out"
_OWN = "it is an argument of its own; accepted: leave it out"
_NOT_JOINED = "what it returns is not joined over the calls; accepted: leave it out"
_REFUSED = {
    **dict.fromkeys(("prompt", "text", "input_ids", "model", "max_tokens", "max_new_tokens", "stream",
                     "stream_options", "think_budget"), _OWN),
    **dict.fromkeys(("regex", "json_schema", "ebnf", "structural_tag", "response_format"), _GRAMMAR),
    **dict.fromkeys(("logprobs", "echo", "suffix", "return_token_ids", "return_hidden_states"), _NOT_JOINED),
    "stop_regex": "it cannot be followed over the calls; accepted: `stop`",
    "no_stop_trim": "stop strings are always cut off; accepted: leave it out",
}


@dataclass(frozen=True)
class Endpoint:
    """A server and the model on it. Make one and keep it: the tokenizer is looked at once.

    Attributes:
        url: address without the API's path.
        api: sglang's `/generate`, or OpenAI's `/v1/completions`.
        model: name for `/v1/completions`.
        tokenizer: from transformers. With it prompts are sent as token ids, which is exact; without it as text.
        send_ids: false sends text in spite of a tokenizer, to a server that does not return ids.
        start, end, line_break: the model's markers, and what its chat template writes after the end.
        family: instead of start and end, the name that sglang's `--reasoning-parser` has for the model's family.
        headers: sent with every call, for an API key.
        timeout: seconds to wait for the next bytes of a reply; None waits for ever.
    """

    url: str
    api: Api = "generate"
    model: str | None = None
    tokenizer: Any = None
    send_ids: bool = True
    start: str = START
    end: str = END
    line_break: str = "\n\n"
    family: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = 600

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not accepted; accepted: http://... or https://...")
        if self.api not in APIS:
            raise ValueError(f"api: {self.api!r} is not accepted; accepted: {', '.join(APIS)}")
        if not self.start or not self.end or self.start == self.end:
            raise ValueError(f"start, end: {self.start!r} and {self.end!r} are not accepted; accepted: two texts that "
                             "differ")
        if self.family is not None:
            self._take_markers(self.family)

    def _take_markers(self, name: str) -> None:
        known = {family for family, row in FAMILIES.items() if is_a_pair_of_tags(row)}
        if name not in known:
            raise ValueError(f"family: {name!r} is not accepted: what it writes is not known, or no pair of tags; "
                             f"accepted: {', '.join(sorted(known))}")
        row = FAMILIES[name]
        if (self.start, self.end) not in ((START, END), (row.start, row.end)):
            raise ValueError(f"start, end: {self.start!r} and {self.end!r} are not those of the family {name}; "
                             "accepted: leave them out")
        object.__setattr__(self, "start", row.start)
        object.__setattr__(self, "end", row.end)

    @cached_property
    def markers(self) -> Markers:
        """What delimits thinking."""
        row = FAMILIES[self.family] if self.family is not None else replace(PLAIN, start=self.start, end=self.end)
        return Markers.of(row, self.line_break)[0]

    @property
    def address(self) -> str:
        """Where calls go."""
        return self.url.rstrip("/") + APIS[self.api]

    @cached_property
    def tokens(self) -> Tokens | None:
        """The tokenizer; None without one."""
        return None if self.tokenizer is None else Tokens(self.tokenizer, self.start, self.end)


@dataclass(frozen=True)
class Query:
    """One prompt and its limits.

    Attributes:
        think_budget: most tokens the model may choose inside thinking, its own end marker included; -1 = no limit.
        max_tokens: most tokens the model may choose in all; forced text comes on top.
        message: what is written before the end marker when the budget closes the thinking.
        params: sampling parameters under the server's own names, sent with every call.
        body: fields of the request beside them, sent with every call.
        template: more arguments of the chat template.
    """

    prompt: Prompt
    think_budget: int
    max_tokens: int = MAX_TOKENS
    message: str = MESSAGE
    params: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def check(self, endpoint: Endpoint) -> None:
        """Raise ValueError for what is not accepted: it names the field, the value and what is accepted."""
        _count("think_budget", self.think_budget, UNLIMITED)
        _count("max_tokens", self.max_tokens, 1)
        if kind_of(self.prompt) != "text" and endpoint.tokenizer is None:
            raise ValueError("prompt: token ids and chat messages need the endpoint's tokenizer; accepted without one: "
                             "a text")
        if endpoint.end in self.message:
            raise ValueError(f"message: {self.message!r} holds the end marker, which is added by itself; accepted: "
                             "text without it")
        self._check_fields()
        for text in self.stops:
            if endpoint.start in text or endpoint.end in text:
                raise ValueError(f"params.stop: {text!r} holds a marker of the thinking; accepted: texts without")
        for name in MINIMUM:
            if self.params.get(name) is not None:
                _count(f"params.{name}", self.params[name], 0, self.max_tokens)

    def _check_fields(self) -> None:
        """Raise ValueError for parameters and fields that cannot go with several calls."""
        for name in ("n", "best_of"):
            if self.params.get(name) not in (None, 1):
                raise ValueError(f"params.{name}: {self.params[name]!r} is not accepted: {_ONE_RESPONSE}")
        for where, fields, refused in (("params", self.params, _REFUSED),
                                       ("body", self.body, {**_REFUSED, "sampling_params": _OWN})):
            for name, reason in refused.items():
                if fields.get(name) is not None:
                    raise ValueError(f"{where}.{name}: {fields[name]!r} is not accepted: {reason}")

    @property
    def min_tokens(self) -> int:
        """Fewest tokens before EOS, over all calls."""
        return max(self.params.get(name) or 0 for name in MINIMUM)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        stop = self.params.get("stop") or []
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) and t for t in texts):
            raise ValueError(f"params.stop: {stop!r} is not accepted; accepted: a text or a list of texts, not empty")
        return list(texts)


def is_a_pair_of_tags(row: Family) -> bool:
    """Whether a client can follow the family: one start and one end marker, and sglang's parser reads no more."""
    return not (row.protocol or row.openings or row.more or row.found or row.shared_end)


def _count(field_name: str, value: Any, lowest: int, highest: int | None = None) -> None:
    no_limit = " (no limit)" if lowest == UNLIMITED else ""
    accepted = f"accepted: an integer from {lowest}{no_limit} {'up' if highest is None else f'to {highest}'}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{field_name}: {value!r} is of type {type(value).__name__}; {accepted}")
    if value < lowest or (highest is not None and value > highest):
        raise ValueError(f"{field_name}: {value} is out of range; {accepted}")


@dataclass(frozen=True)
class Response:
    """What all calls came to, as one response. Counts are in tokens.

    Attributes:
        text: everything after the prompt: thinking, forced text, markers, answer; stop strings and EOS cut off.
        reasoning, answer: the inside of the thinking, and what is outside, without line feeds around them.
        token_ids: ids of the whole response, forced ones included; None where only text was sent.
        think_tokens: chosen by the model inside thinking, its own end marker included; None if the thinking ended
            somewhere within a call whose ids are not known.
        completion_tokens: chosen by the model, over all calls.
        forced_text: written by the client.
        forced_tokens: its length; None where only text was sent.
        outcome: `natural`, the model ended its thinking; `forced`, the budget did; `open`, the response ended while
            thinking; `none`, there was no thinking.
        finish_reason: `stop` or `length`.
        matched_stop: stop string or token id, where the server tells.
        prompt_tokens: of the first call.
        cached_tokens: how much of the last call's prompt the server had in its prefix cache; None with one call, or if
            the server does not tell.
        calls: how many there were.
        think: what a server with a budget of its own says about the last call; None if it says nothing.
    """

    text: str
    reasoning: str
    answer: str
    token_ids: tuple[int, ...] | None
    think_tokens: int | None
    completion_tokens: int
    forced_text: str
    forced_tokens: int | None
    outcome: Literal["none", "natural", "forced", "open"]
    finish_reason: str
    matched_stop: int | str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    calls: int
    think: Mapping[str, Any] | None = None
