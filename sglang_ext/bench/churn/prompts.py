"""What is asked: conversations and plain prompts, with a block open at their end and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import BenchError
from ..workload import thoughtful
from .asks import Prompt
from .served import Served

QUESTIONS = 64
ACCEPTED = 'accepted: {"messages": [...]}, {"prompt": "text"} or {"prompt": [ids]}'


def prompts(served: Served, tokenizer: Any, dataset: Path | None, seed: int) -> list[Prompt]:
    """The prompts of a run.

    A conversation is sent to the chat endpoint as it is, and to the others as its template renders it; there also with
    the start marker at its end, so that every model thinks.

    Raises:
        BenchError: a line of the data set is no prompt, or there is none.
    """
    lines = list(_lines(dataset)) if dataset else [
        {"messages": task.messages} for task in thoughtful(QUESTIONS, f"churn {seed}")]
    found = [prompt for line in lines for prompt in _made(served, tokenizer, line)]
    if not found:
        raise BenchError(f"--dataset: {dataset} has no line; {ACCEPTED}")
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            prompt = value.get("prompt")
            good = isinstance(value.get("messages"), list) or isinstance(prompt, str) or (
                isinstance(prompt, list) and all(isinstance(i, int) for i in prompt))
        except (json.JSONDecodeError, AttributeError):
            good = False
        if not good:
            raise BenchError(f"--dataset: line {number} of {path} is not accepted; {ACCEPTED}")
        yield value


def _made(served: Served, tokenizer: Any, line: dict[str, Any]) -> Iterator[Prompt]:
    prompt, messages = line.get("prompt"), line.get("messages")
    if isinstance(prompt, list):
        yield None, prompt
    elif prompt is not None:
        yield None, _ids(tokenizer, prompt)
    elif tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield messages, _ids(tokenizer, text)
        if served.start not in text.encode():
            yield None, _ids(tokenizer, text + served.start.decode() + "\n")
    else:
        raise BenchError(f"--dataset: the model has no chat template for {messages!r:.60}; accepted: lines of "
                         '{"prompt": ...}')


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
