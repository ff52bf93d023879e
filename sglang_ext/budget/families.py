"""How each model family writes its thinking, one row for each of sglang's reasoning parsers.

A row says what opens a block and where, what ends it, and what a forced end writes so that the family's answer begins.
The rows follow the detectors in sglang's `parser/reasoning_parser.py` and the chat templates of the families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Gap(Enum):
    """A part of an opening that is no fixed text."""

    SPACES = "white space"
    STOP = "one character of white space, or nothing before <"
    NAME = "bytes that are neither white space nor <, one at least"
    TEXT = "any bytes but <"
    ANY = "any bytes"


@dataclass(frozen=True)
class Word:
    """ASCII text in an opening, in whatever case its letters are."""

    text: str


@dataclass(frozen=True)
class Opening:
    """A header that opens a block, beside the family's start marker.

    Attributes:
        parts: texts, words and gaps, in order. A gap ends where the next text first stands; the first part is a text.
        call: the header names a recipient, so the block may be a call's arguments.
        decides: once its last gap is reached, which is of any bytes, no other header can become of what stands there,
            but for those that are decided too: then the first in the row's order.
        opens: False for the header of another message, which decides that none of a block begins in it.
    """

    parts: tuple[str | Word | Gap, ...]
    call: bool = False
    decides: bool = False
    opens: bool = True


@dataclass(frozen=True)
class Implicit:
    """A marker inside a block that ends it without being its end marker.

    One that is the model's EOS is a wish to stop instead, unless it counts in calls alone.

    Attributes:
        heads: texts of which one must follow the marker, white space between them allowed; empty: none need follow. A
            thought that quotes the marker is so told from a call.
        name: a name right behind the marker is such a text too.
        at_line_start: the marker counts only where it begins a line or the block.
        with_tools: the marker counts only in requests that have tools.
        in_calls: the marker counts only in a block whose opening has `call`.
        until: the block goes on behind this text, with whatever is no white space.
    """

    marker: str
    heads: tuple[str, ...] = ()
    name: bool = False
    at_line_start: bool = False
    with_tools: bool = True
    in_calls: bool = False
    until: str = ""


class Implied(Enum):
    """When sglang's parser takes the beginning of a response for thinking, though no start marker stands before it."""

    NEVER = "never"
    ASKED = "where thinking is switched on"
    ALWAYS = "always"


@dataclass(frozen=True)
class Family:
    """A row.

    Attributes:
        start, end: the markers.
        more: further pairs of markers, of which a request's chat template chooses one.
        openings: headers that open a block beside `start`.
        label: text that the family writes right behind `start`; it is no thinking.
        anywhere: the start marker, or what a header begins with, is a control token and opens wherever it stands.
            Otherwise a block opens at the start of the response, of a line, and behind an end marker or control token.
        shared_end: the end marker ends other messages too.
        answer: header of the answer, written behind a forced end; None: what the chat template writes there.
        implied: see `Implied`.
        implicit: see `Implicit`.
        found: markers are those that sglang's parser finds in the served tokenizer; the ones here are its defaults.
        protocol: sglang's parser reads messages, not a pair of tags.
    """

    start: str
    end: str
    more: tuple[tuple[str, str], ...] = ()
    openings: tuple[Opening, ...] = ()
    label: str = ""
    anywhere: bool = False
    shared_end: bool = False
    answer: str | None = None
    implied: Implied = Implied.NEVER
    implicit: tuple[Implicit, ...] = ()
    found: bool = False
    protocol: bool = False


JSON_OR_XML = ("{", "[", "<function", "<invoke", "<arg_key", "<name")
"""How a tool call goes on behind its marker, in the formats that share `<tool_call>`."""

PLAIN = Family("<think>", "</think>")
"""A tag pair of which nothing else is known."""
THINK = replace(PLAIN, implied=Implied.ASKED)
THINK_ALWAYS = replace(PLAIN, implied=Implied.ALWAYS)
THINK_TOOL = replace(THINK, implicit=(Implicit("<tool_call>", JSON_OR_XML),))
THINK_TOOL_ALWAYS = replace(THINK_TOOL, implied=Implied.ALWAYS)
THINK_TOOL_NAME = replace(THINK, implicit=(Implicit("<tool_call>", JSON_OR_XML, name=True),))
DSML = "<\uff5cDSML\uff5c"
THINK_DSML = replace(THINK, implicit=tuple(
    Implicit(DSML + name, (DSML + "invoke", DSML + " invoke")) for name in ("tool_calls>", " calls>")))
"""DeepSeek V4 and V4.1, whose names begin with a space; its parser takes either from either model."""

