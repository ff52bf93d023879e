"""Random ids that a model of a family would like to write."""

from __future__ import annotations

import random

from budget_cases import FAMILIES, pairs_of, texts_of

from sglang_ext.budget.automaton import Automaton, Vocabulary
from sglang_ext.budget.families import Word as HeaderWord


def script(family: str, a: Automaton, rng: random.Random, least: int) -> list[int]:
    """What a model would like to write, `least` ids or more: pieces of markers, among other ids."""
    m, v, ids = FAMILIES[family], a.vocabulary, []
    wholes = [t for p in pairs_of(family) for t in (p.start, p.end, p.start + p.label, p.end + p.start, *texts_of(p))]
    wholes += [b"\n", b"", b" "]
    headers = [b"".join(p.encode() if isinstance(p, str) else
                        rng.choice([p.text, p.text.capitalize()]).encode() if isinstance(p, HeaderWord) else
                        rng.choice([b"", b" ", b"x", "\u00a0".encode(), m.start[:1]]) for p in o.parts)
               for o in m.openings]
    control = [i for i in v.turn_ids if v.pieces[i]]
    while len(ids) < least:
        whole = rng.choice([*wholes, *headers])
        text = whole[: rng.randint(0, len(whole))] if rng.random() < 0.3 else whole
        ids += written(text, v, rng) or [rng.choice(control) if control and rng.random() < 0.4 else rng.randrange(24)]
    return ids


def written(text: bytes, v: Vocabulary, rng: random.Random) -> list[int]:
    """Ids that write a text, as long ones as there are, or as short ones."""
    longest, ids = rng.random() < 0.7, list[int]()
    while text:
        fitting = [i for i, piece in enumerate(v.pieces) if piece and text.startswith(piece)]
        size = (max if longest else min)(len(v.pieces[i]) for i in fitting)
        ids.append(rng.choice([i for i in fitting if len(v.pieces[i]) == size]))
        text = text[size:]
    return ids
