"""What hangs on sglang's `Req` as `think`: a request's budget, its row, and the ends that are asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_ext.budget.kernels.layout import INSIDE, NOT_FORCING, THINKING, Outcome, Word

from sglang_ext.budget import ends, service
from sglang_ext.budget.contract import ARRIVAL, FIRST_TOKEN, ThinkBudget
from sglang_ext.budget.ends import Deadlines, End
from sglang_ext.budget.loops import LoopWatch
from sglang_ext.budget.prompt import Request
from sglang_ext.budget.row import Lookahead, RequestRow
from sglang_ext.budget.stops import Seams

from .reasoner_grammar import follow
from .tokenizer_manager import GRAMMARS

deadlines = Deadlines()
"""Those of this scheduler's requests, on the clock of `time.perf_counter`."""
ENDING, WAITING, ENDING_ALREADY, NOT_THINKING = "ending", "waiting", "ending already", "not thinking"
"""What asking for an end comes to: the block is closed within two steps; the request has not begun, and a block that
its prompt leaves open ends as it begins; the end is being written or asked for; no block is open, and nothing is done.
"""


@dataclass(frozen=True)
class _Sent:
    """An end on its way to the device, and the request's own forced sequence if it is taken; None: as it is."""

    end: End
    program: list[int] | None


