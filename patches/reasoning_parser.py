"""The family of the server's reasoning parser, and the admission of the served model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.families import FAMILIES, Family
from sglang_ext.budget.service import build, refusing
from sglang_ext.config import Settings

SPECULATION = ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "UNO", "UAG")
"""Algorithms that verify with `eagle_sample`, and ours."""


class UnknownFamilyError(ValueError):
    """A reasoning parser whose models' way to write thinking is not known."""


def served_family(tokenizer: Any) -> Family | None:
    """The row of the server's reasoning parser; None if none is named.

    Raises:
        UnknownFamilyError: there is no row, or sglang's parser finds no markers in the tokenizer.
    """
    from sglang.srt.parser.reasoning_parser import ReasoningParser
    from sglang.srt.runtime_context import get_serving

    name = get_serving().reasoning_parser
    if not name or name == "auto":
        return None
    family = FAMILIES.get(name.lower())
    if family is None:
        raise UnknownFamilyError(f"how models of the reasoning parser {name!r} write their thinking is not known; "
                                 f"known: {', '.join(sorted(FAMILIES))}; of others the markers can be told with "
                                 "--think-start and --think-end")
    if not family.found:
        return family
    try:
        detector = ReasoningParser(name, tokenizer=tokenizer).detector
    except ValueError as error:
        raise UnknownFamilyError(f"the reasoning parser {name!r} finds no markers: {error}") from None
    return found(family, detector)


def found(family: Family, detector: Any) -> Family:
    """The row with the markers that sglang's detector found in the tokenizer or its response template.

    Raises:
        UnknownFamilyError: there are none that are fixed texts.
    """
    start, end = detector.think_start_token, detector.think_end_token
    if not start or not end or start == end:
        raise UnknownFamilyError("the model's response template has no fixed texts around its thinking")
    tool = getattr(detector, "tool_start_token", None)
    implicit = tuple(replace(i, marker=tool) for i in family.implicit) if tool else ()
    content = getattr(detector, "_content_field", None)
    answer = content.open_literals[0] if content is not None and content.open_literals else family.answer
    return replace(family, start=start, end=end, implicit=implicit, answer=answer)


def build_admission(tokenizer: Any, model_config: Any) -> Admission:
    """The admission of the served model, from the published server arguments.

    Raises:
        SettingsError: the default budget cannot be enforced on this model, or on a server set up like this.
    """
    settings = Settings.from_environment()
    unsupported = _unsupported()
    if unsupported is not None:
        return refusing(settings, f"the server runs with {unsupported}")
    try:
        family = served_family(tokenizer) if tokenizer is not None else None
    except UnknownFamilyError as error:
        if settings.think_start is None:
            return refusing(settings, str(error))
        family = None
    return build(settings, tokenizer, family, _eos_ids(tokenizer, model_config), model_config.vocab_size)


def _unsupported() -> str | None:
    """A server mode in which a budget would not be exact yet."""
    from sglang.srt.runtime_context import get_exec, get_parallel, get_spec

    algorithm = get_spec().speculative_algorithm
    if algorithm and algorithm.upper() not in SPECULATION:
        return f"speculative decoding by {algorithm}, whose verification is its own; known: {', '.join(SPECULATION)}"
    if get_parallel().pp_size > 1:
        return "pipeline parallelism"
    if get_exec().dllm.dllm_algorithm:
        return "a diffusion language model"
    return None


def _eos_ids(tokenizer: Any, model_config: Any) -> set[int]:
    """Ids that end a response, as `Req._check_token_based_finish` has them."""
    ids = set(model_config.hf_eos_token_id or ())
    if tokenizer is not None:
        ids |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
        if tokenizer.eos_token_id is not None:
            ids.add(tokenizer.eos_token_id)
    return {int(i) for i in ids}
