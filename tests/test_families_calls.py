"""A tool call that follows a thought, or stands in it, reaches the family's own tool parser in sglang."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from budget_cases import DISTINCT, ROWS, TABLE, lifted
from detector_hooks import hooked
from family_models import GLM, OBJECT, QWEN3, SHAPES
from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang_ext.patches import detectors, tokenizer_manager
from sglang_ext.patches.asked import _PRIVATE, Asked
from sglang_ext.patches.tokenizer_manager import HOLDS_THINKING

from sglang_ext.budget import service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.contract import BudgetError, Limits
from sglang_ext.budget.prompt import Start

JSON = f"<tool_call>\n{OBJECT}\n</tool_call>"
GCML, STEP, CALL = "\uff5cGCML\uff5c", "\uff5ctool_call", "\uff5ctool\u2581call"
CALLS: dict[tuple[str, str], str] = {
    ("deepseek-v3", "deepseekv31"):
        f"<{CALL}s\u2581begin\uff5c><{CALL}\u2581begin\uff5c>look<\uff5ctool\u2581sep\uff5c>"
        f'{{"n": 1}}<{CALL}\u2581end\uff5c><{CALL}s\u2581end\uff5c>',
    ("dots", "dots"): '<dots_function_call>\n<invoke name="look">\n<parameter name="n">1</parameter>\n</invoke>\n'
                      "</dots_function_call>",
    ("gigachat35", "gigachat35"):
        f'<{GCML}tool_calls>\n<{GCML}invoke name="look">\n<{GCML}parameter name="n" string="false">1'
        f"</{GCML}parameter>\n</{GCML}invoke>\n</{GCML}tool_calls>",
    ("glm45", "glm47"): "".join(GLM),
    ("granite_thinking_parser", "hermes"): JSON,
    ("interns1", "interns1"): '<|action_start|> <|plugin|>\n{"name": "look", "parameters": {"n": 1}}<|action_end|>',
    ("ling3", "ling3"): "".join(GLM),
    ("mimo", "mimo"): "".join(QWEN3),
    ("nanbeige", "nanbeige"): "".join(QWEN3),
    ("nemotron_3", "qwen3_coder"): "".join(QWEN3),
    ("poolside_v1", "poolside_v1"): "".join(GLM),
    ("qwen3-thinking", "qwen25"): JSON,
    ("step3", "step3"): f"<{STEP}s_begin\uff5c><{STEP}_begin\uff5c>function<\uff5ctool_sep\uff5c>"
                        '<steptml:invoke name="look"><steptml:parameter name="n">1</steptml:parameter></steptml:invoke>'
                        f"<{STEP}_end\uff5c><{STEP}s_end\uff5c>",
    ("step3p5", "step3p5"): "".join(QWEN3),
    **{(shape.parser, shape.tools): "".join(shape.call) for shape in SHAPES.values() if shape.call},
}
INSIDE = {shape.parser for shape in SHAPES.values() if shape.inside}
INSIDE |= {"granite_thinking_parser", "ling3", "mimo", "nanbeige", "nemotron_3", "poolside_v1", "qwen3-thinking"}
"""Families whose call may stand in a thought that has no end marker."""
TOOLS = [Tool(type="function", function=Function(name="look", parameters={
    "type": "object", "properties": {"n": {"type": "integer"}}}))]
OWN = {"beam", "deepseek-v4", "deepseek-v41", "response_template"}
"""Read from ids, or with the prompt that stands before: on a server only."""


@pytest.fixture(autouse=True)
def _hooks() -> Any:
    with hooked():
        yield


def test_each_parser_that_reads_calls_has_one() -> None:
    """Kimi's first thinking model calls no tools; the other parser hands all text on."""
    assert {parser for parser, _ in CALLS} == set(TABLE) - {"kimi", "minimax-append-think"}


@pytest.mark.parametrize(("limit", "holds"), [(0, True), (1, True), (0, False)])
def test_a_grammar_that_wants_thinking_refuses_a_budget_of_0(limit: int, holds: bool) -> None:
    """As Beam's tool parser holds every response: it would end in an internal error."""
    from sglang.srt.sampling import sampling_params

    known = getattr(sampling_params, "REQUEST_REASONING_IN_GRAMMAR_KEY", HOLDS_THINKING)
    assert known == HOLDS_THINKING
    params = {"structural_tag": "{}", "custom_params": {known: True} if holds else None}
    request = SimpleNamespace(input_embeds=None, require_reasoning=True)
    if limit or not holds:
        tokenizer_manager._check_combination(request, params, [], limit)
        return
    with pytest.raises(BudgetError, match=r"think_budget: 0 .*accepted: 1 and more"):
        tokenizer_manager._check_combination(request, params, [], limit)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("parser", "tool_parser"), sorted(each for each in CALLS if each[0] not in OWN))
def test_a_call_after_thinking(parser: str, tool_parser: str, stream: bool, ended: bool) -> None:
    if not ended and parser not in INSIDE:
        pytest.skip("its calls are messages of their own, or follow the end marker")
    if parser not in ReasoningParser.DetectorMap or tool_parser not in FunctionCallParser.ToolCallParserEnum:
        pytest.skip("a release of sglang without these parsers")
    row, call = TABLE[parser], CALLS[parser, tool_parser]
    if parser in ("hunyuan", "k2_horizon"):  # markers of the row, not of a tokenizer or an effort
        call = call.replace(":opensource", "")
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
    assert [(each.name, json.loads(each.parameters)) for each in calls] == [("look", {"n": 1})]
