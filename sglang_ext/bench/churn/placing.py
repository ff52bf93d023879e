"""The rules for a response of which it is known, id by id, what the model chose and what the server wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from ..options import UNLIMITED
from .answers import Ask, Choice, Wish
from .blocks import Block, Reading
from .forced import Run
from .served import Served

_VOTES = 5


@dataclass
class Seen:
    """What the server writes in each answer alike, learned from answers that show it where it does not say.

    Attributes:
        message: its own stop message, once `_VOTES` answers agree on it: a single one may have two readings.
        closing: what follows an end marker that it wrote.
        undecided: responses that have too many readings to be checked.
        messages: what answers showed, and how many of them.
    """

    message: bytes | None = None
    closing: bytes | None = None
    undecided: int = 0
    messages: Counter[bytes] = field(default_factory=Counter)

    def learn(self, message: bytes | None, closing: bytes | None) -> None:
        """Take what a right answer shows."""
        self.closing = closing if self.closing is None else self.closing
        if message is not None and self.message is None:
            self.messages[message] += 1
            if self.messages[message] == _VOTES:
                self.message = message


@dataclass
class Verdict:
    """One reading of a response: what is wrong in it, and what it teaches."""

    faults: list[str] = field(default_factory=list)
    thinking: int = 0
    message: bytes | None = None
    closing: bytes | None = None


@dataclass
class Placing:
    """A response whose every id is known to be the model's or the server's."""

    served: Served
    ask: Ask
    wish: Wish
    choice: Choice
    reading: Reading
    runs: dict[Block, Run]
    seen: Seen

    def verdict(self) -> Verdict:
        """What is wrong with it."""
        out = Verdict(thinking=self.reading.thinking)
        limit = self.choice.think["budget"] if self.choice.think else UNLIMITED
        most, chosen, said = inf if limit == UNLIMITED else limit, 0, False
        for block in self.reading.blocks:
            run = self.runs.get(block)
            chosen += (run.first if run else block.last + 1) - block.first
            if chosen > most:
                out.faults.append(f"limit: the model chose {chosen} tokens in thinking, of {most}")
            if run is not None:
                self._run(out, run, chosen, most, said)
                said = True
            elif block.closed and chosen <= min(self.wish.min_tokens, most):
                out.faults.append(f"min_tokens: ended by the model's token {chosen}, before {self.wish.min_tokens}")
        out.faults += self._outcome()
        out.faults += self._end()
        return out

    def _run(self, out: Verdict, run: Run, chosen: int, most: float, said: bool) -> None:
        """One end that the server wrote: when, what, and what follows."""
        ids, text = self.choice.ids, self.served.text
        before = text(ids[run.block.first : run.first])
        written = text(ids[run.first : run.block.last + 1])
        reasons = set(self._reasons(run, before, chosen, most))
        if run.block.closed and run.block == self.reading.blocks[-1] and self.choice.think:
            reasons &= {self.choice.think["outcome"]}
        if not reasons:
            out.faults.append(f"outcome: nothing ended the thinking after {chosen} tokens, of {most}, but ids were "
                              f"written: {written!r}")
        rest = self.served.end[self._half(before) :]
        wanted = {rest} if rest != self.served.end else {self._message(r, said) + rest for r in reasons}
        open_message = self.wish.message is None and not said and reasons - {"eos"}
        if open_message and rest == self.served.end:
            wanted |= {self.served.end, *([] if self.seen.message else [written])}
            out.message = written.removesuffix(self.served.end) or None
        whole = run.block.closed and run.block.last < len(ids)
        if not any(written == w if whole else w.startswith(written) for w in wanted) and reasons:
            out.faults.append(f"message: {written!r} written instead of {b' or '.join(sorted(wanted))!r}")
        if run.block.closed:
            self._behind(out, run)

    def _reasons(self, run: Run, before: bytes, chosen: int, most: float) -> Iterator[str]:
        """Why the server may have ended thinking there."""
        wish, max_new = self.wish, self.ask.max_new
        reserved = self.served.most_reserved(wish.answer_tokens, max_new)
        half = self._half(before) > 0
        cut = run.after == len(self.choice.ids)
        capped = wish.max_tokens in (None, UNLIMITED) or most < wish.max_tokens  # by the room for one end, the answer
        late = capped and run.first >= most
        if chosen == most or (reserved and (cut or half or late or run.after + reserved >= max_new)):
            yield "forced"
        if wish.grace_tokens and chosen >= most - wish.grace_tokens and before.endswith(b"\n"):
            yield "grace"
        if wish.seconds is not None:
            yield "deadline"
        if self.ask.kind == "end":
            yield "asked"
        if self._limited(most) and not self.ask.ignore_eos and chosen >= min(wish.min_tokens, most):
            yield "eos"

    def _limited(self, most: float) -> bool:
        wish = self.wish
        return most < inf or wish.min_tokens > 0 or bool(wish.answer_tokens) or wish.loops or wish.seconds is not None

    def _half(self, before: bytes) -> int:
        """Bytes of the end marker that the model had begun to write; of a marker that is one id there are none."""
        if self.served.end_ids:
            return 0
        return max(n for n in range(len(self.served.end)) if before.endswith(self.served.end[:n]))

    def _message(self, reason: str, said: bool) -> bytes:
        """The message is said once, and not where the model itself wanted to stop."""
        if said or reason == "eos":
            return b""
        own = self.seen.message or b""
        return own if self.wish.message is None else self.wish.message.encode()

    def _behind(self, out: Verdict, run: Run) -> None:
        """What follows an end marker that the server wrote."""
        ids, end = self.choice.ids, self.served.end
        closing, known = self.served.text(ids[run.block.last + 1 : run.after]), self.seen.closing
        if run.after == len(ids):
            if known is not None and not known.startswith(closing):
                out.faults.append(f"closing: {closing!r} behind the end marker, in other answers {known!r}")
            return
        if known not in (None, closing):
            out.faults.append(f"closing: {closing!r} behind the end marker, in other answers {known!r}")
        out.closing = closing
        if self.served.text(ids[run.after :]).lstrip().startswith(end):
            out.faults.append("repeated end: the end marker stands again right behind the one that the server wrote")
        if run.after == len(ids) - 1 and self.choice.matched == ids[-1] and not self.ask.ignore_eos:
            out.faults.append("empty answer: the response ends right behind the end that the server wrote")

    def _outcome(self) -> Iterator[str]:
        """What is reported against how the last block ended."""
        outcome, blocks = (self.choice.think or {}).get("outcome"), self.reading.blocks
        if not blocks:
            expected = {"none"}
        elif not blocks[-1].closed:
            expected = {"open"}
        elif blocks[-1] in self.runs:
            expected = {"forced", "grace", "eos", "deadline", "asked"}
        else:
            expected = {"implicit" if blocks[-1].tool else "natural"}
        if outcome not in expected:
            yield f"outcome: {outcome!r} reported, {' or '.join(sorted(expected))} in the ids"

    def _end(self) -> Iterator[str]:
        """A limited thought ends in time, and not with the response."""
        blocks, limit = self.reading.blocks, self.choice.think["budget"] if self.choice.think else UNLIMITED
        limited = self._limited(inf if limit == UNLIMITED else limit)
        if not blocks or not limited:
            return
        last, count, kept = blocks[-1], len(self.choice.ids), self.wish.answer_tokens or 0
        if not last.closed and isinstance(self.choice.matched, int) and not self.ask.ignore_eos:
            yield "eos: the response ends with EOS inside a limited thought"
        first = blocks[0]
        run = self.runs.get(first)
        length = run.after - run.first if run else 0
        behind = run.after if run else first.last + 1
        if kept and first.first + length + kept <= self.ask.max_new < behind + kept and self.choice.finish == "length":
            yield f"answer_tokens: {count - behind} of {kept} tokens left for the answer"
