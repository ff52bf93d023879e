"""The table of families: a row for each of sglang's parsers, as sglang's parsers have it, and what the rows lead to."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from family_models import SHAPES, Shape, build
from flows import Flow
from scripted_model import EOS, Scripts, build_scripted_model
from sglang_ext.budget.kernels.layout import AUTO_MASK, INSIDE, Event
from sglang_ext.budget.kernels.reference import lookup

from sglang_ext.budget.families import FAMILIES

DYNAMIC = {"response_template", "hunyuan"}
AGAIN = ["gpt-oss", "inkling", "muse", "beam", "gemma4", "apertus2509", "mistral", "kimi"]


def test_a_row_for_each_of_sglangs_parsers() -> None:
    """A parser that sglang adds has no row, and refuses budgets until it has."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser
    from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES

    assert set(ReasoningParser.DetectorMap) == set(REASONING_PARSER_NAMES)
    later = {"beam", "response_template"} if version("sglang") == "0.5.22" else set()
    assert set(FAMILIES) - set(REASONING_PARSER_NAMES) == later
    assert set(REASONING_PARSER_NAMES) <= set(FAMILIES)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - DYNAMIC))
def test_the_markers_are_those_of_sglangs_parser(name: str) -> None:
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    if name not in ReasoningParser.DetectorMap:
        pytest.skip(f"this release of sglang has no parser {name}")
    row, detector = FAMILIES[name], ReasoningParser(name).detector
    assert (row.start, row.end) == (detector.think_start_token, detector.think_end_token)
    assert row.label == detector.think_start_self_label
    tool = getattr(detector, "tool_start_token", None)
    assert tool is None or tool in {i.marker for i in row.implicit}


def test_a_parser_without_a_row_refuses_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context
    from sglang_ext.patches.reasoning_parser import UnknownFamilyError, served_family

    monkeypatch.setattr(runtime_context, "get_serving", lambda: SimpleNamespace(reasoning_parser="new"))
    with pytest.raises(UnknownFamilyError, match=r"'new' .*not known; known: apertus2509, .*--think-start"):
        served_family(None)


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Flow] = {}

    def flow(name: str) -> Flow:
        if name not in known:
            shape = SHAPES[name]
            known[name] = Flow(build(tmp_path_factory.mktemp("again"), shape, shape.again), shape.parser)
        return known[name]

    return flow


@pytest.mark.parametrize("budget", range(6))
@pytest.mark.parametrize("name", AGAIN)
def test_one_budget_for_all_blocks(flows: Any, name: str, budget: int) -> None:
    """The model thinks a word, ends, and thinks again, for ever: also cut in the second message."""
    shape: Shape = SHAPES[name]
    pieces, think = flows(name).respond(f"<|turn|>{shape.prompt}1", budget)
    text = "".join(pieces)
    assert think["tokens"] == budget
    # A thought is its word and its end: whole ones, then one that is cut, and no word of thinking behind it.
    whole, cut = divmod(budget, 1 + len(shape.end))
    opening, end = "".join(shape.opening), "".join(shape.end)
    thought = opening + "v1 " + end + "".join(shape.between)
    rest = opening + ("v1 " if cut else "") + end + "".join(shape.header)
    assert text.startswith(thought * whole + rest)


@pytest.mark.parametrize("name", ["gpt-oss", "inkling", "muse"])
def test_a_marker_that_ends_other_things_is_never_banned(flows: Any, name: str) -> None:
    """The answer ends its own message, as the model wants, and another one begins."""
    shape: Shape = SHAPES[name]
    text = "".join(flows(name).respond(f"<|turn|>{shape.prompt}1", 0)[0])
    header, end = "".join(shape.header), "".join(shape.end)
    if shape.header[-1] == shape.opening[-1]:  # the scripted model says there what it says in a thought
        assert f"{header}v1 {end}" in text


