"""The one `Admission` of a process, made when the process has its tokenizer."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ..config import Settings, SettingsError
from .admission import UNKNOWN_MARKERS, Admission
from .automaton import Automaton
from .contract import STOP_MESSAGE, BudgetError, ThinkBudget
from .families import Family
from .markers import encode_exact, family_of, markers_of, vocabulary_of

logger = logging.getLogger(__name__)
_current: Admission | None = None


def build(settings: Settings, tokenizer: Any, family: Family | None, eos_ids: set[int], width: int) -> Admission:
    """What a served model's budgets need, from its tokenizer.

    Args:
        tokenizer: None where the server runs without one.
        family: the row of the server's reasoning parser.
        eos_ids: ids that end a response.
        width: how many ids the model can write.

    Raises:
        SettingsError: the operator's default budget cannot be enforced on this model.
    """
    if tokenizer is None:
        return refusing(settings, "the server runs without a tokenizer")
    row = family_of(tokenizer, settings.think_start, settings.think_end, family)
    if row is None:
        return refusing(settings, UNKNOWN_MARKERS)
    pairs = markers_of(tokenizer, row)
    try:
        vocabulary = vocabulary_of(tokenizer, pairs, sorted(eos_ids), width)
    except ValueError as error:
        return refusing(settings, f"the end marker {pairs[0].end.decode()!r} cannot be written: {error}")
    automaton = Automaton(pairs, vocabulary)

    def encode(text: str) -> list[int]:
        return encode_exact(tokenizer, vocabulary, text)

    admission = Admission(settings.limits, automaton, encode, family=row)
    try:
        admission.message_ids(admission.limits.default or ThinkBudget())
    except BudgetError as error:
        if settings.think_message != STOP_MESSAGE:
            raise SettingsError(str(error).replace("think_budget.message", "--think-message")) from None
        logger.warning("no stop message: this model cannot be made to write the default one (%s)", error)
        return Admission(replace(settings, think_message="").limits, automaton, encode, family=row)
    return admission


def refusing(settings: Settings, reason: str) -> Admission:
    """An admission for a server that cannot enforce budgets: it refuses every limited one.

    Raises:
        SettingsError: the operator's default, or that of an effort, is a limited budget.
    """
    if settings.enforces:
        default = settings.limits.default
        what = "the default think budget" if default is not None and default.limited else "--think-effort"
        raise SettingsError(f"{what} cannot be enforced: {reason}")
    return Admission(settings.limits, None, lambda text: [], reason)


def install(admission: Admission) -> None:
    """Make this the process's admission."""
    global _current
    _current = admission


def current_or_none() -> Admission | None:
    """The process's admission; None in a process that serves no requests."""
    return _current


def current() -> Admission:
    """The process's admission.

    Raises:
        RuntimeError: none was installed, so budgets would not be enforced.
    """
    if _current is None:
        raise RuntimeError("sglang-ext: this process serves without its think budgets; refusing")
    return _current
