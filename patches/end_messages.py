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
        known: the request is one of this scheduler's and goes on.
        done: what the end came to; None: the request has no think budget.
        tokens: of its thinking, so far as the scheduler knows.
    """

    number: int
    known: bool
    done: str | None = None
    tokens: int = 0


hook_custom_types(EndThinkingReqInput, EndThinkingReqOutput)
