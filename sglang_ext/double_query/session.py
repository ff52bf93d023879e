"""One double query from its first call to its response, without any input or output of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .request import Endpoint, Query, Response
from .thinking import Ask, Close, Standing, next_step, split
from .transcript import IdTranscript, TextTranscript, Transcript
from .wire import Call, Event, ServerError


class Session:
    """Says what to call and takes in what comes back.

    `next_call` is the next call; `feed` takes each event of its reply, and `end_call` follows the last one. `take` is
    text that has become certain since it was last asked. After the last call, `response`.

    Raises:
        ValueError: by the constructor, for what is not accepted.
        ServerError: by `feed` and `end_call`, for a reply that cannot be used.
    """

    def __init__(self, endpoint: Endpoint, query: Query) -> None:
        query.check(endpoint)
        self.endpoint = endpoint
        self.query = query
        self._transcript: Transcript
        if endpoint.tokens is not None and endpoint.send_ids:
            self._transcript = IdTranscript(endpoint, query, endpoint.tokens)
        else:
            self._transcript = TextTranscript(endpoint, query)
        self._done = False
        self._calls = 0
        self._generated = 0
        self._ask = Ask(0)
        self._finish: str | None = None  # of the call under way, then of the last one
        self._matched: int | str | None = None
        self._tokens: int | None = None  # of the call under way, as the server says
        # A server that stops at the start marker has to say so; those that return ids do.
        self._tells_match = endpoint.api == "generate" or isinstance(self._transcript, IdTranscript)
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._think: Mapping[str, Any] | None = None

    def next_call(self) -> Call | None:
        """The next call; None if the response is complete. Closes the thinking first where the budget says so."""
        step = self._step()
        if isinstance(step, Close):
            self._transcript.close()
            step = self._step()
        if not isinstance(step, Ask):
            self._done = True
            return None
        self._ask = Ask(step.max_tokens, step.guarded and self._tells_match)
        self._calls += 1
        self._finish = self._matched = self._tokens = None
        stops = [*self.query.stops, *([self.endpoint.start] if self._ask.guarded else [])]
        least = max(0, self.query.min_tokens - self._generated)
        return Call(self._transcript.prompt(), step.max_tokens, min(step.max_tokens, least), stops)

    def _step(self) -> Ask | Close | None:
        if self._done:
            return None
        thinking = self._transcript.thinking
        return next_step(self.query.think_budget, Standing(
            left=self.query.max_tokens - self._generated,
            used=thinking.used,
            open=thinking.open,
            opening=thinking.half_start or not (self._calls or self._transcript.forced),
        ))

    def feed(self, event: Event) -> None:
        """Take in an event of the call under way."""
        self._tells_match = self._tells_match or event.tells_match
        if event.prompt_tokens is not None and self._calls == 1:
            self._prompt_tokens = event.prompt_tokens
        if event.cached_tokens is not None:
            self._cached_tokens = event.cached_tokens
        self._think = event.think or self._think
        if event.tokens is not None:
            self._tokens = event.tokens
        if event.finish is not None:
            self._finish, self._matched = event.finish, event.matched
        self._transcript.feed(event)

    @property
    def enough(self) -> bool:
        """Whether the rest of the reply need not be read: a stop string was seen that the server does not see."""
        return self._transcript.stopped_at is not None and self._transcript.token_ids is not None

    def end_call(self) -> None:
        """The reply to the call under way has been read, to its end or as far as it was needed."""
        transcript, start = self._transcript, self.endpoint.start
        if self._finish is None and not self.enough:
            raise ServerError(200, "the reply broke off before the call had finished")
        met = start if self._ask.guarded and self._matched == start else ""
        self._generated += transcript.end_call(self._tokens, self._finish == "length", met)
        if transcript.stopped_at is not None:
            self._finish, self._matched = "stop", transcript.stopped_at
        self._done = self._finish == "stop" and (not met or transcript.stopped_at is not None)

    def take(self) -> str:
        """Text that is certain and was not handed out yet."""
        return self._transcript.take(self._done)

    def response(self) -> Response:
        """All calls as one response."""
        transcript = self._transcript
        transcript.take(final=True)
        thinking = transcript.thinking
        inside, outside = split(bytes(transcript.data), thinking.blocks)
        return Response(
            text=transcript.text,
            reasoning=inside.decode("utf-8", "replace").strip("\n"),
            answer=outside.decode("utf-8", "replace").strip("\n"),
            token_ids=transcript.token_ids,
            think_tokens=thinking.used if thinking.exact else None,
            completion_tokens=self._generated,
            forced_text="".join(transcript.forced),
            forced_tokens=transcript.forced_tokens,
            outcome=self._outcome(),
            finish_reason="stop" if self._finish == "stop" and self._matched != self.endpoint.start else "length",
            matched_stop=self._matched if self._matched != self.endpoint.start else None,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens if self._calls > 1 else None,
            calls=self._calls,
            think=self._think,
        )

    def _outcome(self) -> Literal["none", "natural", "forced", "open"]:
        if self._transcript.forced:
            return "forced"
        if not self._transcript.thinking.blocks:
            return "none"
        return "open" if self._transcript.thinking.open else "natural"
