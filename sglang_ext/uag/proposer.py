"""The drafting side of a round: from what was confirmed to the chains that are verified, and what steps took."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from .draft_state import Counts, Drafting
from .drafter import Drafter

FORGOTTEN_AFTER = 64
"""Rounds after which a request that is in no batch, one that ended in its prefill say, loses its place."""


class _Running(NamedTuple):
    """A step of the target that was launched."""

    kind: Literal["plain", "verify"]
    batch: int
    width: int
    start: float
    began: float  # its round
    requests: list[Counts]


@dataclass
class Turn:
    """One request in a round.

    Attributes:
        output: ids of the response so far, those included that the engine has not processed yet.
        most: tokens that the draft model may write.
        room: tokens that a forced sequence may have in one round.
        drafting: its side of the draft; None where it may not draft.
        outlook: of its think budget, if it has one.
    """

    req: Any
    output: Sequence[int]
    most: int
    room: int
    drafting: Drafting | None = None
    outlook: Any = None

    @classmethod
    def of(cls, req: Any, unprocessed: Sequence[int], width: int) -> Turn:
        """A request's turn, with nothing drafted.

        Args:
            unprocessed: tokens that the engine has not added to the response yet.
            width: of the widest verification.
        """
        output = req.output_ids + array("q", unprocessed) if unprocessed else req.output_ids
        room = req.sampling_params.max_new_tokens - len(output) - 1
        think = getattr(req, "think", None)
        outlook = think.outlook(output) if think is not None else None
        return cls(req, output, max(min(width - 1, room), 0) if may_draft(req) else 0,
                   0 if _token_by_token(req) else width - 1, outlook=outlook)

    @property
    def limit(self) -> int:
        """Tokens that the draft model may write: none behind the budget's wall."""
        left = None if self.outlook is None else self.outlook.left
        return self.most if left is None else min(self.most, left)

    def complete(self, draft: Sequence[int]) -> list[int]:
        """The draft as it can stand: where a budget forces ids, these."""
        return list(draft) if self.outlook is None else self.outlook.complete(draft, self.room)


