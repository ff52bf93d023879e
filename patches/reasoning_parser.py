"""The markers that sglang's reasoning parser looks for, and the admission of the served model."""

from __future__ import annotations

from typing import Any

from sglang_ext.budget.admission import Admission
from sglang_ext.budget.markers import ParserMarkers
from sglang_ext.budget.service import build, refusing
from sglang_ext.config import Settings

SPECULATION = ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "UNO", "UAG")
"""Algorithms that verify with `eagle_sample`, and ours."""


def parser_markers(tokenizer: Any) -> ParserMarkers | None:
    """Markers of the server's reasoning parser; None if it has none that are fixed."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser
    from sglang.srt.runtime_context import get_serving

    name = get_serving().reasoning_parser
    if not name or name == "auto":
        return None
    try:
        detector = ReasoningParser(name, tokenizer=tokenizer).detector
    except ValueError:  # a parser that is made for each request from its response template
        return None
    tool = getattr(detector, "tool_start_token", None)
    implicit = ((tool, bool(detector.tool_start_at_line_start)),) if tool else ()
    start, end = getattr(detector, "think_start_token", None), getattr(detector, "think_end_token", None)
    return ParserMarkers(start, end, implicit) if start and end else None


def build_admission(tokenizer: Any, model_config: Any) -> Admission:
    """The admission of the served model, from the published server arguments.

    Raises:
        SettingsError: the default budget cannot be enforced on this model, or on a server set up like this.
    """
    settings = Settings.from_environment()
    unsupported = _unsupported()
    if unsupported is not None:
        return refusing(settings, f"the server runs with {unsupported}")
    parser = parser_markers(tokenizer) if tokenizer is not None and settings.think_start is None else None
    return build(settings, tokenizer, parser, _eos_ids(tokenizer, model_config), model_config.vocab_size)


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
