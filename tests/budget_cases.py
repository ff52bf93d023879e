"""Random think-budget batches, and the check that an implementation equals `reference` on them.

The same checks run on the host, in Triton's interpreter (TRITON_INTERPRET=1 in the environment before the start) and
on a GPU where there is one. BUDGET_TEST_SCALE multiplies the number of examples; above 1 the shapes grow too.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from block_scanner import Delimiters
from hypothesis import strategies as st
from sglang_ext.budget.kernels import BudgetState, Flag, Outcome, Tables, Word, device
from sglang_ext.budget.kernels import reference as ref
from sglang_ext.budget.kernels.layout import INSIDE, NO_LIMIT, NOT_FORCING, WORDS

from sglang_ext.budget.automaton import Automaton, ImplicitEnd, Markers, Vocabulary
from sglang_ext.budget.families import FAMILIES as TABLE
from sglang_ext.budget.families import Word as HeaderWord

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SCALE = float(os.environ.get("BUDGET_TEST_SCALE", "1"))
if INTERPRETED:
    device.SPAN = 1024  # several programs a row, at a size that the interpreter can do
DEVICES = ["cuda"] if torch.cuda.is_available() and not INTERPRETED else ["cpu"]
MESSAGE = 4  # most ids of a message
POISON = 777.0
SANITISED = -1e30
"""What sglang puts in the place of -inf where it sanitises logits: an id that a grammar has banned."""

FAMILIES = {
    "plain": Markers(b"<t>", b"</t>", b"\n\n", (ImplicitEnd(b"<c>"),)),
    "at line start": Markers(b"<t>", b"</t>", b"", (ImplicitEnd(b"\n<c", True), ImplicitEnd(b"cc"))),
    "overlaps itself": Markers(b"bb", b"aab", b"\n"),
    "periodic": Markers(b"aba", b"abab", b""),
    "shared prefix": Markers(b"<ta>", b"<tb>", b"\n"),
    "line break inside": Markers(b"\n<t", b"\n</t", b"\n"),
    "one byte": Markers(b"s", b"e", b""),
    "characters": Markers("⟨é".encode(), "é⟩".encode(), b"\n", (ImplicitEnd("⟩😀".encode()),)),
    "calls with a head": Markers(b"<t>", b"</t>", b"\n", (ImplicitEnd(b"<c>", heads=(b"{", b"<f")),)),
    "calls with a name": Markers(b"<t>", b"</t>", b"", (ImplicitEnd(b"<c>", heads=(b"<a",), name=True),)),
    "shared end": Markers(b"<t>", b"|", b"<s>", anywhere=True, shared_end=True),
    "a header for the answer": Markers(b"<t>", b"</t>", b"<a>"),
    "label": Markers(b"<t>", b"</t>", b"", label=b"tt\n", anywhere=True),
    "goes on behind a call": Markers(b"<t>", b"</t>", b"", (ImplicitEnd(b"<c", until=b"c>"),)),
    "several pairs": Markers(b"<t>", b"</t>", b"\n", (ImplicitEnd(b"<c", heads=(b">",)),)),
}
MORE = {"several pairs": (replace(FAMILIES["several pairs"], start=b"<tt>", end=b"</tt>"),
                          replace(FAMILIES["several pairs"], start=b"u>", end=b"u<>"))}
"""Further pairs of markers that a response may have."""
ROWS = {name: pairs[0] for name, row in TABLE.items() if row.start
        for pairs in [Markers.of(row, "\n" if row.answer is None else "")]}
MORE |= {name: Markers.of(row, "\n")[1:] for name, row in TABLE.items() if row.more}
DISTINCT = {markers: name for name, markers in reversed(ROWS.items())}
FAMILIES |= {name: markers for markers, name in DISTINCT.items()}
"""Made up, and the rows of the table that differ as bytes."""
CONTROL = re.compile(r"<[|][^<>]*[|]?>|\[/?[A-Z]+\]|<[a-z]+\|>|◁/?think▷|</?[a-z:]*think[a-z_]*>|<\w*\|[a-z_]+>")
"""What is one id in a vocabulary with control tokens, in the rows of the table."""


def texts_of(m: Markers) -> list[bytes]:
    """All texts that markers look for."""
    headers = [p.encode() for o in m.openings for p in o.parts if isinstance(p, str)]
    headers += [t.encode() for o in m.openings for p in o.parts if isinstance(p, HeaderWord)
                for t in (p.text, p.text.capitalize())]
    calls = [p for i in m.implicit for p in (*i.patterns, i.until) if p]
    return [m.start, m.end, *headers, *calls, *(t for t in (m.label, m.line_break) if t)]


def pairs_of(family: str) -> tuple[Markers, ...]:
    """All pairs of markers of a family."""
    return (FAMILIES[family], *MORE.get(family, ()))


def row_vocabulary(pairs: Sequence[Markers], special: bool) -> Vocabulary:
    """A vocabulary of a row of the table: control tokens as ids of their own, or bytes alone."""
    m, texts = pairs[0], list(dict.fromkeys(text for pair in pairs for text in texts_of(pair)))
    found = {c for t in texts for c in CONTROL.findall(t.decode())} if special else set()
    control = sorted({"<|turn|>", *found})
    alphabet = sorted({b for t in texts for b in t} | {0x0A, 0x20, 0x78, 0xC3, 0xA9, 0xC2, 0xA0, 0xF0, 0x9F})
    pieces = [b"", b"<eos>", *(c.encode() for c in control), *(bytes([b]) for b in alphabet),
              *(t for t in texts if 1 < len(t) < 9), b"x\n", m.end + b"\n", m.end[-1:] + b"\n" + m.start[:2],
              "é".encode(), "\u00a0".encode(), b"to=", b" \t"]
    at = {piece: i for i, piece in reversed(list(enumerate(pieces)))}

    def ids(text: bytes) -> tuple[int, ...]:
        parts = re.split(f"({CONTROL.pattern})", text.decode()) if special else [text.decode()]
        return tuple(i for part in parts for i in (
            [at[part.encode()]] if special and CONTROL.fullmatch(part) else [at[bytes([b])] for b in part.encode()]))

    marks = {at[c.encode()] for c in control}
    inside = marks & {i for text in texts for i in ids(text)}
    single = ids(m.start)
    return Vocabulary(pieces, single[0] if len(single) == 1 else None, ids(m.end), ids(m.line_break), (1,),
                      frozenset(marks - inside), frozenset(inside), None,
                      {text: ids(text) for text in texts})


@lru_cache(maxsize=256)
def lifted(family: str, vocab: int, special: bool) -> Automaton:
    """An automaton over `vocab` ids, with the markers as ids of their own or written in pieces."""
    rng = random.Random(f"{family} {vocab} {special}")
    m = FAMILIES[family]
    pairs = pairs_of(family)
    if family in TABLE:
        return Automaton(pairs, row_vocabulary(pairs, special), MESSAGE)
    texts = [text for pair in pairs for text in texts_of(pair)]
    alphabet = sorted({*(b for text in texts for b in text), 0x0A, 0x20, 0xC3, 0xE2, 0xF0, 0x9F})
    pieces = [b"", b"<eos>", *([m.start, m.end] if special else []), *(bytes([b]) for b in alphabet)]
    pieces += [m.end + m.start, m.end + b"\n" + m.start + b"x", m.start + m.end, m.end[:-1], b"x" + m.end[:1],
               m.end[1:], m.end[-1:] + b"\n", m.start[:-1], m.start[-1:] + b"x", b"\n" + m.start, b"x\n", b""]
    while len(pieces) < vocab:
        pieces.append(bytes(rng.choices([*alphabet, 0x78], k=rng.randint(1, 5))))
    del pieces[vocab:]
    by_byte = {p: i for i, p in reversed(list(enumerate(pieces))) if len(p) == 1}
    spelled = [by_byte[bytes([b])] for b in m.end]
    others = {text: tuple(by_byte[bytes([b])] for b in text) for pair in pairs[1:] for text in (pair.start, pair.end)}
    return Automaton(pairs, Vocabulary(pieces, 2 if special else None, (3,) if special else tuple(spelled),
                                   tuple(by_byte[bytes([b])] for b in m.line_break), (1,),
                                   header_ids=frozenset({2} if special else ()), written=others), MESSAGE)


def delimiters(family: str, a: Automaton) -> Delimiters:
    """The same rules for the oracle."""
    m, v = FAMILIES[family], a.vocabulary
    control = v.control_ids | (v.header_ids if m.anywhere else frozenset())
    return Delimiters(m.start, m.end, v.pieces, v.eos_ids, m.implicit, [(p.start, p.end) for p in pairs_of(family)[1:]],
                      m.openings, control, m.line_break, m.label, m.shared_end, everywhere(family, a))


def everywhere(family: str, a: Automaton) -> bool:
    """Whether an opening may begin at any byte, as no control token begins it."""
    m, v = FAMILIES[family], a.vocabulary
    return m.anywhere and not any(v.pieces[i] and m.start.startswith(v.pieces[i]) for i in v.turn_ids)


@dataclass
class Case:
    """A batch on a device, with the same state as plain lists for the reference."""

    automaton: Automaton
    tables: Tables
    state: BudgetState
    rows: torch.Tensor  # [n]
    words: dict[int, list[int]]
    program: list[int]
    rng: random.Random
    dtype: torch.dtype
    width: int  # columns of logits

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def slots(self) -> list[int]:
        return [int(slot) for slot in self.rows]

    def token(self) -> int:
        """Any id, more often one that does something; now and then one beyond the tokenizer's vocabulary."""
        known = len(self.automaton.token_class)
        return self.rng.randrange(min(known, 32)) if self.rng.random() < 0.8 else self.rng.randrange(self.width)

    def logits(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits with NaN and infinities among them, inside a poisoned buffer; returns both."""
        gap = self.rng.choice([0, 1, 3, 16])
        buffer = torch.full((rows + 2, self.width + gap), POISON, dtype=self.dtype)
        values = torch.randn(rows, self.width, generator=torch.Generator().manual_seed(self.rng.getrandbits(30)))
        for row in values:
            for value in (torch.nan, torch.inf, -torch.inf, -torch.inf, SANITISED):
                row[self.rng.randrange(self.width)] = value
        if rows > 1:
            values[self.rng.randrange(rows)] = self.rng.choice([-torch.inf, torch.nan])
        buffer[1:-1, : self.width] = values.to(self.dtype)
        buffer = buffer.to(self.device)
        return buffer[1:-1, : self.width], buffer

    def check_words(self) -> None:
        for slot, row in self.words.items():
            assert self.state.words[slot].tolist() == row, slot


def make_case(family: str, vocab: int, special: bool, batch: int, dtype: torch.dtype, padding: int, seed: int,
              where: str) -> Case:
    a, rng = lifted(family, vocab, special), random.Random(seed)
    slots = batch + rng.randint(0, 9)
    state = BudgetState.allocate(slots, a.program, MESSAGE + len(a.program), "cpu")
    rows = rng.sample(range(slots), batch)
    idle = [rng.random() < 0.1 for _ in rows]
    for slot in range(slots):
        state.words[slot] = torch.tensor(random_row(a, state, slot, rng), dtype=torch.int32)
    words, program = {s: state.words[s].tolist() for s in range(slots)}, state.program.tolist()
    state = BudgetState(state.words.to(where), state.program.to(where), state.shared, state.stride)
    index = torch.tensor([-1 if i else r for r, i in zip(rows, idle, strict=True)],
                         dtype=rng.choice([torch.int32, torch.int64]))
    return Case(a, Tables.from_host(a, where), state, index.to(where), words, program, rng, dtype,
                max(vocab, len(a.token_class)) + padding)


def random_row(a: Automaton, state: BudgetState, slot: int, rng: random.Random) -> list[int]:
    """Any words a slot may have: any state of the automaton, any limits, forcing or not, recycled ones included."""
    start = state.program_start(slot)
    message = [rng.randrange(len(a.token_class)) for _ in range(rng.randint(0, MESSAGE))]
    sequence = [*message, *a.end_ids(0)]
    program = a.side_by_side([[*message, *a.end_ids(pair)] for pair in range(len(a.pairs))])
    state.program[start : start + len(program)] = torch.tensor(program, dtype=torch.int32)
    auto = int(rng.choice(a.bytewise.words))
    limit = rng.choice([0, 1, 2, 5, NO_LIMIT])
    row = [0] * WORDS
    row[Word.AUTO], row[Word.USED], row[Word.FORCED] = auto, rng.randint(0, 6), rng.randint(0, 3)
    row[Word.CURSOR], row[Word.FORCE_START] = NOT_FORCING, rng.choice([0, start])
    row[Word.OUTCOME] = Outcome.OPEN if auto & INSIDE else rng.choice(list(Outcome))
    row[Word.FLAGS] = rng.choice([0, 1, 1, 1]) * (Flag.ACTIVE | rng.randrange(32))
    row[Word.MAX], row[Word.MIN] = limit, rng.choice([0, 0, 3, 8])
    row[Word.GRACE] = rng.choice([NO_LIMIT, 0, max(0, limit - 2)])
    row[Word.TOTAL], row[Word.RESPONSE_LIMIT] = rng.randint(0, 6), rng.choice([NO_LIMIT, NO_LIMIT, 3, 8])
    ref.start_forcing_if_due(row, a, chosen=False)
    if rng.random() < 0.25:
        row[Word.CURSOR] = start + rng.randrange(len(sequence) - 1)
        row[Word.REASON] = rng.choice([Outcome.GRACE, Outcome.FORCED, Outcome.EOS])
    return row


@st.composite
def cases(draw: st.DrawFn, most_rows: int = 300, nodes: int = 1) -> Case:
    """Batches within a bound on rows * nodes * vocabulary, which is what the plain reference takes its time for."""
    room = (60_000 if INTERPRETED else 300_000) * max(1, int(SCALE)) // nodes
    small = INTERPRETED and SCALE <= 1
    smallest = 48
    vocab = draw(st.sampled_from([7, 48, 49, 61, 1025, 2500, *([] if small else [5003, 32_768, 50_257, 262_144])]))
    family = "one byte" if vocab < smallest else draw(st.sampled_from(sorted(FAMILIES)))
    batch = draw(st.integers(1, max(1, min(4 if small else most_rows, room // vocab))))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]))
    return make_case(family, vocab, vocab >= smallest and draw(st.booleans()), batch, dtype,
                     draw(st.sampled_from([0, 1, 7])), draw(st.integers(0, 2**32)), draw(st.sampled_from(DEVICES)))


def masked(logits: torch.Tensor, words: list[list[int] | None], case: Case) -> torch.Tensor:
    """What the logits should become; rows without words are idle."""
    expected = logits.cpu().clone()
    lost = ref.masked_logit(torch.finfo(case.dtype).min)
    for i, row in enumerate(words):
        if row is not None and row[Word.FLAGS] & Flag.ACTIVE:
            values = expected[i].tolist()
            ref.mask_row(values, row, case.program, case.automaton, lost)
            expected[i] = torch.tensor(values, dtype=torch.float64).to(case.dtype)
    return expected


def assert_only(logits: torch.Tensor, buffer: torch.Tensor, expected: torch.Tensor) -> None:
    """The logits are as expected, and nothing around them was written."""
    torch.testing.assert_close(logits.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    around = buffer.cpu().clone()
    around[1:-1, : logits.shape[1]] = POISON
    assert bool((around == POISON).all())
