"""Markers in every form, on a server whose model writes known tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from script_client import OPEN, Script
from scripted_model import EOS, TURN, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def pieces(scripted_server: servers.Server, scripted_model: Path) -> Script:
    return Script(scripted_server, AutoTokenizer.from_pretrained(scripted_model))


def test_natural_end_in_pieces(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "P1", 6)
    assert got == ["one", "two", "three", "</", "think", ">", "\n\n", "answer", EOS]
    assert think == {"budget": 6, "tokens": 6, "forced_tokens": 0, "outcome": "natural"}


@pytest.mark.parametrize("budget", range(6))
def test_wall_before_and_inside_the_marker(pieces: Script, budget: int) -> None:
    """A half-written marker is completed, not begun again."""
    got, think = pieces.ask(OPEN, "P1", budget)
    own = ["one", "two", "three", "</", "think"][:budget]
    assert got == [*own, *["</", "think", ">"][max(0, budget - 3) :], "\n\n", "answer", EOS]
    assert think == {"budget": budget, "tokens": budget, "forced_tokens": 3 - max(0, budget - 3), "outcome": "forced"}


def test_last_piece_merged_with_what_follows(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "P2", 15)
    assert got == ["uno", "due", "tre", "</t", "hink", ">\n", "risposta", EOS]
    assert think == {"budget": 15, "tokens": 6, "forced_tokens": 0, "outcome": "natural"}


@pytest.mark.parametrize("budget", [4, 5])
def test_wall_inside_a_marker_cut_elsewhere_than_the_tokenizer_cuts_it(pieces: Script, budget: int) -> None:
    got, think = pieces.ask(OPEN, "P2", budget)
    assert "".join(got).startswith("unoduetre</think>")
    assert "".join(got).count("</think>") == 1
    assert think["tokens"] == budget
    assert think["outcome"] == "forced"


def test_block_opened_by_the_model(pieces: Script) -> None:
    got, think = pieces.ask("", "P3", 3, new=20)
    assert "".join(got).startswith("intro\n<think>idealooplo</think>")
    assert think["tokens"] == 3
    assert think["outcome"] == "forced"


def test_block_opened_by_the_model_with_budget_zero(pieces: Script) -> None:
    got, think = pieces.ask("", "P3", 0, new=20)
    assert "".join(got).startswith("intro\n<think></think>")
    assert think["tokens"] == 0


def test_start_marker_in_the_middle_of_a_line_is_text(pieces: Script) -> None:
    """An answer that mentions the tag must not be cut in the middle."""
    got, think = pieces.ask("", "P4", 0)
    assert "".join(got) == "the tag <think>xis text" + EOS
    assert think == {"budget": 0, "tokens": 0, "forced_tokens": 0, "outcome": "none"}


def test_end_of_sequence_inside_the_block(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "P5", 9)
    assert got == ["half", "thought", "</", "think", ">", "\n\n", "answer", EOS]
    assert think == {"budget": 9, "tokens": 2, "forced_tokens": 3, "outcome": "eos"}


def test_end_of_sequence_without_a_budget_ends_the_response(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "P5", -1)
    assert got == ["half", "thought", EOS]
    assert think["outcome"] == "open"


@pytest.mark.parametrize(("prompt", "opened"), [
    ("<think>\n", True),
    (TURN + "what does <think> do?" + TURN, False),
    (TURN + "stop at </think>" + TURN + "<think>", True),
    (TURN + "<think>" + TURN + "answer", False),
    (TURN + "q" + TURN + "<think>\nold\n</think>\n\n", False),
    ("<think>a</think>b<think>c", False),
    ("<think>a</think>b\n<think>c", True),
    (TURN + "<think>a</think> <think>c", True),
    ("a <think>b", False),
])
def test_only_what_follows_the_last_turn_opens_a_block(pieces: Script, prompt: str, opened: bool) -> None:
    got, think = pieces.ask(prompt, "loop", 2, new=8)
    assert (think["outcome"] == "forced") == opened
    assert ("</think>" in "".join(got)) == opened


def test_minimum(pieces: Script) -> None:
    """The end marker cannot be completed before the minimum; then the model goes on as it likes."""
    got, think = pieces.ask(OPEN, "P1", {"max_tokens": 12, "min_tokens": 10})
    assert "".join(got).count("</think>") == 1
    assert think["tokens"] >= 10


def test_grace_closes_at_a_line_end(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "P3", {"max_tokens": 9, "grace_tokens": 8}, new=12)
    assert "".join(got).startswith("intro\n</think>")
    assert think["outcome"] == "grace"
    assert think["tokens"] == 2


def test_nothing_of_an_earlier_request_is_left_in_a_slot(pieces: Script) -> None:
    """A request ends in the middle of its message; two samples without a budget, whose common prefill samples nothing,
    get its slot, while another request's budget keeps the step's budget work going."""
    looping = [*pieces.tokenizer.encode(OPEN), pieces.tokenizer.convert_tokens_to_ids("loop")]
    cycle = [pieces.tokenizer.convert_tokens_to_ids(t) for t in ("lo", "loo", "loop")]
    keeper = {"input_ids": looping, "sampling_params": {"temperature": 0, "max_new_tokens": 400, "think_budget": 399}}
    running = threading.Thread(target=pieces.server.generate, kwargs=keeper)
    running.start()
    for _ in range(3):
        pieces.ask(OPEN, "loop", {"max_tokens": 0, "message": "the message of another request, which is long"}, new=4)
        results = pieces.server.post("/generate", {"input_ids": looping, "sampling_params": {
            "n": 2, "temperature": 0, "max_new_tokens": 9}}).json()
        assert [r["output_ids"] for r in results] == [cycle * 3] * 2
    running.join()


@pytest.mark.parametrize("grammar", [{"regex": "[0-9]{3}"}, {"json_schema": '{"type": "integer"}'}], ids=str)
@pytest.mark.parametrize("budget", [0, 2, 9])
def test_a_grammar_begins_after_the_thinking(pieces: Script, grammar: dict[str, str], budget: int) -> None:
    """On /generate too, where sglang would put the block that the prompt opened under the grammar."""
    got, think = pieces.ask(OPEN, "P1", budget, new=32, **grammar)
    answer = "".join(got).split("</think>")[1].removesuffix(EOS)
    assert answer.lstrip("-").isdigit()
    assert think["outcome"] == ("natural" if budget == 9 else "forced")


def test_a_grammar_that_asks_for_the_end_marker_again_does_not_break_the_server(pieces: Script) -> None:
    got, _ = pieces.ask(OPEN, "loop", 1, regex="</think>x", temperature=1.0)
    assert "".join(got).startswith("lo</think>")
    assert pieces.ask(OPEN, "P1", 9)[1]["outcome"] == "natural"


SPECIAL = Scripts(
    [
        ["P1", "one", "two", "</think>", "\n\n", "answer", EOS],
        ["P2", "x", "<", "y", "loop", "lo", "loo", "loop"],
        ["P3", "intro", "\n", "<think>", "idea", "loop"],
        ["P4", "in line ", "<think>z", "text", EOS],
        ["P5", "again", "</think>x", "</think>x"],
    ],
    special=["<think>", "</think>"],
)
QWEN_LIKE = ("{% for m in messages %}{{ '<|turn|>' + m['content'] }}{% endfor %}{{ '<|turn|><think>\\n' }}"
             "{% if false %}{{ '</think>\\n\\n' }}{% endif %}")


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    folder = build_scripted_model(tmp_path_factory.mktemp("special"), SPECIAL, QWEN_LIKE)
    server = servers.launch("--model-path", str(folder), "--think-budget", "5", *FLOAT32)
    yield Script(server, AutoTokenizer.from_pretrained(folder))
    assert not server.stop()


@pytest.mark.served
def test_special_marker_natural_end(special: Script) -> None:
    """A parser declares nothing to exclude. The markers were found among the tokenizer's added tokens; no
    reasoning parser was named."""
    got, think = special.ask(OPEN, "P1", 9)
    assert got == ["one", "two", "</think>", "\n\n", "answer", EOS]
    assert think == {"budget": 9, "tokens": 3, "forced_tokens": 0, "outcome": "natural"}


@pytest.mark.served
@pytest.mark.parametrize("budget", [0, 1, 2])
def test_special_marker_forced_with_the_templates_line_break(special: Script, budget: int) -> None:
    """The line break of the template must not come twice."""
    got, think = special.ask(OPEN, "P1", budget)
    assert got == [*["one", "two"][:budget], "</think>", "\n\n", "answer", EOS]
    assert think == {"budget": budget, "tokens": budget, "forced_tokens": 2, "outcome": "forced"}


@pytest.mark.served
def test_text_that_begins_like_the_marker_is_not_completed(special: Script) -> None:
    """Where the marker is one token, `<` is a less-than sign."""
    got, _ = special.ask(OPEN, "P2", 2, new=8)
    assert got[:4] == ["x", "<", "</think>", "\n\n"]


@pytest.mark.served
def test_default_budget_applies_to_requests_that_say_nothing(special: Script) -> None:
    ids = [*special.tokenizer.encode(OPEN), special.tokenizer.convert_tokens_to_ids("loop")]
    result = special.server.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 12})
    assert result["meta_info"]["think"] == {"budget": 5, "tokens": 5, "forced_tokens": 2, "outcome": "forced"}


@pytest.mark.served
def test_special_start_marker_at_a_line_start(special: Script) -> None:
    got, think = special.ask("", "P3", 2, new=12)
    assert got[:7] == ["intro", "\n", "<think>", "idea", "loop", "</think>", "\n\n"]
    assert think["outcome"] == "forced"


@pytest.mark.served
def test_no_end_of_sequence_right_after_a_forced_end(special: Script) -> None:
    """The template's line break is followed by EOS in this script, and must not be."""
    got, _ = special.ask(OPEN, "P1", 1, logit_bias={str(special.tokenizer.convert_tokens_to_ids(EOS)): 50.0})
    at = got.index("\n\n")
    assert got[at + 1] != EOS


