"""The admission of a transformers tokenizer's budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..budget.admission import Admission
from ..budget.automaton import Automaton, Markers
from ..budget.contract import BudgetError, Limits, ThinkBudget, parse
from ..budget.markers import encode_exact, find_markers, vocabulary_of

_automata: WeakKeyDictionary[Any, dict[Any, Automaton]] = WeakKeyDictionary()


def build_admission(tokenizer: Any, pair: tuple[str, str] | None, message: str, eos_ids: Sequence[int],
               width: int) -> Admission:
    """What the model's budgets need.

    Raises:
        ValueError: the markers are no two different texts, or the message is not accepted.
    """
    start, end = pair if pair is not None else (None, None)
    if pair is not None and (not start or not end):
        raise ValueError(f"markers: {pair!r}; accepted: two different, non-empty texts")
    markers = find_markers(tokenizer, start, end, None)
    try:
        parse({"message": message}, Limits())
        limits = Limits(ThinkBudget(), message=message)
        if markers is None:
            return Admission(limits, None, lambda text: [], "the tokenizer tells no thinking markers; give `markers`")
        automaton = _automaton(tokenizer, markers, tuple(eos_ids), width)
        admission = Admission(limits, automaton, lambda text: encode_exact(tokenizer, automaton.vocabulary, text))
        admission.message_ids(ThinkBudget())
    except BudgetError as error:
        raise BudgetError(str(error).replace("think_budget.message", "message")) from None
    return admission


def _automaton(tokenizer: Any, markers: Markers, eos_ids: tuple[int, ...], width: int) -> Automaton:
    """The lifted automaton, made once for a tokenizer: it takes a while.

    Raises:
        ValueError: the vocabulary cannot write the end marker.
    """
    known = _automata.setdefault(tokenizer, {})
    key = (markers, eos_ids, width, len(tokenizer))
    if key not in known:
        try:
            known[key] = Automaton(markers, vocabulary_of(tokenizer, markers, eos_ids, width))
        except ValueError as error:
            raise ValueError(f"markers: the end marker {markers.end.decode()!r} cannot be written: {error}") from None
    return known[key]
