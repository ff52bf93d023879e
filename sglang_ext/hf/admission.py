"""The admission of a transformers tokenizer's budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..budget.admission import Admission
from ..budget.automaton import Automaton, Markers
from ..budget.contract import BudgetError, Limits, ThinkBudget, parse
from ..budget.families import FAMILIES, PLAIN
from ..budget.markers import encode_exact, find_markers, vocabulary_of

_automata: WeakKeyDictionary[Any, dict[Any, Automaton]] = WeakKeyDictionary()


def build_admission(tokenizer: Any, pair: tuple[str, str] | None, message: str, eos_ids: Sequence[int],
                    width: int, parser: str | None = None) -> Admission:
    """What the model's budgets need.

    Args:
        parser: name of the model's row in `FAMILIES`.

    Raises:
        ValueError: the markers are no two different texts, the row is unknown, or the message is not accepted.
    """
    if parser is not None and parser not in FAMILIES:
        raise ValueError(f"parser: {parser!r} is unknown; accepted: {', '.join(sorted(FAMILIES))}")
    start, end = pair if pair is not None else (None, None)
    if pair is not None and (not start or not end):
        raise ValueError(f"markers: {pair!r}; accepted: two different, non-empty texts")
    family = FAMILIES[parser] if parser is not None else None
    markers = find_markers(tokenizer, start, end, family)
    try:
        parse({"message": message}, Limits())
        limits = Limits(ThinkBudget(), message=message)
        if markers is None:
            return Admission(limits, None, lambda text: [], "the tokenizer tells no thinking markers; give `markers`")
        automaton = _automaton(tokenizer, markers, tuple(eos_ids), width)
        admission = Admission(limits, automaton, lambda text: encode_exact(tokenizer, automaton.vocabulary, text),
                              family=family or PLAIN)
        admission.message_ids(ThinkBudget())
    except BudgetError as error:
        raise BudgetError(str(error).replace("think_budget.message", "message")) from None
    return admission


def _automaton(tokenizer: Any, pairs: tuple[Markers, ...], eos_ids: tuple[int, ...], width: int) -> Automaton:
    """The lifted automaton, made once for a tokenizer: it takes a while.

    Raises:
        ValueError: the vocabulary cannot write the end marker.
    """
    known = _automata.setdefault(tokenizer, {})
    key = (pairs, eos_ids, width, len(tokenizer))
    if key not in known:
        try:
            known[key] = Automaton(pairs, vocabulary_of(tokenizer, pairs, eos_ids, width))
        except ValueError as error:
            raise ValueError(f"markers: the end marker {pairs[0].end.decode()!r} cannot be written: {error}") from None
    return known[key]