@pytest.mark.served
def test_retraction_in_every_phase(scripted_model: Path) -> None:
    """Rows that leave and come back while thinking, in a message, in the marker and after it end up the same."""
    message = "enough of this, the answer comes now. " * 2
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32,
                            "--max-total-tokens", "400", "--schedule-conservativeness", "0.01",
                            "--chunked-prefill-size", "16", "--enable-mixed-chunk", "--think-one-step", "off",
                            SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="5")
    try:
        tokenizer = AutoTokenizer.from_pretrained(scripted_model)
        said = tokenizer.encode(message) + tokenizer.encode("</think>")
        start = [*tokenizer.encode(OPEN), tokenizer.convert_tokens_to_ids("loop")]
        budgets = [0, 1, 2, 3, 5, 8, 13, 21]
        results = server.generate_all([
            {"input_ids": start, "sampling_params": {"temperature": 0, "max_new_tokens": 160, "think_budget": {
                "max_tokens": budget, "message": message}}} for budget in budgets])
        assert sum(r["meta_info"]["num_retractions"] for r in results) > len(budgets)
        cycle = [tokenizer.convert_tokens_to_ids(t) for t in ("lo", "loo", "loop")]
        for budget, result in zip(budgets, results, strict=True):
            own = [cycle[i % 3] for i in range(budget)]
            assert result["output_ids"][: budget + len(said)] == own + said
            assert result["meta_info"]["think"] == {"budget": budget, "tokens": budget, "forced_tokens": len(said),
                                                    "outcome": "forced"}
    finally:
        assert not server.stop()
