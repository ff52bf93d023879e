"""Scripted models that write as the families of sglang's reasoning parsers do, with their control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripted_model import Scripts, build_scripted_model

EOS = "<|stop|>"
THOUGHT = ["w1 ", "w2 ", "w3 ", "w4 ", "w5 ", "w6 "]
ANSWER = ["y1 ", "y2 "]


@dataclass(frozen=True)
class Shape:
    """How a model writes.

    Attributes:
        parser: sglang's reasoning parser.
        prompt: what its chat template ends in, before the character that chooses the script.
        opening: what the model writes to open a block; nothing where the prompt opens it.
        end: what ends a block.
        header: what follows a forced end.
        between: what stands between an end and the next opening.
        plain: pieces of the markers that are no control tokens.
    """

    parser: str
    prompt: str
    opening: Sequence[str]
    end: Sequence[str]
    header: Sequence[str] = ()
    between: Sequence[str] = ()
    plain: Sequence[str] = ()

    @property
    def answer(self) -> list[str]:
        """What the model says behind the header, before it stops: a model that cannot tell its channels apart says in
        both the same."""
        last = (*self.opening, *self.header, *self.end)[-1] if not self.header else self.header[-1]
        return list(THOUGHT) if self.opening and last == self.opening[-1] else list(ANSWER)

    @property
    def scripts(self) -> Scripts:
        """Thinks, stops while it thinks; answers. Where a prompt has opened a block: thinks a word, and ends."""
        behind = [*self.end, *self.header]
        return self._scripts([[behind[-1], *self.answer, EOS], ["1", *self.opening, *THOUGHT, EOS],
                              ["2", "n1 ", *behind]])

    @property
    def again(self) -> Scripts:
        """Thinks a word, ends, and thinks again, for ever."""
        return self._scripts([["1", *self.opening, "v1 ", *self.end, *self.between, *self.opening]])

    def _scripts(self, sequences: Sequence[Sequence[str]]) -> Scripts:
        turns = re.findall(r"<\|[a-z_]+\|>", self.prompt)
        control = dict.fromkeys((*self.opening, *self.end, *self.between, *self.header, *turns))
        return Scripts(
            sequences,
            added=[piece for piece in control if piece not in self.plain],
            eos=EOS,
        )

    def expected(self, budget: int) -> str:
        """The whole response to script 1 under a budget."""
        return "".join([*self.opening, *THOUGHT[:budget], *self.end, *self.header, *self.answer, EOS])


SHAPES = {
    "gpt-oss": Shape("gpt-oss", "<|start|>assistant", ["<|channel|>", "analysis", "<|message|>"], ["<|end|>"],
                     ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>"], ["<|start|>", "assistant"],
                     ("analysis", "assistant", "final")),
    "inkling": Shape("inkling", "<|end_message|>", ["<|message_model|>", "<|content_thinking|>"], ["<|end_message|>"],
                     ["<|message_model|>", "<|content_text|>"]),
    "muse": Shape("muse", "<|start|>assistant", [" to=self", "<|message|>"], ["<|eom|>"],
                  ["<|start|>", "assistant", " to=user", "<|message|>"], ["<|start|>", "assistant"],
                  (" to=self", "assistant", " to=user")),
    "beam": Shape("beam", "<|start|>assistant", ["<|channel|>", "analysis", "<|message|>"],
                  ["<|end|>", "<|start|>", "assistant"], ["<|channel|>", "final", "<|message|>"],
                  plain=("analysis", "assistant", "final")),
    "cohere_command4": Shape("cohere_command4", "<|CHATBOT|><|START_THINKING|>", [], ["<|END_THINKING|>"],
                             ["<|START_TEXT|>"]),
    "kimi_k3": Shape("kimi_k3", "<|open|>", ["<|open|>", "think", "<|sep|>"], ["<|close|>", "think", "<|sep|>"],
                     ["<|open|>", "response", "<|sep|>"], plain=("think", "response")),
    "gemma4": Shape("gemma4", "<|turn>model\n", ["<|channel>", "thought\n"], ["<channel|>"], plain=("thought\n",)),
    "apertus2509": Shape("apertus2509", "<|assistant_start|>", ["<|inner_prefix|>"], ["<|inner_suffix|>"]),
    "mistral": Shape("mistral", "[/INST]", ["[THINK]"], ["[/THINK]"]),
    "kimi": Shape("kimi", "<|im_middle|>", ["◁think▷"], ["◁/think▷"]),
}


def build(folder: Path, shape: Shape, scripts: Scripts | None = None) -> Path:
    """Write checkpoint and tokenizer into `folder`."""
    template = ("{% for m in messages %}{{ '<|turn|>' + m['content'] }}{% endfor %}{{ '" + shape.prompt.replace(
        "\n", "\\n") + "' + messages[-1]['content'] }}")
    return build_scripted_model(folder, scripts or shape.scripts, template)
