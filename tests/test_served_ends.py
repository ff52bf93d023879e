"""How thinking ends when the operator sets nothing but a reserve for the answer: nothing is cut in the middle of a
character, the default message is said, and the answer always has its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import servers
from script_client import OPEN, Script
from scripted_model import EOS, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer

from sglang_ext.budget.contract import STOP_MESSAGE

pytestmark = pytest.mark.served

RESERVE = 6
SMILE, E_ACUTE = list("ðŁĺĢ"), list("Ã©")  # the bytes of two characters, as byte-level BPE writes them
SCRIPTS = Scripts(
    [
        ["loop", "lo", "loo", "loop"],
        ["S", "a", *SMILE, "b", "c", "d", "e", "loop"],
        ["E", "f", "g", *E_ACUTE, "h", "loop"],
        ["L", "intro", "\n", "<t", "hin", "k>", "idea", "loop"],
        [">", "\n\n", "answer", "more", "answer"],
        ["D", "what", EOS],
    ]
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    folder = build_scripted_model(tmp_path_factory.mktemp("ends"), SCRIPTS)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", "qwen3", "--think-answer-tokens",
                            str(RESERVE), "--think-message", STOP_MESSAGE, *FLOAT32)
    yield Script(server, AutoTokenizer.from_pretrained(folder))
    assert not server.stop()


def text(pieces: Script, got: list[str]) -> str:
    ids = [pieces.tokenizer.convert_tokens_to_ids(p.replace("\n", "Ċ").replace(" ", "Ġ")) for p in got]
    return str(pieces.tokenizer.decode(ids))


@pytest.mark.parametrize("start", ["S", "E"])
@pytest.mark.parametrize("budget", range(9))
@pytest.mark.parametrize("message", ["", "So: "])
def test_no_character_is_cut_at_the_wall(pieces: Script, start: str, budget: int, message: str) -> None:
    got, think = pieces.ask(OPEN, start, {"max_tokens": budget, "message": message}, new=40)
    thought, _, answer = text(pieces, got).partition("</think>")
    assert "�" not in thought
    assert answer
    assert thought.endswith(message) or think["outcome"] == "eos"
    assert think["tokens"] <= budget
    own = ["a", *SMILE, "b", "c", "d", "e"] if start == "S" else ["f", "g", *E_ACUTE, "h", "loop"]
    half = range(2, 5) if start == "S" else range(3, 4)
    if budget not in half and budget <= len(own):
        assert got[:budget] == own[:budget], "where nothing would be cut, the model chooses"


def test_default_message(pieces: Script) -> None:
    got, think = pieces.ask(OPEN, "loop", 3, new=200)
    assert text(pieces, got).startswith(f"lolooloop{STOP_MESSAGE}</think>\n\nanswer")
    assert think["tokens"] == 3


@pytest.mark.parametrize("new", [20, 21, 30, 90])
@pytest.mark.parametrize("budget", [None, -1, 50])
def test_the_answer_has_its_tokens(pieces: Script, new: int, budget: int | None) -> None:
    """Never an empty answer: with and without an explicit budget, thinking leaves what the server keeps back."""
    value: Any = None if budget is None else {"max_tokens": budget, "message": ""}
    got, think = pieces.ask(OPEN, "loop", value, new=new)
    assert len(got) == new
    assert len("".join(got).split("</think>")) == 2
    assert "".join(got[-RESERVE:]).strip().startswith(("answer", "more"))
    assert think["outcome"] == "forced"


@pytest.mark.parametrize("reserve", [4, 9, 11])
def test_a_block_opened_late_leaves_the_answer_its_tokens(pieces: Script, reserve: int) -> None:
    new, closing = 25, len(["</", "think", ">"])
    got, think = pieces.ask("", "L", {"answer_tokens": reserve, "message": ""}, new=new)
    assert "".join(got[: new - reserve]).endswith("</think>")
    assert got.count("</") == 1
    assert "".join(got[new - reserve :]).startswith("\n\nanswer")
    assert think["tokens"] == new - reserve - closing - len(["intro", "\n", "<t", "hin", "k>"])


def test_a_reserve_without_room_for_the_block_at_all(pieces: Script) -> None:
    got, think = pieces.ask("", "L", {"answer_tokens": 11, "message": ""}, new=14)
    assert "".join(got).startswith("intro\n<think></think>\n\nanswer")
    assert think["tokens"] == 0


@pytest.mark.parametrize(("new", "said"), [(20, False), (300, True)])
def test_the_default_message_does_not_take_the_answers_place(pieces: Script, new: int, said: bool) -> None:
    """Budget and message fit into a long response; into a short one only the budget and the end."""
    got, think = pieces.ask(OPEN, "loop", 3, new=new)
    assert (STOP_MESSAGE in text(pieces, got)) == said
    assert "</think>\n\nanswer" in text(pieces, got)
    assert think["tokens"] == 3


def test_end_of_sequence_with_nothing_but_a_reserve(pieces: Script) -> None:
    """The model says its answer inside the block and stops there."""
    got, think = pieces.ask(OPEN, "D", None, new=300)
    assert text(pieces, got).startswith("what</think>\n\nanswer")
    assert think["outcome"] == "eos"
