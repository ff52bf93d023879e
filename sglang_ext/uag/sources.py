"""Where drafts come from: the draft model, and the text. Each request's draft of a step comes from one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .draft_state import NO_TOKENS, Counts, DraftState, DraftTokens
from .drafter import Drafter
from .fixed_lengths import FixedLengths
from .lengths import LengthControl
from .speed_up import RequestStats
from .text_source import TextSource, TextState


@dataclass(eq=False)
class RequestState:
    """One request between steps.

    Attributes:
        counts: what drafting did for it.
        model: what the draft model knows of it; None without a draft model.
        text: what a look-up knows of it; None where nothing is looked up.
        num_confirmed: tokens of the target that were confirmed.
        submitted: what was proposed in the step whose outcome is not known yet.
    """

    counts: Counts
    model: DraftState | None = None
    text: TextState | None = None
    num_confirmed: int = 0
    submitted: DraftTokens = NO_TOKENS

    def confirm(self, ids: Sequence[int]) -> None:
        """Note what the target confirmed."""
        self.num_confirmed += len(ids)
        if self.model is not None:
            self.model.confirm(ids)
        if self.text is not None:
            self.text.index.add(ids)


class Plan(NamedTuple):
    """What is drafted for a request: so many tokens, by the source that this record is of."""

    stats: RequestStats | None = None
    length: int = 0


class Sources:
    """All sources of a server.

    Args:
        lengths: says for each request which source drafts, and how many tokens.
        drafter: the draft model; None: there is none.
        text: None: nothing is looked up.
    """

    def __init__(self, lengths: LengthControl | FixedLengths, drafter: Drafter | None, text: TextSource | None) -> None:
        self.lengths, self._drafter, self._text = lengths, drafter, text
        self._states: dict[str, RequestState] = {}

    @property
    def rids(self) -> set[str]:
        return set(self._states)

    def state(self, rid: str, prompt: int, counts: Counts | None = None) -> RequestState:
        """The request's, made when it is first seen.

        Args:
            prompt: tokens of its prompt.
            counts: those of a state that it had before.
        """
        if rid not in self._states:
            counts = counts or Counts()
            self._states[rid] = RequestState(counts, self._drafter.state(rid, counts) if self._drafter else None,
                                             TextState(prompt) if self._text else None)
        return self._states[rid]

    def close(self, rids: Iterable[str]) -> None:
        """Forget requests that have left. Only between forwards."""
        for rid in rids:
            state = self._states.pop(rid, None)
            if state is not None and state.text is not None and self._text is not None:
                self._text.close(state.text)
            if state is not None and self._drafter is not None:
                self._drafter.close([rid])

    def clear(self) -> None:
        """Forget what responses were."""
        if self._text is not None:
            self._text.clear()

    def prefill(self, states: Sequence[RequestState]) -> None:
        """Let the draft model read prompts beside the target."""
        if self._drafter is not None:
            self._drafter.prefill([state.model for state in states if state.model is not None])

    def plan(self, states: Sequence[RequestState], lengths: Sequence[int], batch: int) -> list[Plan]:
        """Which source drafts for each request, and how many tokens: none where it does not pay.

        Args:
            lengths: [n] tokens of the target in each request's text.
            batch: requests of the target's step, those included that may not draft.
        """
        offers = [self._offers(state, length) for state, length in zip(states, lengths, strict=True)]
        planned = self.lengths.plan_sources(offers, batch)
        return [Plan(offered[plan.source], plan.length) if plan.length else Plan()
                for offered, plan in zip(offers, planned, strict=True)]

    def draft(self, states: Sequence[RequestState], plans: Sequence[Plan], batch: int
              ) -> tuple[list[DraftTokens], float]:
        """Draft tokens of each request, and the seconds that the draft model's forwards took.

        Args:
            plans: [n], each of at least one token.
            batch: requests of the target's step, those included that may not draft.
        """
        drafts: dict[int, DraftTokens] = {}
        by_model: list[tuple[int, DraftState, int]] = []
        for i, (state, plan) in enumerate(zip(states, plans, strict=True)):
            if state.model is not None and plan.stats is state.model.stats:
                by_model.append((i, state.model, plan.length))
            elif state.text is not None and self._text is not None and plan.stats is not None:
                drafts[i] = self._text.draft(state.text, plan.length, plan.stats)
        seconds = 0.0
        if by_model and self._drafter is not None:
            places, models, wanted = zip(*by_model, strict=True)
            drafts |= zip(places, self._drafter.draft(models, wanted, batch), strict=True)
            seconds = self._drafter.seconds
        return [drafts.get(i, NO_TOKENS) for i in range(len(states))], seconds

    def observe(self, state: RequestState, accepted: int) -> None:
        """So many of the tokens that were last submitted for the request were accepted."""
        submitted, state.submitted = state.submitted, NO_TOKENS
        state.counts.judge(accepted)
        if submitted.requested and submitted.stats is not None:
            proposed = len(submitted.ids)
            self.lengths.observe(submitted.stats, proposed, min(accepted, proposed), submitted.confidence,
                                 asked=submitted.requested)

    def _offers(self, state: RequestState, length: int) -> list[RequestStats]:
        """Records of what can be drafted for a request now: those of the text first, which cost nothing."""
        offers = self._text.offers(state.text) if self._text is not None and state.text is not None else []
        model = self._drafter.offer(state.model, length) if self._drafter and state.model is not None else None
        return offers if model is None else [*offers, model]
