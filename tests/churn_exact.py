"""What the scripted models answer to a request of `bench churn`, id by id: their next token is known, and the
rescanning oracle knows what a budget makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from block_scanner import Delimiters
from budget_oracle import Rules, View, replay, take
from scripted_model import EOS, TURN, Scripts, byte_level
from transformers import AutoTokenizer

from sglang_ext.bench.churn.answers import Answer, Ask
from sglang_ext.bench.churn.blocks import opens
from sglang_ext.bench.churn.served import Served
from sglang_ext.vocab import token_bytes

OPEN = f"{TURN}<think>\n"
UNKNOWN = ("frequency_penalty", "ignore_eos", "logit_bias")
"""With these, what the model writes is not simulated."""


class Exact:
    """The answers of one scripted model, on a server without a stop message.

    Args:
        default: the server's budget.
    """

    def __init__(self, folder: Path, scripts: Scripts, default: int = -1) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.scripts, self.default = scripts, default
        self.pieces = token_bytes(self.tokenizer)
        self.compared = 0

    def id_of(self, piece: str) -> int:
        known: Mapping[str, int] = self.tokenizer.get_vocab()
        return known[piece] if piece in known else known[byte_level(piece)]

    @cached_property
    def successors(self) -> dict[int, int]:
        pairs = [(self.id_of(a), self.id_of(b)) for sequence in self.scripts.sequences for a, b in pairwise(sequence)]
        return dict(reversed(pairs))  # the first one stays

    def dataset(self, path: Path, starts: Sequence[tuple[str, str]], messages: Sequence[str] = ()) -> Path:
        """Write prompts: a text and the piece that the model goes on from, and conversations."""
        lines = [{"prompt": [*self.tokenizer.encode("context " * n + text), self.id_of(piece)]}
                 for text, piece in starts for n in range(3)]
        talks = [{"messages": [{"role": "user", "content": "x" * n + said}]} for said in messages for n in range(3)]
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *talks]))
        return path

    def faults(self, served: Served, ask: Ask, answer: Answer) -> list[str]:
        """Where an answer is another than it must be, as far as that is known."""
        params = ask.body.get("sampling_params", ask.body)
        opened = opens(served, answer.prompt)
        if params["temperature"] or any(name in params for name in UNKNOWN) or len(opened) > 1 or answer.status != 200:
            return []
        expected, whole = self.respond(ask, answer.prompt, opened[0])
        found = []
        for choice in answer.choices:
            cut = choice.finish == "abort" or isinstance(choice.matched, str) or not whole
            known = min(len(choice.ids), len(expected.output)) if cut else None
            self.compared += 1
            if choice.ids[:known] != expected.output[:known]:
                found.append(f"exact: {choice.ids} instead of {expected.output}")
            reported = [(t["tokens"], t["forced_tokens"], t["outcome"]) for t in [choice.think] if t]
            if not cut and reported not in ([], [(expected.used, expected.forced, expected.outcome)]):
                found.append(f"exact: {choice.think} instead of {expected.used, expected.forced, expected.outcome}")
        return found

    def respond(self, ask: Ask, prompt: Sequence[int], opened: bool) -> tuple[View, bool]:
        """The response as far as it is known, and whether that is all of it."""
        view, chosen, eos = replay(self.rules(ask, opened), []), list(prompt), self.id_of(EOS)
        while len(view.output) < ask.max_new and eos not in view.output:
            token = self.successors.get((view.output or chosen)[-1], eos)
            if not view.pending and token in view.lost():
                return view, False
            take(view, token)
        return view, True

    def rules(self, ask: Ask, opened: bool) -> Rules:
        wish, end = ask.wish, [self.id_of(p) for p in ("</", "think", ">")]
        most = self.default if wish.max_tokens is None else wish.max_tokens
        message, reserve = self.tokenizer.encode(wish.message or ""), wish.answer_tokens
        if reserve is None:  # an eighth, where the thinking has a limit and more than its end and the message have room
            reserve = 0 if most < 0 or ask.max_new <= len(end) + len(message) else max(1, min(512, ask.max_new // 8))
        last = max(0, ask.max_new - reserve - len(end) - len(message)) if reserve else float("inf")
        most = min(float("inf") if most < 0 else most, last)
        grace = most - wish.grace_tokens if wish.grace_tokens and most < float("inf") else float("inf")
        control = frozenset(self.id_of(piece) for piece in (TURN, EOS))
        delimiters = Delimiters(b"<think>", b"</think>", self.pieces, [self.id_of(EOS)], control=control)
        return Rules(delimiters, [end], (), "inside" if opened else "outside", most, int(min(wish.min_tokens, most)),
                     grace, last, message, most < float("inf") or wish.min_tokens > 0 or wish.loops)


def watch(monkeypatch: Any, exact: Exact) -> None:
    """Have `bench churn` check each answer against this model's, too."""
    from sglang_ext.bench import churn

    original = churn.violations

    def both(served: Served, ask: Ask, answer: Answer, seen: Any) -> list[str]:
        unknown = ask.kind in ("bad", "leave", "end") or ask.wish.seconds is not None
        known = [] if unknown else exact.faults(served, ask, answer)
        return [*original(served, ask, answer, seen), *known]

    monkeypatch.setattr(churn, "violations", both)