class Proposer:
    """Chains for the engine's batches.

    Args:
        drafter: drafts of all requests.
        width: of the widest verification.
        fixed_width: whether every verification has that width.
        overlap: whether the engine schedules a round while the one before it runs.
    """

    def __init__(self, drafter: Drafter, width: int, *, fixed_width: bool, overlap: bool) -> None:
        self._drafter, self._width, self._fixed_width, self._overlap = drafter, width, fixed_width, overlap
        self._running: _Running | None = None
        self._round_number = 0
        self._left: list[str] = []  # requests that ended since the last forward
        self._seen: dict[str, tuple[int, Any]] = {}  # the last round in which a request was here, and the request

    def clear(self) -> None:
        """Forget every request."""
        self._forget({*self._drafter.rids, *self._left})
        self._left.clear()

    def note_finished(self, rid: str) -> None:
        self._left.append(rid)

    def begin(self, batch: Any) -> None:
        """A forward begins. Forget who has left: sglang tells of those that end while they decode, not of those that
        end in their prefill or are aborted while they wait."""
        self._round_number += 1
        here = {req.rid for req in batch.reqs}
        self._forget([*self._left, *(
            rid for rid, (seen, req) in self._seen.items()
            if rid not in here and (req.finished() or self._round_number - seen > FORGOTTEN_AFTER))])
        self._left.clear()

    def read_prompts(self, batch: Any) -> None:
        """The target reads prompts; let the draft read them too."""
        self._running = None  # the next round waits for this forward too
        if not batch.forward_mode.is_extend():
            return
        draftings = []
        for req in batch.reqs:
            if not may_draft(req):
                continue
            if req.sampling_params.max_new_tokens <= 1:  # nothing will be drafted: the prompt need not be read
                req.uag = Counts()
                continue
            drafting = self._drafting(req)
            drafting.refused()  # what was in flight when the request was retracted is not known
            drafting.confirm(ids_between(req, req.output_ids, drafting.taken, req.extend_end))
            draftings.append(drafting)
        self._drafter.prefill(draftings)

    def chains(self, batch: Any) -> list[list[int]]:
        """[n] chains of 1 to `width` ids to verify now: each request's last token, and its draft."""
        late = unprocessed(batch) if self._overlap else [()] * len(batch.reqs)
        self.measure()
        began = time.perf_counter()
        turns = self._turns(batch, late)
        chains = self._drafted(turns)
        longest = max(map(len, chains))
        counts = [turn.drafting.counts for turn in turns if turn.drafting is not None]
        self._running = _Running("plain" if longest == 1 else "verify", len(chains),
                                 self._width if self._fixed_width else longest, time.perf_counter(), began, counts)
        return chains

    def measure(self) -> None:
        """Note how long the last step took, once it has ended: on the CPU right away, on a GPU when the next round has
        its tokens."""
        if self._running is not None:
            kind, batch, width, start, began, requests = self._running
            now = time.perf_counter()
            self._drafter.control.timed(kind, batch, width, now - start)
            for counts in requests:
                counts.draft_seconds += self._drafter.seconds
                counts.target_seconds += now - start
                counts.round_seconds += now - began
            self._running = None

    def _forget(self, rids: Iterable[str]) -> None:
        rids = list(rids)
        self._drafter.close(rids)
        for rid in rids:
            self._seen.pop(rid, None)

    def _drafting(self, req: Any) -> Drafting:
        self._seen[req.rid] = self._round_number, req
        drafting = self._drafter.drafting(req.rid)
        req.uag = drafting.counts = getattr(req, "uag", drafting.counts)  # they outlive a place lost by retraction
        return drafting

    def _turns(self, batch: Any, unprocessed: Sequence[Sequence[int]]) -> list[Turn]:
        """Take in what was confirmed since the last round."""
        turns = []
        for req, late in zip(batch.reqs, unprocessed, strict=True):
            turn = Turn.of(req, late, self._width)
            if may_draft(req):
                turn.drafting = self._confirm(req, turn.output)
            turns.append(turn)
        return turns

    def _confirm(self, req: Any, output: Sequence[int]) -> Drafting:
        prompt = req.origin_input_ids_unpadded
        drafting = self._drafting(req)
        if drafting.taken > len(prompt) + len(output):  # retraction dropped tokens that were in flight
            self._forget([req.rid])
            drafting = self._drafting(req)
        new = ids_between(req, output, drafting.taken, len(prompt) + len(output))
        drafting.confirm(new)
        self._drafter.observe(drafting, max(len(new) - 1, 0))
        return drafting

    def _drafted(self, turns: Sequence[Turn]) -> list[list[int]]:
        """Chains. A sequence that the budget forces is a draft that needs no model."""
        drafts = [turn.complete(()) for turn in turns]
        asked = [(i, turn.limit, turn.drafting) for i, turn in enumerate(turns)
                 if turn.drafting is not None and not drafts[i] and turn.limit]
        written = self._drafter.draft([drafting for _, _, drafting in asked], [limit for _, limit, _ in asked],
                                      len(turns))
        for (i, _, drafting), ids in zip(asked, written, strict=True):
            drafts[i] = turns[i].complete(ids)
            drafting.submit(sum(1 for a, b in zip(drafts[i], ids, strict=False) if a == b))
        for turn, draft in zip(turns, drafts, strict=True):
            if turn.drafting is not None:
                turn.drafting.counts.launch(turn.drafting.proposed, len(draft) - turn.drafting.proposed)
        return [[int(turn.output[-1]), *draft] for turn, draft in zip(turns, drafts, strict=True)]


def unprocessed(batch: Any) -> list[Sequence[int]]:
    """Tokens of each request that are not in `output_ids` yet: overlap scheduling processes a result while the next
    forward runs. Waits for the last round to end.

    The relay holds each request's last round, which may have been processed since: a prefill may stand between. The
    length of the text tells.
    """
    lens = batch.seq_lens_cpu.tolist()  # without the last token, which has no keys and values yet
    missing = [n + 1 - len(req.origin_input_ids) - len(req.output_ids)
               for n, req in zip(lens, batch.reqs, strict=True)]
    if max(missing) <= 0:
        return [()] * len(lens)
    relay = batch.spec_info
    rows = torch.cat([relay.accept_tokens.view(len(lens), -1), relay.accept_lens[:, None]], 1).tolist()
    return [row[: row[-1]][-count:] if count > 0 else () for row, count in zip(rows, missing, strict=True)]


def ids_between(req: Any, output: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Ids `start` to `end` of prompt and output. Only these are copied."""
    prompt = req.origin_input_ids_unpadded
    if start >= len(prompt):
        return output[start - len(prompt) : end - len(prompt)]
    return [*prompt[start:end], *output[: max(end - len(prompt), 0)]]


def may_draft(req: Any) -> bool:
    """Whether a request can be drafted for."""
    return not (_token_by_token(req) or req.finished() or req.input_embeds is not None
                or req.multimodal_inputs is not None)


def _token_by_token(req: Any) -> bool:
    """Whether every token changes how the next is sampled: penalties and custom processors look at all of the output,
    which a verification does not have at each draft position."""
    params = req.sampling_params
    penalized = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    return bool(penalized or params.min_new_tokens or req.custom_logit_processor)
