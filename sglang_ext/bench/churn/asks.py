"""Random requests: every form of a budget, on every endpoint, with everything that may meet it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from .answers import Ask, Kind, Wish
from .served import Served

GENERATE, CHAT, COMPLETIONS = "/generate", "/v1/chat/completions", "/v1/completions"
KINDS: Sequence[Kind] = ("whole",) * 9 + ("stream",) * 6 + ("abort",) * 2 + ("end",) * 2 + ("leave",) * 2 + ("bad",)
MESSAGES = ("", "", "So: ", "\n\nNo time is left.\n", "Enough of this. What I have is this:\n", "Genug. ⏳ ")
STOPS = (".", "\n\n", " the", "=", "1", "answer", "o")
BIASES = (5, 20, 100)
"""What is added to the logit of an end that the model is to want: of thinking, or of the response."""
LONGEST_ABORT = 1.0
"""Seconds after which a request is aborted, or its thinking ended, at the latest."""
FEW = 8
CLOSING = 24
"""Tokens beside a message that closing a block takes at most: end marker and what follows it."""

Prompt = tuple[list[dict[str, Any]] | None, list[int]]
"""Messages, where the prompt is a conversation; and its ids."""


@dataclass
class Maker:
    """Makes the requests of a run: the same ones for the same seed.

    Attributes:
        model: name that the server serves.
        prompts: what is asked.
        max_tokens: most tokens of a response.
        extra: more fields of every body.
    """

    served: Served
    model: str
    prompts: Sequence[Prompt]
    max_tokens: int
    seed: int
    extra: dict[str, Any]

    def ask(self, number: int) -> Ask:
        """Request `number` of the run."""
        rng = Random(f"churn {self.seed} {number}")
        messages, ids = rng.choice(self.prompts)
        path = rng.choice((GENERATE, COMPLETIONS, CHAT, CHAT) if messages else (GENERATE, COMPLETIONS))
        kind = rng.choice(KINDS)
        kind = "whole" if kind in ("abort", "end") and path == COMPLETIONS else kind
        max_new = rng.randint(1, self.max_tokens) if rng.random() < 0.8 else rng.randint(1, min(FEW, self.max_tokens))
        choices = rng.randint(2, 3) if kind in ("whole", "stream", "leave") and rng.random() < 0.2 else 1
        params = self._sampling(rng, max_new, choices, path)
        if kind == "bad":
            budget, field = _bad(rng, self.served)
            wish = Wish(True)
        else:
            budget, wish = self._budget(rng, max_new)
            field = ""
        params |= budget
        body = self._body(path, messages, ids, params, stream=kind in ("stream", "leave"))
        if kind in ("abort", "end"):
            body["rid"] = f"churn-{self.seed}-{number}-{rng.getrandbits(32):08x}"
        if self.served.priorities:
            body["priority"] = rng.randint(0, 3)
        delay = rng.randint(0, 12) if kind == "leave" else LONGEST_ABORT * rng.random() ** 2
        return Ask(number, path, {**body, **self.extra}, kind, delay, wish, max_new, choices,
                   bool(params.get("ignore_eos")), field)

    def _sampling(self, rng: Random, max_new: int, choices: int, path: str) -> dict[str, Any]:
        params: dict[str, Any] = {"max_new_tokens" if path == GENERATE else "max_tokens": max_new,
                                  "temperature": rng.choice([0, 0, 0.7, 1.0, 1.3])}
        if choices > 1:
            params["n"] = choices
        if rng.random() < 0.2:
            params["stop"] = rng.sample([*STOPS, self.served.end.decode()], rng.randint(1, 2))
        if rng.random() < 0.15:
            params |= rng.choice([{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"frequency_penalty": 0.5}])
        if rng.random() < 0.05:
            params["ignore_eos"] = True
        elif self.served.ends and rng.random() < 0.25:
            params["logit_bias"] = {str(rng.choice(self.served.ends)): rng.choice(BIASES)}
        return params

    def _budget(self, rng: Random, max_new: int) -> tuple[dict[str, Any], Wish]:
        """A budget's fields, and what they ask for."""
        if rng.random() < 0.12:
            return {}, Wish()
        most = self._most(rng, max_new)
        if rng.random() < 0.4:
            return _spelled(rng.choice(_flat(self.served)), most), Wish(True, most)
        value: dict[str, Any] = {"max_tokens": most}
        top = max_new if most < 0 else most
        if rng.random() < 0.3:
            value["min_tokens"] = rng.randint(0, rng.choice((min(top, FEW), top)))
        if most >= 0 and rng.random() < 0.35:
            value["grace_tokens"] = rng.randint(0, most)
        if rng.random() < 0.6:
            value["message"] = rng.choice(MESSAGES)
        if "message" in value and rng.random() < 0.4:
            room = max_new - len(value["message"].encode()) - CLOSING
            value["answer_tokens"] = rng.randint(0, max(0, room))
        if rng.random() < 0.15:
            value["seconds"] = rng.choice([0, LONGEST_ABORT * rng.random() ** 2])
            value |= rng.choice([{}, {"since": "first_token"}, {"since": "arrival"}])
        if rng.random() < 0.15:
            value["loops"] = True
        # A budget that an object leaves out is the server's.
        if rng.random() < 0.1 and "grace_tokens" not in value and "min_tokens" not in value:
            del value["max_tokens"]
        return {"think_budget": value}, Wish(True, **{key: part for key, part in value.items() if key != "since"})

    def _most(self, rng: Random, max_new: int) -> int:
        kinds: list[Callable[[], int]] = [lambda: 0, lambda: rng.randint(1, FEW), lambda: rng.randint(1, FEW),
                                          lambda: rng.randint(0, max_new), lambda: rng.randint(0, 2 * max_new),
                                          lambda: -1]
        if self.served.ceiling is not None:
            return min(self.served.ceiling, rng.choice(kinds[:-1])())
        return rng.choice(kinds)()

    def _body(self, path: str, messages: list[dict[str, Any]] | None, ids: list[int], params: dict[str, Any], *,
              stream: bool) -> dict[str, Any]:
        if path == GENERATE:
            body: dict[str, Any] = {"input_ids": ids, "sampling_params": {**params, "skip_special_tokens": False}}
            return {**body, "stream": True} if stream else body
        body = {"model": self.model, **params}
        if path == COMPLETIONS:
            body |= {"prompt": ids, "return_token_ids": True, "skip_special_tokens": False}
        else:
            body["messages"] = messages
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if path == CHAT:
            body |= ({"return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True} if stream else
                     {"return_token_ids": True, "return_meta_info": True})
        return body


def _flat(served: Served) -> list[str]:
    """Spellings of the server's that every endpoint reads as an integer of the request's own."""
    known = ("think_budget", "reasoning.max_tokens")
    return [name for name in served.spellings if "." not in name or name in known] or ["think_budget"]


def _spelled(name: str, value: Any) -> dict[str, Any]:
    """A field, or an object with the field in it."""
    outer, dot, inner = name.partition(".")
    return {outer: {inner: value} if dot else value}


def _bad(rng: Random, served: Served) -> tuple[dict[str, Any], str]:
    """A budget that is none, and the name that its refusal has to hold."""
    name = rng.choice(_flat(served))
    values: list[Any] = [-2, 1.5, True, "many", [4], 2**40]
    if rng.random() < 0.6:
        return _spelled(name, rng.choice(values)), name.rpartition(".")[2]
    key, value = rng.choice([("min_tokens", -1), ("min_tokens", 5), ("grace_tokens", 9), ("message", 5),
                             ("answer_tokens", -4), ("max_token", 5), ("seconds", -1), ("seconds", "8"), ("loops", 1),
                             ("message", f"x{served.end.decode()}")])
    return {"think_budget": {"max_tokens": 4, key: value}}, key
