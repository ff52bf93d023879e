"""What the tokenizer manager and the schedulers say to each other about ends that are asked for."""

from __future__ import annotations

from sglang.srt.managers.io_struct import BaseReq, hook_custom_types


class EndThinkingReqInput(BaseReq, kw_only=True):
    """Ask for the end of the thinking of the request `rid`.

    Attributes:
        reason: an Outcome.
        message: text forced before the end marker; None: the budget's own.
        number: which of the asker's messages this is; -1: nobody waits for an answer.
    """

    reason: int
    message: str | None = None
    number: int = -1


class EndThinkingReqOutput(BaseReq, kw_only=True):
    """What a scheduler answers.

    Attributes:
        number: of the message.
        ends: of each of its requests that the id names and that goes on: its own id; what the end came to, or None
            where it has no think budget; tokens of its thinking, so far as the scheduler knows.
        several: the id is one that may name several requests.
        response: the id stands for this one, of all choices of a response. Nothing was done.
    """

    number: int
    ends: list[tuple[str, str | None, int]]
    several: bool = False
    response: str | None = None


hook_custom_types(EndThinkingReqInput, EndThinkingReqOutput)
