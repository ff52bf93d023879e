"""A response as it grows over the calls: in token ids where the server returns them, else in text."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Sequence

from .request import Endpoint, Query
from .thinking import Thinking
from .tokens import Tokens, open_in_text
from .wire import Event, ServerError

_REPLACEMENT = "\ufffd".encode()


class Transcript(ABC):
    """The response's text, its thinking, and how much of the text is certain.

    Attributes:
        data: the text, in bytes.
        thinking: where it begins and ends.
        forced: texts that the client wrote.
        stopped_at: the stop string that ended it, if one was seen here.
    """

    def __init__(self, endpoint: Endpoint, query: Query) -> None:
        self.data = bytearray()
        self.thinking = Thinking(endpoint.markers)
        self.forced: list[str] = []
        self.stopped_at: str | None = None
        self._closing = (query.message, endpoint.end, endpoint.line_break)
        self._stops = [text.encode() for text in query.stops]
        self._taken = 0  # bytes handed out
        self._said: list[str] = []  # texts handed out
        self._fresh = 0  # where the text after the last forced one begins: stop strings do not reach back across it

    @abstractmethod
    def prompt(self) -> Sequence[int] | str:
        """The query's prompt and the response so far."""

    @abstractmethod
    def feed(self, event: Event) -> None:
        """Take in what an event adds."""

    @abstractmethod
    def end_call(self, tokens: int | None, cut: bool, met: str) -> int:
        """A call has ended.

        Args:
            tokens: how many it had, as the server says.
            cut: by its length.
            met: the start marker, if the call was to stop there and did.

        Returns:
            How many tokens it had.
        """

    @property
    @abstractmethod
    def token_ids(self) -> tuple[int, ...] | None:
        """Ids of the response; None if they are not known."""

    @property
    @abstractmethod
    def forced_tokens(self) -> int | None:
        """How many ids the client wrote; None if they are not known."""

    @abstractmethod
    def close(self) -> None:
        """Write what ends the thinking: the rest of a half-written end marker, else the message before it."""

    @property
    def _said_before(self) -> bool:
        """Whether thinking was closed before: the message, the first part of what closes it, is said once."""
        return bool(self.forced)

    def _rest_of_end(self) -> str:
        return self._closing[1].encode()[self.thinking.half_end :].decode()

    def _force(self, text: str) -> None:
        self.data += text.encode()
        self.thinking.force(text.encode())
        self.forced.append(text)
        self._fresh = len(self.data)

    def _cut_at_stop(self, added: int) -> None:
        """End at a stop string in the last bytes; one that began in an earlier call too, which no server sees."""
        for stop in self._stops:
            at = self.data.find(stop, max(self._fresh, len(self.data) - added - len(stop) + 1))
            if at >= 0:
                del self.data[at:]
                self.stopped_at = stop.decode()

    def take(self, final: bool) -> str:
        """Text that is certain and was not handed out yet; all of it if nothing more comes."""
        limit = len(self.data) - (0 if final else self._held())
        text, used = codecs.utf_8_decode(bytes(self.data[self._taken : limit]), "replace", final)
        self._taken += used
        self._said.append(text)
        return text

    @property
    def text(self) -> str:
        """Everything handed out."""
        return "".join(self._said)

    def _held(self) -> int:
        """Bytes at the end that may turn out to begin a stop string."""
        fresh = len(self.data) - self._fresh
        reaches = (k for s in self._stops for k in range(1, min(len(s) - 1, fresh) + 1) if self.data.endswith(s[:k]))
        return max(reaches, default=0)


