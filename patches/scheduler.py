"""`Scheduler`: a request gets its row when it enters, and its results leave with its output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sglang_ext.budget.kernels.layout import NOT_FORCING, Word

from sglang_ext.budget import service
from sglang_ext.budget.admission import Outlook, RequestRow
from sglang_ext.budget.contract import BudgetError, ThinkBudget
from sglang_ext.budget.families import Implied
from sglang_ext.budget.prompt import Request
from sglang_ext.budget.results import ReasoningCounter
from sglang_ext.budget.spelling import spellings
from sglang_ext.budget.stops import Seams
from sglang_ext.config import SettingsError

from .asked import REQUEST_KEY
from .launch import READY_KEY, REFUSED
from .reasoner_grammar import follow
from .reasoning_parser import build_admission
from .registry import check_applied
from .speculation import UAG_KEY, result_of
from .tokenizer_manager import GRAMMARS
from .usage import RESULT_KEY, Report


class Thinking:
    """A request's budget and, from its first prefill on, its row. Hangs on sglang's `Req` as `think`.

    Attributes:
        read_after: number of the forward whose token for this request is in its output already (`one_step.py`), or -1.
    """

    def __init__(self, budget: ThinkBudget, request: Request) -> None:
        self.budget = budget
        self.request = request
        self.seams = Seams()
        self.read_after = -1
        self._row: RequestRow | None = None
        self._announced: tuple[int, int] | None = None  # ids written by the budget so far, tokens taken in by the step
        self._written = 0

    def row(self, req: Any) -> RequestRow:
        """The request's row, made once its prompt and length limit are final."""
        if self._row is None:
            params = req.sampling_params
            grammar = any(getattr(params, name) for name in GRAMMARS)
            self._row = service.current().row(self.budget, req.origin_input_ids, params.max_new_tokens,
                                              ignore_eos=params.ignore_eos, grammar=grammar, request=self.request)
            automaton = service.current().automaton
            if grammar and automaton is not None:
                follow(req.grammar, automaton, self._row.words[Word.AUTO], self.request.tools)
        return self._row

    def note(self, words: list[int], length: int) -> None:
        """Take a slot's words [WORDS] after `length` output tokens."""
        if self._row is not None:
            self._row.note(words, length)

    def announce(self, words: list[int], taken: int) -> None:
        """Take a slot's words [WORDS] after a step whose `taken` tokens are not in the output yet."""
        self._announced = words[Word.FORCED], taken

    def mark(self, req: Any, new: int) -> None:
        """Tell which of the output's last `new` tokens the budget wrote, before stops are looked for among them."""
        announced, self._announced = self._announced, None
        if announced is not None and announced[0] <= self._written:
            return
        begin = len(req.output_ids) - new
        if announced == (self._written + new, new):
            forced = [True] * new
        else:
            outlook = service.current().outlook(self.row(req), req.output_ids[:begin])
            forced = outlook.forced(req.output_ids[begin:])
            if announced is not None and announced[1] == new and announced[0] - self._written > sum(forced):
                forced[-1] = True  # an EOS of the model's, which ends a step, became the end marker
        self._written += sum(forced)
        self.seams.add(forced, begin)

    def wrote(self, begin: int, count: int) -> None:
        """Take note of `count` ids, from `begin` on, that were put into the output without a step of their own."""
        self._written += count
        self.seams.add([True] * count, begin)

    def replay(self, output: Sequence[int]) -> None:
        """Note the words after an output that ended within a step."""
        if self._row is not None:
            self._row.note(service.current().rebuilt(self._row, output), len(output))

    def forces(self, length: int) -> bool:
        """Whether the host knows that the budget writes the token after the first `length`."""
        row = self._row
        return row is not None and bool(row.latest) and row.latest_length == length and (
            row.latest[Word.CURSOR] != NOT_FORCING)

    def to_come(self, req: Any, most: int) -> list[int]:
        """What the budget forces after the request's output so far, at most `most` ids."""
        return service.current().outlook(self.row(req), req.output_ids).complete((), most)

    def outlook(self, output: Sequence[int]) -> Outlook | None:
        """What the budget does after this output; None before the first prefill."""
        return None if self._row is None else service.current().outlook(self._row, output)

    def result(self) -> dict[str, Any]:
        """The request's `think` object; of one that ended before its first prefill, all zero."""
        if self._row is not None:
            return self._row.result()
        return {"budget": self.budget.max_tokens, "tokens": 0, "forced_tokens": 0, "outcome": "none"}


def init_tokenizer(original: Callable[..., Any], self: Any) -> None:
    original(self)
    try:
        service.install(build_admission(self.tokenizer, self.model_config))
    except SettingsError as error:  # sglang would print a traceback and kill the process that started this one
        print(f"sglang-ext: {error}", file=sys.stderr, flush=True)
        raise SystemExit(REFUSED) from None


def get_init_info(original: Callable[..., Any], self: Any) -> dict[str, Any]:
    check_applied()
    return {**original(self), READY_KEY: True}


def init_request(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.think, self.think_error = None, None
    custom = self.sampling_params.custom_params
    given = list(spellings(custom, "custom_params.")) if isinstance(custom, dict) else []
    try:
        budget = service.current().admit(given, None)
    except BudgetError as error:
        self.think_error = str(error)
    else:
        request = Request.of(custom.get(REQUEST_KEY) if isinstance(custom, dict) else None)
        self.think = Thinking(budget, request) if budget is not None else None


def validate_dllm_request(original: Callable[..., Any], self: Any, req: Any) -> str | None:
    return getattr(req, "think_error", None) or original(self, req)


def get_output_streamer_class(original: Callable[..., Any], self: Any) -> type:
    return _with_results(original(self))


@cache
def _with_results(base: type) -> type:
    """sglang's output streamer, or another plugin's, with a report on the thinking beside every output."""

    class ThinkOutputStreamer(base):  # type: ignore[misc]
        has_additional_customized_info = True

        def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
            info, counter = super().build_additional_customized_info(reqs), _counter()
            if counter is not None:
                info = {**info, RESULT_KEY: [[_report(req, counter)] for req in reqs]}
            if any(hasattr(req, "uag") for req in reqs):
                info = {**info, UAG_KEY: [[result_of(req)] for req in reqs]}
            return info

        def is_request_level_customized_info_key(self, key: str) -> bool:
            return key in (RESULT_KEY, UAG_KEY) or super().is_request_level_customized_info_key(key)

    return ThinkOutputStreamer


def _report(req: Any, counter: ReasoningCounter) -> Report:
    """What the client is told about a request's thinking so far."""
    think = getattr(req, "think", None)
    return Report(_reasoning_tokens(req, counter), think.result() if think is not None else None)


def _reasoning_tokens(req: Any, counter: ReasoningCounter) -> int | None:
    """How many tokens of the response are thinking, budget or not; None where sglang's own count stands: the prompt has
    no ids, or the response is a beam's."""
    if req.input_embeds is not None or req.beam_group is not None:
        return None
    if getattr(req, "think_count", None) is None:
        implied = req.require_reasoning and service.current().family.implied is not Implied.NEVER
        think = getattr(req, "think", None)
        request = think.request if think is not None else Request(tools=True, implied=implied)
        req.think_count = counter.start(req.origin_input_ids, request)
    return counter.advance(req.think_count, req.output_ids_through_stop)


@cache
def _counter() -> ReasoningCounter | None:
    """The served model's counter; None if its markers are unknown, and so no request has a budget."""
    automaton = service.current().automaton
    return ReasoningCounter(automaton) if automaton is not None else None