def seen(flow: Flow, text: str) -> tuple[bool, int]:
    """Whether a block is open behind a response, and all events in it."""
    automaton = flow.admission.automaton
    assert automaton is not None
    word, events = automaton.start_word(), 0
    for token in flow.tokenizer.encode(text, add_special_tokens=False):
        entry = lookup(automaton, word, token)
        word, events = entry & AUTO_MASK, events | entry
    return bool(word & INSIDE), events


@pytest.mark.parametrize("marker", ["<|content_text|>", "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"])
def test_inkling_changes_its_kind_inside_a_message(flows: Any, marker: str) -> None:
    """sglang's parser reads content behind the marker though the thinking message has not ended."""
    inside, events = seen(flows("inkling"), "<|message_model|><|content_thinking|>v1 " + marker)
    assert not inside
    assert events & Event.IMPLICIT


def test_headers_of_harmony(tmp_path: Path) -> None:
    """White space and recipients in a header; a commentary is no thinking; a call in the analysis ends by itself."""
    flow = Flow(build(tmp_path, SHAPES["gpt-oss"]), "gpt-oss")

    def after(text: str) -> tuple[bool, int]:
        return seen(flow, text)

    for header in ("<|channel|>analysis<|message|>", "<|channel|> analysis <|message|>",
                   "<|start|>assistant<|channel|>analysis<|message|>", "x<|channel|>analysis<|message|>",
                   "<|channel|>commentary<|message|>hm<|end|><|start|>assistant<|channel|>analysis<|message|>",
                   "<|channel|>analysis to=python code<|message|>", "<|channel|>Analysis<|message|>",
                   "<|channel|>\u00a0analysis<|message|>", "<|channel|>\u2003\n ANALYSIS\u00a0<|message|>",
                   "<|channel|>analysis<x><|message|>", "<|channel|>analysis<|channel|>final<|message|>",
                   "<|channel|>final<|message|>hm<|channel|>analysis<|message|>",
                   "<|channel|>analysis<|constrain|>json<|channel|>final<|message|>"):
        assert after(header)[0], header
    for header in ("<|channel|>commentary<|message|>", "<|channel|>final<|message|>", "channel analysis<|message|>",
                   "<|channel|>an\u00a0alysis<|message|>", "<|channel|>final analysis<|message|>",
                   "<|channel|>final<|channel|>analysis<|message|>",
                   "<|channel|> Commentary to=f<|channel|>analysis<|message|>"):
        assert not after(header)[0], header
    assert after("<|channel|>analysis to=python code<|message|>1<|call|>")[1] & Event.IMPLICIT
    assert not after("<|channel|>analysis<|message|>1<|call|>")[1] & Event.IMPLICIT


@pytest.mark.parametrize("space", ["", " ", "\n", "\t", "\u00a0", " x"])
def test_white_space_ends_the_recipient_of_muse(flows: Any, space: str) -> None:
    assert seen(flows("muse"), f"<|start|>assistant to=self{space}<|message|>")[0]
    assert not seen(flows("muse"), f"<|start|>assistant to=selfish{space}<|message|>")[0]