class Thinking:
    """A request's budget and, from its first prefill on, its row.

    Attributes:
        ends: those that are asked for and not over; the first one is sent to the device.
        overdue: the request has been told that its time is up.
        read_after: number of the forward whose token for this request is in its output already (`one_step.py`), or -1.
    """

    def __init__(self, budget: ThinkBudget, request: Request) -> None:
        self.budget = budget
        self.request = request
        self.seams = Seams()
        self.ends: list[End] = []
        self.overdue = budget.seconds == 0 and budget.since == ARRIVAL
        self.read_after = -1
        self._row: RequestRow | None = None
        self._announced: tuple[int, int] | None = None  # ids written by the budget so far, tokens taken in by the step
        self._written = 0
        self._sent: _Sent | None = None
        self._takes = False  # the step that is announced took the end that was sent
        self._took = False  # an end was taken: the wall stays where it is
        self._waits_for_first = budget.seconds is not None and budget.since == FIRST_TOKEN
        self._loops = LoopWatch() if budget.loops else None
        if self.overdue:
            self.ends.append(End(Outcome.DEADLINE))

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

    def ask(self, end: End) -> str:
        """Ask for an end of the open block; return one of ENDING, WAITING, ENDING_ALREADY, NOT_THINKING."""
        self.overdue |= end.standing
        latest = self._row.latest if self._row is not None else []
        forcing = bool(latest) and latest[Word.CURSOR] != NOT_FORCING
        thinking = not latest or latest[Word.AUTO] & THINKING
        if end.standing or not (self._took or self.ends or forcing or not thinking):
            self.ends += [] if self._took else [end]
            return ENDING if latest else WAITING
        return ENDING_ALREADY if self.ends or forcing or thinking else NOT_THINKING

    def unsent(self) -> bool:
        """Whether an end is to be sent to the device with the next step."""
        return bool(self.ends) and self._sent is None

    def send(self, req: Any) -> tuple[End, ends.Wall]:
        """The end that goes to the device with this step, and what it forces."""
        end = self.ends[0]
        wall = ends.wall_of(service.current(), self.row(req), end, _room(req))
        self._sent = _Sent(end, wall.program)
        return end, wall

    def entering(self, req: Any) -> tuple[RequestRow, list[int], list[int], End | None]:
        """The row with which a request enters a slot: its words [WORDS] and own sequence, and the end among the ends
        asked for that they hold, which is then sent with them."""
        row, self._sent = self.row(req), None
        words, program = service.current().rebuilt(row, req.output_ids), row.program
        if not self.ends:
            return row, words, program, None
        own = ends.apply(service.current(), row, words, self.ends[0], _room(req), begun=bool(req.output_ids))
        self._sent = _Sent(self.ends[0], own)
        return row, words, program if own is None else own, self.ends[0]

    def retire(self, end: End) -> None:
        """The step that took the end along is over. Either the row took it (`note`), or there was nothing to end."""
        if self._sent is not None and self._sent.end is end:
            self._sent = None
            self.ends.remove(end)

    def note(self, words: list[int], length: int) -> None:
        """Take a slot's words [WORDS] after `length` output tokens."""
        if self._row is None:
            return
        self._row.note(words, length)
        self._takes = False
        if self._sent is not None and words[Word.ASKED]:
            if self._sent.program is not None:
                self._row.program = self._sent.program
            self.ends, self._sent, self._loops, self._took = [], None, None, True

    def announce(self, words: list[int], taken: int) -> None:
        """Take a slot's words [WORDS] after a step whose `taken` tokens are not in the output yet."""
        self._announced = words[Word.FORCED], taken
        self._takes = self._sent is not None and bool(words[Word.ASKED])

    def mark(self, req: Any, new: int) -> None:
        """Tell which of the output's last `new` tokens the budget wrote, before stops are looked for among them."""
        announced, self._announced = self._announced, None
        if announced is not None and announced[0] <= self._written:
            return
        begin = len(req.output_ids) - new
        if announced == (self._written + new, new):
            forced = [True] * new
        else:
            forced = self._before_step(req, begin).forced(req.output_ids[begin:])
            if announced is not None and announced[1] == new and announced[0] - self._written > sum(forced):
                forced[-1] = True  # an EOS of the model's, which ends a step, became the end marker
        self._written += sum(forced)
        self.seams.add(forced, begin)

    def _before_step(self, req: Any, begin: int) -> Lookahead:
        """The row before the announced step, whose tokens begin at `begin`, with the end that the step took."""
        row = self.row(req)
        lookahead = service.current().lookahead(row, req.output_ids[:begin])
        if self._takes and self._sent is not None:
            room = req.sampling_params.max_new_tokens - begin
            ends.apply(service.current(), row, lookahead.words, self._sent.end, room, begun=begin > 0)
            if self._sent.program is not None:
                lookahead.program = [*lookahead.automaton.program, *self._sent.program]
        return lookahead

    def wrote(self, begin: int, count: int) -> None:
        """Take note of `count` ids, from `begin` on, that were put into the output without a step of their own."""
        self._written += count
        self.seams.add([True] * count, begin)

    def replay(self, output: Sequence[int]) -> None:
        """Note the words after an output that no step's words belong to."""
        if self._row is not None:
            self._row.note(service.current().rebuilt(self._row, output), len(output))

    def ended(self, req: Any, begin: int, length: int) -> None:
        """Note the words after an output that ended within the announced step, whose tokens begin at `begin`."""
        if self._row is not None:
            lookahead = self._before_step(req, begin)
            lookahead.take(req.output_ids[begin:length])
            self.note(lookahead.words, length)

    def look(self, req: Any, begin: int, length: int) -> None:
        """Look at the output after a step that brought its tokens from `begin` to `length`."""
        if self._waits_for_first:
            self._waits_for_first = False
            deadlines.add(time.perf_counter() + float(self.budget.seconds or 0), req)
        if self._loops is None or self._row is None:
            return
        words = self._row.latest
        if not words[Word.AUTO] & INSIDE or words[Word.CURSOR] != NOT_FORCING:
            self._loops.leave()
            return
        self._loops.enter(begin)
        if self._loops.found(req.output_ids, length):
            self.ask(End(Outcome.LOOP))

    def forces(self, length: int) -> bool:
        """Whether the host knows that the budget writes the token after the first `length`."""
        row = self._row
        return row is not None and bool(row.latest) and row.latest_length == length and (
            row.latest[Word.CURSOR] != NOT_FORCING)

    def to_come(self, req: Any, most: int) -> list[int]:
        """What the budget forces after the request's output so far, at most `most` ids."""
        return service.current().lookahead(self.row(req), req.output_ids).complete((), most)

    def lookahead(self, output: Sequence[int]) -> Lookahead | None:
        """What the budget does after this output; None before the first prefill."""
        return None if self._row is None else service.current().lookahead(self._row, output)

    def result(self) -> dict[str, Any]:
        """The request's `think` object; of one that ended before its first prefill, all zero."""
        if self._row is not None:
            return self._row.result()
        return {"budget": self.budget.max_tokens, "tokens": 0, "forced_tokens": 0, "outcome": "none"}


def _room(req: Any) -> int:
    """Tokens that a response may still have."""
    return int(req.sampling_params.max_new_tokens - len(req.output_ids))
