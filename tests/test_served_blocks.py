"""One budget for a response, however many blocks it opens and whatever is written for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import servers
from script_client import OPEN, Script
from scripted_model import EOS, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer

pytestmark = pytest.mark.served

SCRIPTS = Scripts(
    [
        ["loop", "lo", "loo", "loop"],
        # after an end it opens the next block
        [">", "\n\n", "again", "\n", "<t", "hin", "k>", "idea", "loop"],
        # an end of its own, then a second block
        ["R", "one", "</t", "hink", ">\n", "then", "\n"],
        ["N", "uno", "due", "</", "think", ">"],
        # calls a tool while it thinks
        ["T", "hm.\n", "<tool_call>", "data", EOS],
    ]
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    folder = build_scripted_model(tmp_path_factory.mktemp("blocks"), SCRIPTS)
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", "qwen3", *FLOAT32)
    yield Script(server, AutoTokenizer.from_pretrained(folder))
    assert not server.stop()


@pytest.mark.parametrize("message", ["", "So: "])
def test_blocks_after_a_forced_end_have_nothing_left(pieces: Script, message: str) -> None:
    """The model opens a block again after it was closed; each is closed at once, and the message is said
    only once."""
    got, think = pieces.ask(OPEN, "loop", {"max_tokens": 3, "message": message}, new=60)
    text = "".join(got)
    assert text.startswith(f"lolooloop{message}</think>\n\nagain\n<think></think>\n\nagain\n<think></think>")
    assert (think["tokens"], text.count("So: ")) == (3, bool(message))


@pytest.mark.parametrize("budget", range(4, 9))
def test_blocks_after_a_natural_end_go_on_counting(pieces: Script, budget: int) -> None:
    """One budget for the whole response; the model's own end marker counts too."""
    first = ["one", "</t", "hink", ">\n"]
    second = ["idea", "loop", "lo", "loo", "loop"][: budget - len(first)]
    got, think = pieces.ask(OPEN, "R", budget, new=40)
    wanted = [*first, "then", "\n", "<t", "hin", "k>", *second, "</", "think", ">"]
    assert got[: len(wanted)] == wanted
    assert think["tokens"] == budget


@pytest.mark.parametrize("budget", [5, 6, 9])
def test_a_natural_end_just_before_the_wall_says_no_message(pieces: Script, budget: int) -> None:
    """No text leaks into the answer where the model ends by itself, also where it is longer than the tag."""
    got, think = pieces.ask(OPEN, "N", {"max_tokens": budget, "message": "I have to stop here. "}, new=9)
    assert "".join(got).startswith("unodue</think>\n\nagain")
    assert think == {"budget": budget, "tokens": 5, "forced_tokens": 0, "outcome": "natural"}


@pytest.mark.parametrize("message", ["no <think> now. ", "<think>\n", "\n<think>\nhm\n"])
def test_what_is_written_for_the_model_resets_nothing(pieces: Script, message: str) -> None:
    """A start marker in the injected text must not begin the count anew."""
    got, think = pieces.ask(OPEN, "loop", {"max_tokens": 3, "message": message}, new=40)
    assert "".join(got).startswith(f"lolooloop{message}</think>\n\nagain")
    assert think["tokens"] == 3


def test_the_model_may_open_its_own_block(pieces: Script) -> None:
    """A block that the prompt did not open is counted."""
    got, think = pieces.ask("", "then", 2, new=20)
    assert "".join(got).startswith("\n<think>idealoop</think>")
    assert think["tokens"] == 2


@pytest.mark.parametrize("budget", [2, 9])
def test_a_tool_marker_ends_nothing_in_a_request_without_tools(pieces: Script, budget: int) -> None:
    """Neither a limit nor a stop is lost behind it."""
    got, think = pieces.ask(OPEN, "T", budget)
    assert "".join(got).startswith("".join(["hm.\n", "<tool_call>", "data"][:budget]) + "</think>")
    assert think["tokens"] == budget  # after its stop the model thinks again


@pytest.mark.parametrize("value", [0, 1, 7])
def test_a_seed_and_a_temperature_move_nothing(pieces: Script, value: Any) -> None:
    got, think = pieces.ask(OPEN, "loop", value, new=30, temperature=0.01, sampling_seed=3)
    assert "".join(got[value : value + 3]) == "</think>"
    assert think["tokens"] == value
