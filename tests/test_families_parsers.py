"""sglang's own parser of each family, on random responses: what a client sees as thinking was counted, and limited."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from block_scanner import Scanner
from budget_cases import DISTINCT, ROWS, SCALE, TABLE, delimiters, lifted
from detector_hooks import hooked
from family_scripts import script
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sglang_ext.budget.kernels.layout import NOT_FORCING, PENDING, Word
from sglang_ext.budget.kernels.reference import advance_row, mask_row
from sglang_ext.patches import asked as asking
from sglang_ext.patches import detectors

from sglang_ext.budget import service
from sglang_ext.budget.admission import Admission
from sglang_ext.budget.contract import Limits, ThinkBudget
from sglang_ext.budget.families import Implied
from sglang_ext.budget.results import ReasoningCounter

IDS = 40


def known() -> list[str]:
    """Rows whose markers are fixed and whose parser the installed sglang has; one of those that share both."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    kinds = {(ROWS[name], row.implied, ReasoningParser.DetectorMap[name]): name for name, row in reversed(TABLE.items())
             if row.start and name in ReasoningParser.DetectorMap}
    return sorted(kinds.values())


@pytest.fixture(scope="module", autouse=True)
def _hooks() -> Iterator[None]:
    with hooked():
        yield


@dataclass
class Response:
    """A response of a family's model.

    Attributes:
        words: of its row at the end.
        scanner: the oracle's view of it.
        used: tokens that the model chose in blocks, as the oracle has it.
    """

    name: str
    request: Any
    words: list[int]
    text: str
    counted: int
    used: int
    scanner: Scanner

    def parsed(self, sizes: list[int], thinks: bool) -> tuple[str, str]:
        """Thinking and answer as a client sees them.

        Args:
            sizes: of the pieces of a stream; none for a response in one piece.
        """
        parser = self._parser(thinks)
        if not sizes:
            thought, answer = parser.parse_non_stream(self.text)
            return thought or "", answer or ""
        parts, at = [], 0
        while at < len(self.text):
            size = sizes[len(parts) % len(sizes)]
            parts.append(parser.parse_stream_chunk(self.text[at : at + size]))
            at += size
        parts.append(parser.parse_stream_end())
        return "".join(part[0] or "" for part in parts), "".join(part[1] or "" for part in parts)

    def _parser(self, thinks: bool) -> Any:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        parser = ReasoningParser.__new__(ReasoningParser)
        force = thinks or TABLE[self.name].implied is Implied.ALWAYS
        detectors.init(ReasoningParser.__init__, parser, self.name, True, force, self.request)
        return parser


def respond(name: str, special: bool, begin: str, thinks: bool, budget: int, wanted: list[int],
            rng: random.Random) -> Response:
    """A response to a prompt that leaves a block open, holds a closed one, or an answer that goes on, or none of it."""
    a = lifted(DISTINCT[ROWS[name]], 48, special)
    admission = Admission(Limits(), a, lambda text: [], family=TABLE[name])
    service.install(admission)
    turn = next(i for i in a.vocabulary.control_ids if a.vocabulary.pieces[i] == b"<|turn|>")
    start, x = list(a.start_ids(0)), a.vocabulary.by_bytes[b"x"]
    prompt = [turn, *{"outside": [], "inside": start, "closed": [*start, x, *a.end_ids(0)[:-1]],
                      "goes on": [x, x]}[begin]]
    asked = asking.Asked(parsed=True, tools=True, prefilled=begin == "goes on")
    request = asked.resolve(thinks, False, prompt)
    row = admission.row(ThinkBudget(budget), prompt, None, request=request)
    words, program = list(row.words), [*a.program, *row.program]
    scanner, used, output = Scanner(delimiters(DISTINCT[ROWS[name]], a)), 0, list[int]()
    begin_as(scanner, asked)
    counter = ReasoningCounter(a)
    count = counter.start(prompt, request)
    for token in wanted[:IDS]:
        logits = [0.0] * len(a.vocabulary.pieces)
        mask_row(logits, words, program, a)
        forced = words[Word.CURSOR] != NOT_FORCING
        free = [i for i, value in enumerate(logits) if value == 0]
        token, inside = token if token in free else rng.choice(free), scanner.inside
        output.append(advance_row(token, words, program, a))
        forced |= output[-1] != token
        happened = scanner.feed(output[-1])
        used += not forced and (inside or "begin" in happened)
        if output[-1] in a.vocabulary.eos_ids:
            output.pop()
            break
    text = b"".join(a.vocabulary.pieces[i] for i in output).decode(errors="replace")
    private = SimpleNamespace(chat_template_kwargs=None, **{"__pydantic_private__": {asking._PRIVATE: asked}})
    return Response(name, private, words, text, counter.advance(count, output), used, scanner)


def begin_as(scanner: Scanner, asked: asking.Asked) -> None:
    assert asked.start is not None
    if asked.start.word & PENDING:
        scanner.imply()
    elif asked.start.open:
        scanner.place = "inside"


ODD_HEADER = re.compile(r"(?:^\s*to=|<\|start\|>)[^<]*<(?!\|message\|>)")
"""A header of Muse with another marker before its message: the table's and the scanner's end there, sglang's detector
reads on to the message."""


@pytest.mark.parametrize("name", known())
@settings(max_examples=int(20 * SCALE))
@given(st.booleans(), st.sampled_from(["outside", "inside", "closed", "goes on"]), st.booleans(),
       st.sampled_from([0, 1, 3, 6, 100]), st.integers(0, 2**32), st.lists(st.integers(1, 9), max_size=4))
def test_what_a_client_sees_as_thinking_was_counted_and_limited(
        name: str, special: bool, begin: str, thinks: bool, budget: int, seed: int, sizes: list[int]) -> None:
    rng = random.Random(seed)
    wanted = script(DISTINCT[ROWS[name]], lifted(DISTINCT[ROWS[name]], 48, special), rng, IDS)
    response = respond(name, special, begin, thinks, budget, wanted, rng)
    assume(name != "muse" or not ODD_HEADER.search(response.text))
    assert response.words[Word.USED] == response.used <= budget
    thought, _ = response.parsed(sizes, thinks)
    assert response.counted or not thought.strip(), (response.text, thought)
