"""What a request of an endpoint says about its thinking, beside its budget.

It is noted where the request becomes sampling parameters, and resolved where the prompt's ids are known. The response's
parser reads the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_ext.budget import service
from sglang_ext.budget.families import Implied
from sglang_ext.budget.prompt import Request, Start

ASKED = "think_asked"
"""Key in sampling parameters, as long as they are in the process that serves HTTP."""
REQUEST_KEY = "think_request"
"""Key in `custom_params` on the way to the scheduler."""
ARRIVED_KEY = "think_arrived"
"""The same, for when a request with a deadline came to the server, in seconds since the epoch."""
DECLARING = ("root", "system", "developer")
"""Roles of messages that may declare tools, as sglang has them."""
_PRIVATE = "_think_asked"


@dataclass
class Asked:
    """What a request says.

    Attributes:
        parsed: sglang's reasoning parser reads the response.
        tools: the model may call tools.
        prefilled: the prompt ends in a message of the assistant's that the response goes on with.
        request, start: the result of `resolve`; None for a request without a budget.
    """

    parsed: bool = False
    tools: bool = False
    prefilled: bool = False
    request: Request | None = None
    start: Start | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Asked:
        return self  # copies of the parameters share what `resolve` finds

    @property
    def begins_with_the_answer(self) -> bool:
        """Whether the prompt holds a closed block, or a message that goes on outside one."""
        return self.start is not None and (self.start.closed or (self.prefilled and not self.start.open))

    def resolve(self, thinks: bool, grammar: bool, input_ids: list[int]) -> Request:
        """Find out how the response of a request with a budget starts.

        Args:
            thinks: thinking is switched on.
            grammar: a grammar waits for the end of the thinking.
            input_ids: the prompt.
        """
        admission = service.current()
        family = admission.family
        implied = family.implied is Implied.ALWAYS and self.parsed
        waits = grammar and not family.anywhere and not family.openings
        implied |= thinks and (family.implied is not Implied.NEVER or waits)
        self.request = Request(self.tools, implied and not self.prefilled)
        self.start = admission.start(input_ids, self.request)
        return self.request


def note(request: Any, params: dict[str, Any], parsed: bool) -> dict[str, Any]:
    """Sampling parameters with what the request says; the request keeps it too."""
    asked = Asked(parsed, has_tools(request), continues_a_message(request))
    private = getattr(request, "__pydantic_private__", None)
    if private is not None:
        private[_PRIVATE] = asked
    return {**params, ASKED: asked}


def asked_of(request: Any) -> Asked | None:
    """What was noted of a request."""
    private = getattr(request, "__pydantic_private__", None)
    return private.get(_PRIVATE) if private is not None else None


def has_tools(request: Any) -> bool:
    """Whether the model may call tools in its response: the request's, or those that one of its messages declares."""
    messages = getattr(request, "messages", None) or ()
    declared = (m for m in messages if getattr(m, "role", None) in DECLARING and getattr(m, "tools", None))
    known = bool(getattr(request, "tools", None)) or any(declared)
    return known and getattr(request, "tool_choice", None) != "none"


def continues_a_message(request: Any) -> bool:
    """Whether the response goes on with the last message. sglang does so only with an assistant's, of text."""
    messages = getattr(request, "messages", None)
    if not messages or not getattr(request, "continue_final_message", False):
        return False
    last = messages[-1]
    role, content = (last.get(name) if isinstance(last, dict) else getattr(last, name, None)
                     for name in ("role", "content"))
    return role == "assistant" and isinstance(content, str)
