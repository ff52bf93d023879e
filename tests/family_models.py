"""Scripted models that write as the families of sglang's reasoning parsers do, with their control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripted_model import TURN, Scripts, build_scripted_model

EOS = "<|stop|>"
THOUGHT = ["w1 ", "w2 ", "w3 ", "w4 ", "w5 ", "w6 "]
ANSWER = ["y1 ", "y2 "]
STOPS, ENDS, CALLS, AGAIN, CALLS_INSIDE = "~^@&;"
"""A character of the prompt says what the model does: it wants to stop while it thinks, ends its thinking, calls a tool
then, thinks twice, calls a tool in a block that has no end."""
CONTROL = re.compile(r"</?[^<>\s]+>|\[/?[A-Z_]+\]|◁/?think▷|\uff5cDSML\uff5c|\]<\]minimax\[>\[")
"""What is one id of its own."""


@dataclass(frozen=True)
class Shape:
    """How a model writes.

    Attributes:
        parser, tools: sglang's reasoning parser and tool parser.
        prompt: what its chat template ends in.
        opening, end: what opens a block, and ends it.
        prompted: the prompt ends in the opening.
        header: what follows a forced end.
        between: what stands between an end and the next opening.
        call: how the model calls `look` with `n` 1, behind the end.
        inside: the same for a call in a block that has no end; empty where one cannot be.
        calls_apart: no tool parser is served: its grammar is of the published tokenizer's ids (inkling), or holds every
            response from the first token on, which this model does not know how to go along with (beam).
        body: what a chat says beside its messages.
        settings: of the tokenizer.
        control: further control tokens.
    """

    parser: str
    prompt: str
    opening: Sequence[str]
    end: Sequence[str]
    header: Sequence[str] = ()
    between: Sequence[str] = ("so\n",)
    tools: str = ""
    call: Sequence[str] = ()
    inside: Sequence[str] = ()
    prompted: bool = False
    calls_apart: bool = False
    body: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    control: Sequence[str] = ()

    @property
    def begins(self) -> list[str]:
        """What the model writes to open its first block."""
        return [] if self.prompted else [*self.opening]

    @property
    def behind(self) -> list[str]:
        """What stands behind a thought, and the answer."""
        return [*self.end, *self.header, *ANSWER, EOS]

    @property
    def responses(self) -> dict[str, list[str]]:
        """What the model wants to write, by its script."""
        wanted = {STOPS: [*self.begins, *THOUGHT, EOS], ENDS: [*self.begins, "n1 ", "n2 ", *self.behind],
                  AGAIN: [*self.begins, "v1 ", *self.end, *self.between, *self.opening, "v2 ", "v3 ", "v4 ", EOS]}
        if self.call:
            wanted[CALLS] = [*self.begins, "t1 ", *self.end, *self.call, EOS]
        if self.inside:
            wanted[CALLS_INSIDE] = [*self.begins, "u1 ", *self.inside, EOS]
        return wanted

    @property
    def scripts(self) -> Scripts:
        """All of them, and what follows a forced end."""
        known = [*CONTROL.findall(self.prompt), *self._words()]
        lead = next((piece for piece in known if self.prompt.endswith(piece)), self.prompt[-1])
        behind = [*self.end, *self.header]
        sequences = [[behind[-1], *ANSWER, EOS],
                     *([key, lead, *wanted] for key, wanted in self.responses.items())]
        recalls = _recalls(sequences)
        told = [piece for piece in self.header[:-1] if piece not in (*self.opening, *self.end, *self.between)]
        recalls += [(piece, behind[-1], ANSWER[0]) for piece in (*told[-1:], "v2 ")]
        return Scripts(sequences, added=self._control(), eos=EOS, words=self._words(), recalls=recalls)

    @property
    def again(self) -> Scripts:
        """Thinks a word, ends, and thinks again, for ever."""
        sequence = ["1", *self.opening, "v1 ", *self.end, *self.between, *self.opening]
        return Scripts([sequence], added=self._control(), eos=EOS, words=self._words())

    def _words(self) -> list[str]:
        pieces = dict.fromkeys((*self.header, *self.end, *self.opening))
        return [piece for piece in pieces if not CONTROL.fullmatch(piece)]

    def _control(self) -> list[str]:
        pieces = [*self.opening, *self.end, *self.between, *self.header, *self.call, *self.inside]
        pieces += [*CONTROL.findall(self.prompt), *self.control]
        return [piece for piece in dict.fromkeys(pieces) if CONTROL.fullmatch(piece)]


def _recalls(sequences: Sequence[Sequence[str]]) -> list[tuple[str, str, str]]:
    """What is to be remembered, as a piece is followed by another one than where it stood first.

    Raises:
        ValueError: no piece tells the two places apart.
    """
    first: dict[str, str] = {}
    recalls: list[tuple[str, str, str]] = []

    def following(context: Sequence[str]) -> str | None:
        fitting = [after for seen, last, after in recalls if last == context[-1] and seen in context]
        return fitting[-1] if fitting else first.get(context[-1])

    for sequence in sequences:
        for at, (last, after) in enumerate(pairwise(sequence)):
            first.setdefault(last, after)
            if following(sequence[: at + 1]) == after:
                continue
            since = max((i + 1 for i in range(at) if sequence[i] == last), default=0)
            new = [p for p in sequence[since:at] if p != last and p not in sequence[:since]]
            own = [p for p in new if not any(p in other for other in sequences if other is not sequence)]
            recalls += [(piece, last, after) for piece in (own or new)[-1:]]
    for sequence in sequences:
        for at, after in enumerate(sequence[1:]):
            if following(sequence[: at + 1]) != after:
                raise ValueError(f"nothing tells that {after!r} follows in {sequence[: at + 1]}")
    return recalls


def _call(text: str) -> list[str]:
    """A text in pieces, control tokens by themselves."""
    parts, at = [], 0
    for match in CONTROL.finditer(text):
        parts += [text[at : match.start()], match[0]]
        at = match.end()
    return [part for part in (*parts, text[at:]) if part]


OBJECT = '{"name": "look", "arguments": {"n": 1}}'
XML = "<function=look>\n<parameter=n>\n1\n</parameter>\n</function>"
THINK, END = ["<think>"], ["</think>"]
DSML = "\uff5cDSML\uff5c"
PROMPT = "<|im_start|>assistant\n"


def _dsml(block: str, invoke: str, parameter: str) -> list[str]:
    body = f'<{DSML}{parameter} name="n" string="false">1</{DSML}{parameter}>'
    call = f'\n\n<{DSML}{block}>\n<{DSML}{invoke} name="look">\n{body}\n</{DSML}{invoke}>\n</{DSML}{block}>'
    return re.split(f"({DSML})", call)


def _deepseek(parser: str, call: Sequence[str]) -> Shape:
    return Shape(parser, "<\uff5cAssistant\uff5c><think>", THINK, END, tools=parser.replace("-", ""), call=call,
                 inside=call, prompted=True, body={"chat_template_kwargs": {"thinking": True}},
                 control=[f"<\uff5c{name}\uff5c>" for name in ("begin\u2581of\u2581sentence", "User", "System")])


def _tags(parser: str, tools: str = "", call: Sequence[str] = (), ends: bool = False, prompted: bool = False) -> Shape:
    """A family of `<think>`; `ends`: a call may stand in a block that has no end."""
    return Shape(parser, PROMPT + "<think>\n" * prompted, THINK, END, tools=tools, call=call,
                 inside=call if ends else (), prompted=prompted)


QWEN3 = _call(f"<tool_call>\n{XML}\n</tool_call>")
GLM = _call("<tool_call>look<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>")
HY, M3 = ":opensource", "]<]minimax[>["
HY_CALL = _call(f"<tool_calls{HY}>\n<tool_call{HY}>look<tool_sep{HY}>\n<arg_key{HY}>n</arg_key{HY}>\n<arg_value{HY}>1"
                f"</arg_value{HY}>\n</tool_call{HY}>\n</tool_calls{HY}>")
K2_CALL = _call(f"<ifm|tool_calls>\n<ifm|tool_call>{OBJECT}</ifm|tool_call>\n</ifm|tool_calls>")
SHAPES = {
    "gpt-oss": Shape(
        "gpt-oss", "<|start|>assistant", ["<|channel|>", "analysis", "<|message|>"], ["<|end|>"],
        ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>"], ["<|start|>", "assistant"], "gpt-oss",
        ["<|start|>", "assistant", "<|channel|>", "commentary to=functions.look ", "<|constrain|>", "json",
         "<|message|>", '{"n": 1}', "<|call|>"]),
    "inkling": Shape(
        "inkling", "<|end_message|>", ["<|message_model|>", "<|content_thinking|>"], ["<|end_message|>"],
        ["<|message_model|>", "<|content_text|>"], (), "inkling",
        ["<|message_model|>", "look", "<|content_invoke_tool_json|>", '{"name": "look", "args": {"n": 1}}',
         "<|end_message|>"], calls_apart=True),
    "muse": Shape(
        "muse", "<|start|>assistant", [" to=self", "<|message|>"], ["<|eom|>"],
        ["<|start|>", "assistant", " to=user", "<|message|>"], ["<|start|>", "assistant"], "muse",
        ["<|start|>", "assistant", " to=look", "<|message|>", '<atem:function_calls>\n<atem:invoke name="look">\n'
         '<atem:parameter name="n">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>', "<|eom|>"]),
    "beam": Shape(
        "beam", "<|start|>assistant", ["<|channel|>", "analysis", "<|message|>"], ["<|end|>", "<|start|>", "assistant"],
        ["<|channel|>", "final", "<|message|>"], (), "beam",
        [" to=look", "<|channel|>", "analysis ", "<|constrain|>", "xml", "<|message|>",
         '<rfl:parameter name="n">\n1\n</rfl:parameter>', "<|call|>"], calls_apart=True),
    "cohere_command4": Shape(
        "cohere_command4", "<|CHATBOT|><|START_THINKING|>", ["<|START_THINKING|>"], ["<|END_THINKING|>"],
        ["<|START_TEXT|>"], (), "cohere_command4",
        *2 * [["<|START_ACTION|>", '[{"tool_call_id": "0", "tool_name": "look", "parameters": {"n": 1}}]',
               "<|END_ACTION|>"]], prompted=True),
    "kimi_k3": Shape(
        "kimi_k3", "<|open|>think<|sep|>", ["<|open|>", "think", "<|sep|>"], ["<|close|>", "think", "<|sep|>"],
        ["<|open|>", "response", "<|sep|>"], ("so\n",), "kimi_k3",
        *2 * [["<|open|>", "tools", "<|sep|>", "<|open|>", 'call tool="look" index="1"', "<|sep|>", "<|open|>",
               'argument key="n" type="number"', "<|sep|>", "1", "<|close|>", "argument", "<|sep|>", "<|close|>",
               "call", "<|sep|>", "<|close|>tools<|sep|>"]], prompted=True),
    "gemma4": Shape("gemma4", "<|turn>model\n", ["<|channel>", "thought\n"], ["<channel|>"], tools="gemma4",
                    call=["<|tool_call>", "call:look{n:1}", "<tool_call|>"]),
    "apertus2509": Shape("apertus2509", "<|assistant_start|>", ["<|inner_prefix|>"], ["<|inner_suffix|>"],
                         tools="apertus2509", call=["<|tools_prefix|>", '[{"look": {"n": 1}}]', "<|tools_suffix|>"]),
    "mistral": Shape("mistral", "[/INST]", ["[THINK]"], ["[/THINK]"], tools="mistral",
                     call=["[TOOL_CALLS]", "look", "[ARGS]", '{"n": 1}'], body={"reasoning_effort": "high"}),
    "kimi": Shape("kimi", "<|im_middle|>", ["◁think▷"], ["◁/think▷"]),
    "deepseek-r1": _tags("deepseek-r1", "deepseekv3", _call(
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>look\n```json\n"
        '{"n": 1}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>'), prompted=True),
    "qwen3": _tags("qwen3", "qwen3_coder", QWEN3, ends=True, prompted=True),
    "deepseek-v4": _deepseek("deepseek-v4", _dsml("tool_calls", "invoke", "parameter")),
    "deepseek-v41": _deepseek("deepseek-v41", _dsml(" calls", " invoke", " parameter")),
    "glm45": _tags("glm45", "glm45", _call(
        "<tool_call>look\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"), ends=True),
    "hunyuan": Shape("hunyuan", PROMPT, [f"<think{HY}>"], [f"</think{HY}>"], (), ("so\n",), "hunyuan", HY_CALL, HY_CALL,
                     body={"reasoning_effort": "high"}),
    "iquest_q1": _tags("iquest_q1", "iquest_q1", _call(
        "<iquest_tool_call>look<arg_key>n</arg_key><arg_value>1</arg_value></iquest_tool_call>"), prompted=True),
    "k2_horizon": Shape("k2_horizon", PROMPT + "<ifm|think_fast>", ["<ifm|think_fast>"], ["</ifm|think_fast>"], (),
                        ("so\n",), "k2_horizon", K2_CALL, K2_CALL, prompted=True, body={"reasoning_effort": "medium"}),
    "kimi_k2": _tags("kimi_k2", "kimi_k2", _call(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
        '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>'), ends=True, prompted=True),
    "minimax": _tags("minimax", "minimax-m2", _call(
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="n">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>"), prompted=True),
    "minimax-append-think": _tags("minimax-append-think", prompted=True),
    "minimax-m3": Shape(
        "minimax-m3", PROMPT + "<mm:think>", ["<mm:think>"], ["</mm:think>"], (), ("so\n",), "minimax-m3",
        [M3, "<tool_call>", f'\n{M3}<invoke name="look">{M3}<n>1{M3}</n>{M3}</invoke>\n{M3}</tool_call>'],
        prompted=True, body={"chat_template_kwargs": {"thinking_mode": "enabled"}}),
    "response_template": Shape("response_template", PROMPT, THINK, END, tools="response_template", call=[
        "<tool_call>", OBJECT, "</tool_call>"], settings={"response_template": {
            "defaults": {"role": "assistant"}, "start_anchor": PROMPT, "fields": {
                "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
                "content": {"content": "text"},
                "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                               "transform": {"type": "function", "function": {
                                   "name": "{content.name}", "arguments": "{content.arguments}"}}}}}}),
}
"""A row of the table each, and DeepSeek V4.1, whose calls are written in another way."""


def build(folder: Path, shape: Shape, scripts: Scripts | None = None) -> Path:
    """Write checkpoint and tokenizer into `folder`."""
    template = ("{% for m in messages %}{{ '" + TURN + "' + m['content'] }}{% endfor %}{{ '" + shape.prompt.replace(
        "\n", "\\n") + "' }}")
    build_scripted_model(folder, scripts or shape.scripts, template)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **shape.settings}))
    return folder