HARMONY_ANSWER = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = (Gap.SPACES, Word("analysis"), Gap.ANY)
"""How a header begins whose channel is the analysis: sglang strips it, and compares its beginning without case."""
HARMONY = Family(
    "<|channel|>analysis<|message|>", "<|end|>",
    openings=(
        Opening(("<|channel|>", *ANALYSIS, "<|message|>")),
        Opening(("<|channel|>", *ANALYSIS, "to=", Gap.ANY, "<|message|>"), call=True, decides=True),
        Opening(("<|channel|>", *ANALYSIS, "<|constrain|>", Gap.ANY, "<|message|>"), call=True, decides=True),
        Opening((" to=", Gap.TEXT, "<|channel|>", *ANALYSIS, "<|message|>"), call=True, decides=True),
        Opening(("<|start|>", Gap.TEXT, " to=", Gap.TEXT, "<|channel|>", *ANALYSIS, "<|message|>"), call=True,
                decides=True),
        *(Opening(("<|channel|>", Gap.SPACES, Word(channel), Gap.ANY, "<|message|>"), decides=True, opens=False)
          for channel in ("final", "commentary")),
    ),
    anywhere=True, shared_end=True, answer=HARMONY_ANSWER, protocol=True,
    implicit=(Implicit("<|call|>", with_tools=False, in_calls=True),),
)
MUSE_HEADER = ("<|start|>", Gap.ANY)
"""How a header of Muse begins. The first recipient in it counts; only a response's first header has no `<|start|>`."""
MUSE = Family(
    " to=self<|message|>", "<|eom|>",
    openings=(
        Opening(("to=self", Gap.STOP, Gap.TEXT, "<|message|>")),
        Opening(("to=self<", Gap.TEXT, "<|message|>")),
        Opening((*MUSE_HEADER, "to=self", Gap.STOP, Gap.ANY, "<|message|>"), decides=True),
        Opening((*MUSE_HEADER, "to=", Gap.NAME, Gap.STOP, Gap.ANY, "<|message|>"), decides=True, opens=False),
        Opening((*MUSE_HEADER, "<|message|>"), opens=False),
    ),
    shared_end=True, answer="<|start|>assistant to=user<|message|>", protocol=True,
    implicit=(Implicit("<|eot|>", with_tools=False),),
)

FAMILIES: Mapping[str, Family] = {
    "apertus2509": Family("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True, protocol=True, implicit=(
        Implicit("<|tools_prefix|>[", with_tools=False, until="<|tools_suffix|>"),)),
    "beam": Family("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", anywhere=True, shared_end=True,
                   answer="<|channel|>final<|message|>", protocol=True),
    "cohere_command4": Family("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True, implied=Implied.ALWAYS,
                              answer="<|START_TEXT|>", protocol=True, implicit=(
                                  Implicit("<|START_TEXT|>", with_tools=False),
                                  Implicit("<|START_ACTION|>", with_tools=False))),
    "deepseek-r1": THINK_ALWAYS,
    "deepseek-v3": THINK_TOOL,
    "deepseek-v4": THINK_DSML,
    "deepseek-v41": THINK_DSML,
    "dots": THINK_TOOL,
    "gemma4": Family("<|channel>", "<channel|>", label="thought\n", anywhere=True, implied=Implied.ASKED),
    "gigachat35": THINK_ALWAYS,
    "glm45": THINK_TOOL_NAME,
    "gpt-oss": HARMONY,
    "granite_thinking_parser": THINK_TOOL,
    "hunyuan": replace(THINK, implicit=(Implicit("<tool_calls>", ("<tool_call",)),), found=True),
    "inkling": Family("<|content_thinking|>", "<|end_message|>", anywhere=True, shared_end=True,
                      answer="<|message_model|><|content_text|>", protocol=True, implicit=(
                          Implicit("<|content_text|>", with_tools=False),
                          Implicit("<|content_invoke_tool_json|>", with_tools=False),
                          Implicit("<|content_invoke_tool_text|>", with_tools=False),
                          Implicit("<|content_model_end_sampling|>", with_tools=False))),
    "interns1": THINK_TOOL,
    "iquest_q1": THINK,
    "k2_horizon": Family("<ifm|think>", "</ifm|think>", implied=Implied.ALWAYS, more=(
        ("<ifm|think_fast>", "</ifm|think_fast>"), ("<ifm|think_faster>", "</ifm|think_faster>")),
        implicit=(Implicit("<ifm|tool_call", (">", "s>")),)),
    "kimi": Family("◁think▷", "◁/think▷"),
    "kimi_k2": replace(THINK, implicit=(Implicit("<|tool_calls_section_begin|>", ("<|tool_call_begin|>",)),)),
    "kimi_k3": Family("<|open|>think<|sep|>", "<|close|>think<|sep|>", anywhere=True, implied=Implied.ASKED,
                      answer="<|open|>response<|sep|>", protocol=True, implicit=(
                          Implicit("<|open|>response<|sep|>", with_tools=False),
                          Implicit("<|open|>tools<|sep|>", ("<|open|>call",)))),
    "ling3": THINK_TOOL_NAME,
    "mimo": THINK_TOOL,
    "minimax": THINK_TOOL_ALWAYS,
    "minimax-append-think": replace(PLAIN, protocol=True),
    "minimax-m3": Family("<mm:think>", "</mm:think>", implied=Implied.ASKED),
    "mistral": Family("[THINK]", "[/THINK]", anywhere=True, implied=Implied.ASKED),
    "muse": MUSE,
    "nanbeige": THINK_TOOL,
    "nemotron_3": THINK_TOOL,
    "poolside_v1": THINK_TOOL_NAME,
    "qwen3": THINK_TOOL,
    "qwen3-thinking": THINK_TOOL_ALWAYS,
    "response_template": Family("", "", anywhere=True, found=True, protocol=True),
    "step3": THINK_ALWAYS,
    "step3p5": THINK_ALWAYS,
}
"""By the name that `--reasoning-parser` takes."""
