"""The one `Admission` of a process, made when the process has its tokenizer."""

from __future__ import annotations

from typing import Any

from ..config import Settings, SettingsError
from .admission import UNKNOWN_MARKERS, Admission
from .automaton import Automaton
from .contract import BudgetError, ThinkBudget
from .markers import ParserMarkers, encode_exact, find_markers, vocabulary_of

_current: Admission | None = None


def build(settings: Settings, tokenizer: Any, parser: ParserMarkers | None, eos_ids: set[int],
          width: int) -> Admission:
    """What a served model's budgets need, from its tokenizer.

    Args:
        tokenizer: None where the server runs without one.
        parser: what the server's reasoning parser looks for.
        eos_ids: ids that end a response.
        width: how many ids the model can write.

    Raises:
        SettingsError: the operator's default budget cannot be enforced on this model.
    """
    limits = settings.limits
    if tokenizer is None:
        return refusing(settings, "the server runs without a tokenizer")
    markers = find_markers(tokenizer, settings.think_start, settings.think_end, parser)
    if markers is None:
        return refusing(settings, UNKNOWN_MARKERS)
    try:
        vocabulary = vocabulary_of(tokenizer, markers, sorted(eos_ids), width)
    except ValueError as error:
        return refusing(settings, f"the end marker {markers.end.decode()!r} cannot be written: {error}")
    automaton = Automaton(markers, vocabulary)
    admission = Admission(limits, automaton, lambda text: encode_exact(tokenizer, vocabulary, text))
    try:
        admission.message_ids(limits.default or ThinkBudget())
    except BudgetError as error:
        raise SettingsError(str(error).replace("think_budget.message", "--think-message")) from None
    return admission


def refusing(settings: Settings, reason: str) -> Admission:
    """An admission for a server that cannot enforce budgets: it refuses every limited one.

    Raises:
        SettingsError: the operator's default is a limited budget.
    """
    if settings.enforces:
        raise SettingsError(f"the default think budget cannot be enforced: {reason}")
    return Admission(settings.limits, None, lambda text: [], reason)


def install(admission: Admission) -> None:
    """Make this the process's admission."""
    global _current
    _current = admission


def current() -> Admission:
    """The process's admission.

    Raises:
        RuntimeError: none was installed, so budgets would not be enforced.
    """
    if _current is None:
        raise RuntimeError("sglang-ext: this process serves without its think budgets; refusing")
    return _current