@pytest.mark.parametrize(("header", "thinks"), [
    ("<|start|>assistant to=self<x><|message|>", True), ("<|start|>assistant<x> to=self<|message|>", True),
    ("<|start|>assistant to=self<|message|>", True), ("<|start|>assistant to= to=self<|message|>", True),
    ("<|start|>assistant to=user to=self<|message|>", False),
    ("<|start|>assistant to=user<x> to=self<|message|>", False),
    ("<|start|>assistant to=self to=user<|message|>", True),
    ("<|start|>assistant<|message|>hm<|eom|><|start|>assistant to=self<|message|>", True),
])
def test_the_first_recipient_of_muse_counts(flows: Any, header: str, thinks: bool) -> None:
    """As in sglang's parser."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    assert seen(flows("muse"), header)[0] == thinks
    assert bool(ReasoningParser("muse").detector.detect_and_parse(header + "w").reasoning_text) == thinks


@pytest.mark.parametrize("end", ["<|end_message|>", "<|content_model_end_sampling|>"])
def test_inkling_ends_a_message_in_two_ways(flows: Any, end: str) -> None:
    assert not seen(flows("inkling"), "<|message_model|><|content_thinking|>v1 " + end)[0]


K2 = [("<ifm|think>", "</ifm|think>"), ("<ifm|think_fast>", "</ifm|think_fast>"),
      ("<ifm|think_faster>", "</ifm|think_faster>")]


@pytest.fixture(scope="module")
def k2(tmp_path_factory: pytest.TempPathFactory) -> Flow:
    scripts = [[f"{n}", start, f"w{n} ", f"loop{n}", f"w{n} "] for n, (start, _) in enumerate(K2, 1)]
    folder = build_scripted_model(tmp_path_factory.mktemp("k2"), Scripts(
        [*scripts, *([end, "yes", EOS] for _, end in K2)], added=[text for pair in K2 for text in pair]), "")
    return Flow(folder, "k2_horizon")


@pytest.mark.parametrize("message", ["", "so "])
@pytest.mark.parametrize("prompted", [0, 1, 2])
@pytest.mark.parametrize("written", [1, 2, 3])
def test_all_pairs_of_a_parser_open_and_end_blocks(k2: Flow, written: int, prompted: int, message: str) -> None:
    """Whichever pair the prompt had, each block is limited and ends with its own marker."""
    start, end = K2[prompted]
    text = "".join(k2.respond(f"<|turn|>{start}x{end}\n{written}", 3, message=message)[0])
    own, closing = K2[written - 1]
    assert text == f"{own}w{written} loop{written}w{written} {message}{closing}yes{EOS}"


def test_another_pairs_end_is_text(k2: Flow) -> None:
    for start, end in K2:
        assert seen(k2, start + "w " + "".join(other for _, other in K2 if other != end))[0]
        assert not seen(k2, start + "w " + end)[0]


@pytest.mark.parametrize(("text", "thinks"), [
    ("<|turn|>assistant<think>", True), ("<|turn|>Model<think>", True), ("<|turn|><think>", True),
    ("<|turn|> \n<think>", True), ("<|turn|>see: <think>", False), ("<|turn|>one two<think>", False),
    ("assistant<think>", False),
])
def test_a_role_may_stand_before_a_block(tmp_path: Path, text: str, thinks: bool) -> None:
    folder = build_scripted_model(tmp_path, Scripts([["x", EOS]], added=["<think>", "</think>"]), "")
    assert seen(Flow(folder, "qwen3"), text)[0] == thinks


def test_the_table_in_the_docs_has_every_row() -> None:
    page = (Path(__file__).parent.parent / "docs" / "families.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    for name, row in FAMILIES.items():
        line = next(line for line in lines if name in line.split("|")[1].replace(" ", "").split(","))
        for text in (row.start, row.end if not row.more else "", row.answer or ""):
            assert text.replace("|", "\\|") in line, (name, text)


def test_the_processor_for_transformers_follows_the_table(tmp_path: Path) -> None:
    """The header of the answer is forced there too; a name that no row has is refused."""
    from sglang_ext.hf.admission import build_admission

    tokenizer = Flow(build(tmp_path, SHAPES["gpt-oss"]), "gpt-oss").tokenizer
    admission = build_admission(tokenizer, None, "", [tokenizer.eos_token_id], 512, "gpt-oss")
    assert admission.automaton is not None
    program = admission.automaton.program
    assert tokenizer.decode(program[: program.index(-1)]) == "".join([*SHAPES["gpt-oss"].end, *SHAPES[
        "gpt-oss"].header])
    with pytest.raises(ValueError, match="parser: 'x' is unknown; accepted: apertus2509"):
        build_admission(tokenizer, None, "", [], 512, "x")
