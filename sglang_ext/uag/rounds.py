"""Drafting for a batch: what the draft reads of each request, what it writes, and what that means to the target."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .draft_runner import DraftRow, DraftRunner
from .fixed_lengths import FixedLengths
from .lengths import LengthControl, RequestStats
from .translation import Reading, Translator

POOL, CONTEXT, CATCHING_UP = "pool", "context", "catching_up"


@dataclass
class Counts:
    """What drafting did for one request; goes to the client as `meta_info["uag"]`."""

    proposed: int = 0  # tokens of the target that the draft model wrote
    forced: int = 0  # tokens that a think budget forces, submitted as drafts
    rounds: int = 0  # rounds with a draft
    draft_forwards: int = 0  # forwards of the draft that the request took part in
    draft_tokens: int = 0  # tokens that the draft wrote
    translated: int = 0  # tokens encoded again, both directions
    translation_seconds: float = 0.0
    draft_seconds: float = 0.0  # of the draft's forwards, in rounds that the request was in
    target_seconds: float = 0.0  # of the target's, sampling included
    round_seconds: float = 0.0  # of whole rounds
    none: Counter[str] = field(default_factory=Counter)  # rounds without a draft, or with a shorter one, by cause

    def result(self, accepted: int) -> dict[str, Any]:
        submitted = self.proposed + self.forced
        return {"proposed": self.proposed, "forced": self.forced, "accepted": accepted, "rounds": self.rounds,
                "draft_forwards": self.draft_forwards, "draft_tokens": self.draft_tokens,
                "translated_tokens": self.translated, "translation_us": round(self.translation_seconds * 1e6),
                "draft_us": round(self.draft_seconds * 1e6), "target_us": round(self.target_seconds * 1e6),
                "round_us": round(self.round_seconds * 1e6),
                "rejections": {**self.none, "verification": max(submitted - accepted, 0)}}


@dataclass(eq=False)
class Drafting:
    """One request's side of the draft.

    Attributes:
        reading: the draft's view of the confirmed text.
        taken: tokens of the target that were confirmed.
        backlog: those at their end that the reading does not have yet: nothing is translated while nothing is drafted.
        row: its place in the draft's pool; None: none yet, or none free.
        proposed: tokens that the draft model had in the last round's chain.
        confidence: [proposed] probability that the draft gave to its text up to each of them.
    """

    reading: Reading
    counts: Counts
    stats: RequestStats = field(default_factory=RequestStats)
    taken: int = 0
    backlog: list[int] = field(default_factory=list)
    row: DraftRow | None = None
    proposed: int = 0
    confidence: Sequence[float] = ()

    def confirm(self, ids: Sequence[int]) -> None:
        """Note what the target confirmed."""
        self.backlog += ids
        self.taken += len(ids)

    def read(self) -> None:
        """Translate what was confirmed; what the draft's cache holds of another text is forgotten."""
        if not self.backlog:
            return
        start, before = time.perf_counter(), self.reading.encoded
        self.reading.confirm(self.backlog)
        self.backlog.clear()
        if self.row is not None:
            held, now = self.row.ids, self.reading.draft_ids
            same = min(self.reading.stable, len(held))
            while same < min(len(held), len(now)) and held[same] == now[same]:
                same += 1
            del held[same:]
        self.counts.translation_seconds += time.perf_counter() - start
        self.counts.translated += self.reading.encoded - before

    @property
    def behind(self) -> float:
        """About how many tokens of the confirmed text the draft has not read."""
        known = len(self.reading.draft_ids) - (len(self.row.ids) if self.row else 0)
        return known + len(self.backlog) * self.stats.steps_per_token

    @property
    def missing(self) -> list[int]:
        """What the draft has to read before it can write; its last token at least, as only a forward gives logits."""
        ids = self.reading.draft_ids
        return ids[min(len(self.row.ids) if self.row else 0, max(len(ids) - 1, 0)) :]


@dataclass
class _Writer:
    """A request while its draft is written."""

    drafting: Drafting
    most: int  # tokens of the target wanted
    steps: int  # of the draft
    written: list[int] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)  # probability of what is written, up to each token

    @property
    def row(self) -> DraftRow:
        """Its place, which a writer has."""
        assert self.drafting.row is not None
        return self.drafting.row

    def add(self, token: int, chance: float) -> None:
        self.written.append(token)
        self.survivals.append(chance * (self.survivals[-1] if self.survivals else 1.0))


