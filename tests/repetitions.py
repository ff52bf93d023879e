"""Texts that repeat themselves with good reason: in none of them does a model go round in circles."""

from __future__ import annotations

import json


def _table(rows: int, columns: int) -> str:
    head = "| " + " | ".join(f"column {c}" for c in range(columns)) + " |\n" + "|" + "---|" * columns + "\n"
    return head + "".join("| " + " | ".join(str(r * c) for c in range(columns)) + " |\n" for r in range(rows))


def _sums(count: int) -> str:
    """As the demo reasoner thinks."""
    total, lines = 17, ["17"]
    for i in range(count):
        number = 9 + 7 * i % 80
        total += number
        lines.append(f" +{number}={total}")
    return "\n".join(lines)


_VERSE = ("The {0} on the bus go {1}, {1}, {1},\n{1}, {1}, {1}, {1}, {1}, {1}.\nThe {0} on the bus go {1}, {1}, {1},\n"
          "all through the town.\n\n")
_BOTTLES = ("{0} bottles of beer on the wall, {0} bottles of beer.\nTake one down and pass it around, {1} bottles of "
            "beer on the wall.\n\n")
_REFRAIN = "And we sail away, and we sail away,\nover the hills and far away.\n\n"

HONEST = {
    "a table": _table(60, 8),
    "a wide table of equal cells": _table(1, 30) + ("| 0 " * 12 + "|\n") * 5,
    "a multiplication table": "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 13) for b in range(1, 13)),
    "lyrics with a refrain": "".join(_VERSE.format(*pair) + _REFRAIN for pair in (
        ("wheels", "round and round"), ("wipers", "swish, swish, swish"), ("horn", "beep, beep, beep"),
        ("doors", "open and shut"), ("driver", "move on back"), ("babies", "wah, wah, wah"))),
    "a refrain three times": _REFRAIN * 3 + "Home again." + _REFRAIN * 3,
    "a song of bottles": "".join(_BOTTLES.format(n, n - 1) for n in range(99, 0, -1)),
    "a sung line": "Na, na na, nananana, nananana, hey you. " * 12,
    "a JSON array of objects": json.dumps([{"id": i, "name": "item", "price": 0, "tags": []} for i in range(80)]),
    "a JSON array of zeros": json.dumps([0] * 128),
    "a JSON array of equal objects": json.dumps([{"value": None, "ok": True}] * 12),
    "a matrix of zeros": json.dumps([[0] * 12] * 12, indent=None),
    "an identity matrix": "\n".join(" ".join("1" if r == c else "0" for c in range(24)) for r in range(24)),
    "rulers": ("-" * 80 + "\n" + "A heading\n" + "=" * 80 + "\n") * 3,
    "code of similar lines": "".join(f"    self.field_{i} = other.field_{i}\n" for i in range(120)),
    "code of equal blocks": "".join(f"case {i}:\n    count += 1;\n    break;\n" for i in range(90)),
    "a list of dots": "\n".join(f"Chapter {i} {'.' * 60} {i * 7}" for i in range(1, 40)),
    "a loop that is counted": "".join(f"Step {i}: check {i}. It is not a divisor of 9973.\n" for i in range(2, 99)),
    "sums of the reasoner": _sums(90),
    "bits": " ".join(f"{n:08b}" for n in range(256)),
    "a hex dump": "\n".join(f"{a:08x}  " + "00 " * 16 for a in range(0, 16 * 16, 16)),
}