class IdTranscript(Transcript):
    """In token ids: the next call's prompt begins with exactly the ids that the last call saw and wrote."""

    def __init__(self, endpoint: Endpoint, query: Query, tokens: Tokens) -> None:
        super().__init__(endpoint, query)
        self._tokens = tokens
        self._prompt = tokens.prompt(query.prompt, query.template)
        inside = tokens.open_in(self._prompt)
        if inside is not None:
            self.thinking.begin_inside(inside)
        self._closing_ids = [tokens.encode(text) for text in self._closing]
        self._ids: list[int] = []
        self._forced_tokens = 0
        self._counted = 0

    def prompt(self) -> list[int]:
        return self._prompt + self._ids

    def feed(self, event: Event) -> None:
        if event.ids is None and event.text:
            raise ServerError(200, "the reply holds no token ids; send_ids=False sends text to such a server")
        shown, ids = self._tokens.shown, event.ids or ()
        for n, i in enumerate(ids):
            piece = shown[i] if i < len(shown) else b""
            self._ids.append(i)
            if event.finish == "stop" and n == len(ids) - 1 and (event.matched == i or not piece):
                return  # EOS, or a stop token
            self.data += piece
            self.thinking.feed(piece, control=i in self._tokens.control_ids)
            self._cut_at_stop(len(piece))
            if self.stopped_at is not None:
                return

    def end_call(self, tokens: int | None, cut: bool, met: str) -> int:
        new = len(self._ids) - self._counted
        self._counted = len(self._ids)
        return new

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def forced_tokens(self) -> int:
        return self._forced_tokens

    def close(self) -> None:
        written = self.thinking.half_end
        if written and self._tokens.end_id is None:
            rest = self._rest_of_end()
            ids = [*self._rest_ids(written, rest), *self._closing_ids[2]]
            self._force(rest + self._closing[2])
        else:
            self._drop_half_character()
            ids = [i for part in self._closing_ids[self._said_before :] for i in part]
            self._force("".join(self._closing[self._said_before :]))
        self._ids += ids
        self._forced_tokens += len(ids)
        self._counted = len(self._ids)

    def _rest_ids(self, written: int, rest: str) -> list[int]:
        """The marker's own last ids where what is written ends between two of them."""
        offset = 0
        for n, i in enumerate(self._closing_ids[1]):
            if offset == written:
                return self._closing_ids[1][n:]
            offset += len(self._tokens.pieces[i])
        return self._tokens.encode(rest)

    def _drop_half_character(self) -> None:
        """Leave out of the text what the cut left of a character; the ids keep it."""
        tail = bytes(self.data[self._taken :])
        half = len(tail) - codecs.utf_8_decode(tail, "replace", False)[1]
        if half:
            del self.data[-half:]
            self.thinking.forget(half)


class TextTranscript(Transcript):
    """In text: the server encodes the next prompt anew, and may cut it differently around where calls meet."""

    def __init__(self, endpoint: Endpoint, query: Query) -> None:
        super().__init__(endpoint, query)
        prompt, tokens = query.prompt, endpoint.tokens
        if isinstance(prompt, str):
            self._prompt = prompt
        elif tokens is not None and not isinstance(prompt[0], int):
            self._prompt = tokens.chat_text(prompt, query.template)
        else:
            raise ValueError("prompt: token ids need an endpoint that sends ids; accepted: a text or chat messages")
        inside = open_in_text(self._prompt, endpoint.start, endpoint.end)
        if inside is not None:
            self.thinking.begin_inside(inside)
        self._begun = 0  # offset of the call's first byte

    def prompt(self) -> str:
        return self._prompt + self.data.decode()

    def feed(self, event: Event) -> None:
        if self.stopped_at is None:
            added = event.text.encode("utf-8", "replace")
            self.data += added
            self._cut_at_stop(len(added))

    def end_call(self, tokens: int | None, cut: bool, met: str) -> int:
        if tokens is None:
            raise ServerError(200, "the reply does not say how many tokens it has (no usage)")
        while cut and len(self.data) > self._begun and self.data.endswith(_REPLACEMENT):
            del self.data[-len(_REPLACEMENT) :]  # half a character
        self.thinking.feed(bytes(self.data[self._begun :]), tokens=tokens)
        if met:  # the server cut it off; nothing was thought after it
            self.data += met.encode()
            self.thinking.feed(met.encode())
        self._begun = len(self.data)
        return tokens

    @property
    def token_ids(self) -> None:
        return None

    @property
    def forced_tokens(self) -> None:
        return None

    def close(self) -> None:
        if self.thinking.half_end:
            self._force(self._rest_of_end() + self._closing[2])
        else:
            self._force("".join(self._closing[self._said_before :]))
        self._begun = len(self.data)

    def _held(self) -> int:
        return max(super()._held(), len(self.data) - len(self.data.rstrip(_REPLACEMENT)))