class Drafter:
    """Drafts of all requests, in one batch.

    Args:
        translator: of the pair.
        runner: the draft model.
        control: how many tokens to draft.
        chunk: most tokens that the draft reads in one round before it writes.
    """

    def __init__(self, translator: Translator, runner: DraftRunner, control: LengthControl | FixedLengths,
                 chunk: int) -> None:
        self._translator, self._runner, self.control = translator, runner, control
        self._chunk = chunk
        self._patient = torch.device(runner.device).type != "cpu"  # looks at what was written once a round
        self._open: dict[str, Drafting] = {}
        self.seconds = 0.0  # that the draft's forwards took in the last round

    def drafting(self, rid: str) -> Drafting:
        """The request's, made when it is first seen."""
        if rid not in self._open:
            self._open[rid] = Drafting(self._translator.begin(), Counts())
        return self._open[rid]

    def close(self, rids: Sequence[str]) -> None:
        """Forget requests that have left. Only between forwards."""
        for rid in rids:
            drafting = self._open.pop(rid, None)
            if drafting is not None and drafting.row is not None:
                self._runner.close(drafting.row)

    @property
    def rids(self) -> set[str]:
        return set(self._open)

    def prefill(self, draftings: Sequence[Drafting]) -> None:
        """Let the draft read prompts beside the target, at most a chunk of them; a later round reads the rest."""
        if self.control.off:
            return
        for d in draftings:
            d.read()
        self._read([d for d in draftings if self._placed(d) and d.reading.blind is None], self._chunk)

    def draft(self, draftings: Sequence[Drafting], most: Sequence[int], batch: int) -> list[tuple[int, ...]]:
        """Tokens of the target for each request, none where drafting does not pay or does not work.

        Args:
            draftings: those that may draft.
            most: [n] tokens that a draft may have.
            batch: requests of the target's step, those included that may not draft.
        """
        self.seconds = 0.0
        for d in draftings:
            d.stats.steps_per_token = d.reading.steps_for(8) / 8
            d.stats.behind = d.behind
        planned = self.control.plan([d.stats for d in draftings], batch)
        wanted = [min(length, limit) for length, limit in zip(planned, most, strict=True)]
        for d, want in zip(draftings, wanted, strict=True):
            if want:
                d.read()
        writers = self._ready([(d, want) for d, want in zip(draftings, wanted, strict=True) if want > 0])
        if writers:
            start = time.perf_counter()
            self._write(writers, batch)
            self.seconds = time.perf_counter() - start
        chains = {id(w.drafting): self._translate(w) for w in writers}
        return [chains.get(id(d), ()) for d in draftings]

    def submitted(self, drafting: Drafting, tokens: int) -> None:
        """So many tokens of the request's last draft go into verification."""
        drafting.proposed = tokens
        drafting.counts.proposed += tokens
        drafting.counts.rounds += tokens > 0

    def observe(self, drafting: Drafting, accepted: int) -> None:
        """So many tokens of the request's last draft were accepted."""
        self.control.observe(drafting.stats, drafting.proposed, accepted, drafting.confidence)
        drafting.proposed = 0

    def _ready(self, wanted: Sequence[tuple[Drafting, int]]) -> list[_Writer]:
        """Those whose draft can begin to write in this round; others read on, or say why not."""
        placed = []
        for drafting, most in wanted:
            cause = drafting.reading.blind or (None if self._placed(drafting, most) else self._why(drafting, most))
            if cause or not drafting.reading.draft_ids:
                drafting.counts.none[cause or "empty"] += 1
                continue
            placed.append((drafting, most))
        behind = [d for d, _ in placed if len(d.missing) > self._chunk // max(len(placed), 1)]
        if behind:
            self._read(behind, self._chunk)
        for d in behind:
            d.counts.none[CATCHING_UP] += 1
        late = set(map(id, behind))
        return [_Writer(d, most, self._steps(d, most)) for d, most in placed if id(d) not in late]

    def _steps(self, drafting: Drafting, most: int) -> int:
        """Steps that fit behind what the draft has read."""
        room = self._runner.context - len(drafting.reading.draft_ids)
        return max(min(drafting.reading.steps_for(most), room), 1)

    def _placed(self, drafting: Drafting, most: int = 0) -> bool:
        """Whether the draft has room for the request's text and what it may write."""
        if drafting.row is None:
            drafting.row = self._runner.open()
        length = len(drafting.reading.draft_ids) + (drafting.reading.steps_for(most) if most else 0)
        return drafting.row is not None and self._runner.reserve(drafting.row, length)

    def _why(self, drafting: Drafting, most: int) -> str:
        length = len(drafting.reading.draft_ids) + drafting.reading.steps_for(most)
        return CONTEXT if length > self._runner.context else POOL

    def _read(self, draftings: Sequence[Drafting], most: int) -> None:
        """Fill the draft's cache with confirmed text, its last token left out, at most this many tokens in all."""
        rows, parts = [], []
        for d in draftings:
            part = d.missing[: min(most, len(d.missing) - 1)]
            if part and d.row is not None:
                rows.append(d.row)
                parts.append(part)
                d.counts.draft_forwards += 1
                most -= len(part)
        if rows:
            self._runner.extend(rows, parts)

    def _write(self, writers: list[_Writer], batch: int) -> None:
        """Let the draft write. Where the device is not waited for, every writer takes all the steps."""
        start = time.perf_counter()
        rows = [w.row for w in writers]
        missing = [w.drafting.missing for w in writers]
        longest = max(map(len, missing))
        logits = self._runner.extend(rows, missing)
        tokens, chances = self._choose(logits)
        if not self._patient:
            self.control.timed("draft_extend", len(writers), longest, time.perf_counter() - start)
        for w in writers:
            w.drafting.counts.draft_forwards += 1
        if self._patient:
            self._write_all(writers, tokens, chances, start)
        else:
            self._write_watched(writers, tokens, chances, batch)

    def _write_all(self, writers: list[_Writer], tokens: torch.Tensor, chances: torch.Tensor, start: float) -> None:
        rows = [w.row for w in writers]
        written, certain = [tokens], [chances]
        for step in range(max(w.steps for w in writers) - 1):
            if any(not self._runner.reserve(row, len(row.ids) + step + 1) for row in rows):
                break
            tokens, chances = self._choose(self._runner.decode(rows, tokens, step))
            written.append(tokens)
            certain.append(chances)
        host = torch.stack([torch.stack(written).double(), torch.stack(certain).double()]).cpu()
        each = (time.perf_counter() - start) / len(written)
        self.control.timed("draft_extend", len(writers), 1, each)
        self.control.timed("draft_step", len(writers), 1, each)
        for i, w in enumerate(writers):
            for token, chance in zip(*host[:, : w.steps, i].tolist(), strict=True):
                w.add(int(token), chance)
            w.row.ids += [int(token) for token in host[0, : len(written) - 1, i].tolist()]
            w.drafting.counts.draft_forwards += len(written) - 1

    def _write_watched(self, writers: list[_Writer], tokens: torch.Tensor, chances: torch.Tensor, batch: int) -> None:
        going = list(writers)
        while True:
            for w, token, chance in zip(going, tokens.tolist(), chances.tolist(), strict=True):
                w.add(token, chance)
            keep = [i for i, w in enumerate(going) if self._goes_on(w, batch)]
            if not keep:
                return
            going, tokens = [going[i] for i in keep], tokens[keep]
            start = time.perf_counter()
            rows = [w.row for w in going]
            logits = self._runner.decode(rows, tokens, 0)
            for w in going:
                w.row.ids.append(w.written[-1])
                w.drafting.counts.draft_forwards += 1
            tokens, chances = self._choose(logits)
            self.control.timed("draft_step", len(going), 1, time.perf_counter() - start)

    def _goes_on(self, w: _Writer, batch: int) -> bool:
        last, row = w.written[-1], w.row
        vocabulary = self._translator.draft
        if len(w.written) >= w.steps or last in vocabulary.eos or last in vocabulary.special:
            return False
        return (self.control.worth_going_on(w.survivals[-1], len(w.written), batch)
                and self._runner.reserve(row, len(row.ids) + 1))

    @staticmethod
    def _choose(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest token of each row, int64, and its probability, float32."""
        logits = logits.float()
        top, tokens = logits.max(-1)
        return tokens, (top - logits.logsumexp(-1)).exp()

    def _translate(self, w: _Writer) -> tuple[int, ...]:
        d = w.drafting
        start, before = time.perf_counter(), d.reading.encoded
        proposal = d.reading.propose(w.written, w.most)
        d.counts.translation_seconds += time.perf_counter() - start
        d.counts.translated += d.reading.encoded - before
        d.counts.draft_tokens += len(w.written)
        if proposal.cause:
            d.counts.none[proposal.cause] += 1
        n = len(proposal.ids)
        d.confidence = [w.survivals[min(-(-proposal.used * (j + 1) // n), len(w.survivals)) - 1] for j in range(n)]
        return proposal.ids
