"""One streamed chat completion, and when its tokens came.

sglang's own `bench_serving` joins thinking and answer to one text, so that the time to the first token of the answer is
not to be had from it; the fields that both have are named as there (`ttft`, `latency`, `prompt_len`, `output_len`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .options import UNLIMITED

THOUGHTS = ("reasoning_content", "reasoning")
"""What servers call a delta of the thinking."""
MARKERS = ("<think>", "</think>")
DATA = b"data:"


@dataclass
class Stream:
    """What has come of a response. Times are in seconds since it was sent.

    Attributes:
        pieces: of each piece that says so: when it came, and how many tokens have come with it.
    """

    ttft: float | None = None
    answer_ttft: float | None = None
    thought: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    pieces: list[tuple[float, int]] = field(default_factory=list)

    def feed(self, line: bytes, now: float) -> None:
        """Take one line of the event stream.

        Raises:
            ValueError: the server reports an error, or sends what is no JSON.
        """
        line = line.strip()
        if not line.startswith(DATA):
            return
        data = line[len(DATA) :].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ValueError(str(chunk["error"]))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self._delta(choice.get("delta") or {}, now)
            self.finish = choice.get("finish_reason") or self.finish
        if chunk.get("choices") and self.usage.get("completion_tokens"):
            self.pieces.append((now, self.usage["completion_tokens"]))

    def _delta(self, delta: dict[str, Any], now: float) -> None:
        thought = next((delta[name] for name in THOUGHTS if delta.get(name)), "")
        answer = delta.get("content") or ""
        if (thought or answer) and self.ttft is None:
            self.ttft = now
        if thought:
            self.thought.append(thought)
        if answer:
            self.answer.append(answer)
            if answer.strip() and self.answer_ttft is None:  # the line break before an answer is none of it
                self.answer_ttft = now

    def row(self, budget: int, latency: float) -> dict[str, Any]:
        """The response as a row of results.

        Args:
            budget: what it was asked with, in tokens.
            latency: seconds from the request to the end.

        Returns:
            Times in seconds, lengths in tokens. `source` says where the thinking's length is from: `server`, from ids;
            `usage`, the API's count, the end's text included; `chunks`, pieces of the stream, where nothing better was
            sent. An outcome that the server does not tell is concluded from the length.
        """
        text = "".join(self.answer)
        output = self.usage.get("completion_tokens")
        details = self.usage.get("completion_tokens_details") or {}
        reasoning, source = details.get("reasoning_tokens"), "usage"
        if reasoning is None or (not reasoning and self.thought):
            reasoning, source = len(self.thought), "chunks"
        answer_len = len(self.answer) if source == "chunks" or output is None else output - reasoning
        think = self.usage.get("think") or {}
        if "outcome" in think:
            source = "server"
        thought = think.get("tokens", reasoning)
        return {"ttft": self.ttft, "answer_ttft": self.answer_ttft, "latency": latency,
                "prompt_len": self.usage.get("prompt_tokens"),
                "output_len": output if output is not None else len(self.thought) + len(self.answer),
                "answer_len": answer_len, "thought": thought, "forced": think.get("forced_tokens"),
                "outcome": think.get("outcome") or self._outcome(budget, thought, text), "source": source,
                "finish": self.finish, "empty": not text.strip(),
                "marker": any(marker in text for marker in MARKERS), "answer": text.strip()[:200]}

    def _outcome(self, budget: int, thought: int, text: str) -> str:
        if not thought:
            return "none"
        if self.finish == "length" and not text.strip():
            return "open"
        return "forced" if budget != UNLIMITED and thought >= budget else "natural"
