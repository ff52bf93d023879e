"""What was asked of a server, and what it answered, as far as the contract speaks of it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["whole", "stream", "abort", "end", "leave", "bad"]
"""How a request is made: for a whole response, as a stream, aborted after a while, its thinking ended after a while,
left in the middle of its stream; or with a budget that must be refused."""


@dataclass(frozen=True)
class Wish:
    """The budget of a request, in tokens; None where the server's own value holds.

    Attributes:
        given: whether the request has a budget.
        message: text written before the end marker.
        answer_tokens: part of the response kept for the answer.
        loops: loops are to end.
        seconds: the thinking may end at any place, because its time is up.
    """

    given: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    grace_tokens: int = 0
    message: str | None = None
    answer_tokens: int | None = None
    loops: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        number: its place in the run.
        delay: seconds until it, or its thinking, is ended, or chunks after which its client leaves.
        wish: its budget.
        max_new: most tokens of each response.
        choices: how many responses are asked for.
        field: name that the refusal of a bad budget has to hold.
    """

    number: int
    path: str
    body: dict[str, Any]
    kind: Kind = "whole"
    delay: float = 0
    wish: Wish = field(default_factory=Wish)
    max_new: int = 0
    choices: int = 1
    ignore_eos: bool = False
    field: str = ""

    def curl(self, url: str) -> str:
        """The request as a line for a shell."""
        return f"curl -sN {url}{self.path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(self.body))}"


@dataclass
class Choice:
    """One response.

    Attributes:
        ids: its tokens.
        text: what the client reads of it, the thinking included.
        reasoning: the part that a reasoning parser calls thinking; None where there is no parser at work.
        finish: `stop`, `length` or `abort`; None while it is not finished.
        matched: the stop string or the id that ended it.
        think: the report of its budget.
        reasoning_tokens: the server's count for this response; None where it tells only their sum.
        retractions: how often it was taken off its slot.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str | None = None
    finish: str | None = None
    matched: int | str | None = None
    think: dict[str, Any] | None = None
    reasoning_tokens: int | None = None
    completion_tokens: int | None = None
    retractions: int = 0


@dataclass
class Answer:
    """What came back.

    Attributes:
        status: of HTTP; 0 where the connection broke.
        error: the body of a refusal.
        prompt: ids of the prompt.
        usage: of the endpoints that have it.
        faults: what was wrong with its form.
    """

    status: int = 0
    error: str = ""
    choices: list[Choice] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    faults: list[str] = field(default_factory=list)
