"""A tool call that follows a thought, or stands in it, reaches the family's own tool parser in sglang."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from budget_cases import DISTINCT, ROWS, TABLE, lifted
from detector_hooks import hooked
from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang_ext.patches import detectors
from sglang_ext.patches.asked import _PRIVATE, Asked

from sglang_ext.budget import service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.contract import Limits
from sglang_ext.budget.prompt import Start

JSON = '{"name": "look", "arguments": {"n": 1}}'
CALLS = {
    ("qwen3", "qwen25"): f"<tool_call>\n{JSON}\n</tool_call>",
    ("glm45", "glm45"): "<tool_call>look\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    ("kimi_k2", "kimi_k2"): "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
                            '<|tool_call_argument_begin|>{"n": 1}<|tool_call_end|><|tool_calls_section_end|>',
    ("cohere_command4", "cohere_command4"): '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": '
                                            '{"n": 1}}]<|END_ACTION|>',
    ("inkling", "inkling"): '<|message_model|>look<|content_invoke_tool_json|>{"name": "look", "args": {"n": 1}}'
                            "<|end_message|>",
    ("gpt-oss", "gpt-oss"): "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
                            '{"n": 1}<|call|>',
    ("gemma4", "gemma4"): "<|tool_call>call:look{n:1}<tool_call|>",
    ("mistral", "mistral"): f"[TOOL_CALLS] [{JSON}]",
}
ENDS_BY_ITSELF = {"qwen3", "glm45", "kimi_k2", "cohere_command4"}
"""Families whose call may stand in a thought that has no end marker."""
TOOLS = [Tool(type="function", function=Function(name="look", parameters={
    "type": "object", "properties": {"n": {"type": "integer"}}}))]


@pytest.fixture(autouse=True)
def _hooks() -> Any:
    with hooked():
        yield


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("parser", "tool_parser"), CALLS)
def test_a_call_after_thinking(parser: str, tool_parser: str, stream: bool, ended: bool) -> None:
    if not ended and parser not in ENDS_BY_ITSELF:
        pytest.skip("its calls are messages of their own, or follow the end marker")
    row, call = TABLE[parser], CALLS[parser, tool_parser]
    automaton = lifted(DISTINCT[ROWS[parser]], 48, False)
    service.install(Admission(Limits(), automaton, lambda text: [], family=row))
    asked = Asked(parsed=True, tools=True, start=Start(automaton.block_word(tools=True)))
    request = SimpleNamespace(chat_template_kwargs=None, **{"__pydantic_private__": {_PRIVATE: asked}})
    reader = ReasoningParser.__new__(ReasoningParser)
    detectors.init(ReasoningParser.__init__, reader, parser, True, True, request, None, True)
    text = "so " + (row.end if ended else "") + call
    if stream:
        pieces = re.findall(r"<[^<>]*>|[^<]{1,4}", text)
        parts = [*(reader.parse_stream_chunk(piece) for piece in pieces), reader.parse_stream_end()]
        thought, rest = ("".join(part[i] or "" for part in parts) for i in (0, 1))
    else:
        thought, rest = reader.parse_non_stream(text)
    assert thought.strip() == "so"
    _, calls = FunctionCallParser(TOOLS, tool_parser).parse_non_stream(rest)
    assert [(each.name, each.parameters.replace(" ", "")) for each in calls] == [("look", '{"n":1}')]
