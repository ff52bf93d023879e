"""The think budget for transformers' `generate()`: a `LogitsProcessor` on the server's automaton and kernels.

A processor masks before the draw and sees, at the next call, what was drawn: one advance and one mask a step, whatever
the length. It cannot replace a drawn id, so the server's rule that an EOS inside a limited block becomes the end marker
is kept by moving the EOS's probability to the end marker's id before the draw. No serving engine is imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor

from ..budget.contract import BudgetError
from ..budget.kernels import Flag, Word, advance, mask_logits
from ..budget.kernels.layout import INSIDE, NOT_FORCING, STATE_MASK
from ..budget.row import RequestRow
from .admission import build_admission
from .ends import Ends
from .options import Options
from .rows import Draw, Point, Rows

Budget = int | Mapping[str, Any] | None
WINDOW = 512
"""Tokens of the history that a step compares with what it saw before; for one sequence, how far it can be taken back,
which is to say the longest draft."""


class ThinkBudgetLogitsProcessor(LogitsProcessor):
    """Enforces a think budget on each sequence of one prompt batch.

    Put it last in `logits_processor`, so that no other one overrides a forced id, and give it the arguments that
    `generate()` gets::

        options = {"max_new_tokens": 512, "do_sample": True}
        processor = ThinkBudgetLogitsProcessor(model, tokenizer, [64, None], **inputs, **options)
        output = model.generate(**inputs, **options, logits_processor=[processor])
        processor.results(output)

    Greedy decoding, sampling and assisted generation are served. Another `generate()` with the same prompts starts
    over.
    """

    supports_continuous_batching = False

    def __init__(self, model: Any, tokenizer: Any, budgets: Budget | Sequence[Budget], input_ids: torch.Tensor,
                 attention_mask: torch.Tensor | None = None, *, markers: tuple[str, str] | None = None,
                 parser: str | None = None, message: str = "", generation_config: GenerationConfig | None = None,
                 **options: Any) -> None:
        """Check the budgets and make their rows.

        Args:
            model: the model that generates; only its configuration and generation configuration are read.
            tokenizer: the model's.
            budgets: what the server's `think_budget` accepts, or None for no budget; one for all sequences, or a list
                with one for each prompt, or for each sequence returned.
            input_ids: [prompts, length] int, the prompts.
            attention_mask: [prompts, length], 0 at padding; None if there is none.
            markers: texts that open and end thinking; None to take the tokenizer's.
            parser: what sglang's `--reasoning-parser` would be for the model, of families that are no pair of tags.
            message: text forced before the end marker, where a budget names none.
            generation_config, options: as `generate()` gets them.

        Raises:
            BudgetError: a budget is not accepted; the message names field, value and what is accepted.
            ValueError: another argument is not.
        """
        if model.config.is_encoder_decoder:
            raise ValueError("model: an encoder-decoder model is not supported; accepted: decoder-only models")
        if input_ids.dim() != 2 or (attention_mask is not None and attention_mask.shape != input_ids.shape):
            mask_shape = None if attention_mask is None else tuple(attention_mask.shape)
            raise ValueError(f"input_ids of shape {tuple(input_ids.shape)}, attention_mask of shape {mask_shape}; "
                             "accepted: two of the same shape [prompts, length]")
        self._options = Options.of(model, generation_config, options, input_ids.shape[1])
        self._width = int(model.config.get_text_config().vocab_size)
        self._admission = build_admission(tokenizer, markers, message, self._options.eos_ids, self._width,
                                          parser)
        self._prompt = input_ids.repeat_interleave(self._options.copies, 0)
        attended = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [ids[kept.bool()].tolist() for ids, kept in zip(input_ids, attended, strict=True)]
        self._requests = self._admit(budgets, prompts)
        self._ends = Ends(self._admission, self._requests, self._options.max_new_tokens)
        self._seen: torch.Tensor | None = None  # [rows, length], the history at the last call
        self._points: deque[Point] = deque(maxlen=WINDOW if len(self._prompt) == 1 else 1)  # by length, gapless
        self._device: Rows | None = None

    def _admit(self, budgets: Budget | Sequence[Budget], prompts: list[list[int]]) -> list[RequestRow | None]:
        """Each sequence's row, None where it has no budget."""
        copies, new = self._options.copies, self._options.max_new_tokens
        rows = len(prompts) * copies
        if not isinstance(budgets, list | tuple):
            named = [("budgets", budgets)] * rows
        else:
            counts = sorted({len(prompts), rows})
            if len(budgets) not in counts:
                raise ValueError(f"budgets: {len(budgets)} of them for {len(prompts)} prompts with {copies} returned "
                                 f"sequences each; accepted: one value, or {' or '.join(map(str, counts))}")
            each = rows // len(budgets)
            named = [(f"budgets[{i}]", value) for i, value in enumerate(budgets) for _ in range(each)]
        requests: list[RequestRow | None] = []
        for i, (name, value) in enumerate(named):
            budget = self._admission.admit([(name, value)], new) if value is not None else None
            if budget is not None and budget.answer_tokens and new is None:
                raise BudgetError(f"{name}.answer_tokens: {budget.answer_tokens} is a part of max_new_tokens, which is "
                                  "not given; accepted: 0, or a max_new_tokens beside it")
            requests.append(self._admission.row(budget, prompts[i // copies], new) if budget is not None else None)
        return requests

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask the scores of the next token.

        Args:
            input_ids: [rows, length] int64, prompts and what was generated.
            scores: [rows, vocab] floating point; not written.

        Returns:
            [rows, vocab], equal to `scores` to the bit where a row has no budget.

        Raises:
            ValueError: the sequences are not the ones that the processor was made for, or follow from no draw of it.
        """
        if scores.shape[1] != self._width:
            if len(self._prompt) == 1:
                return scores  # asked by an assistant model about ids of its own tokenizer
            raise ValueError(f"scores of {scores.shape[1]} ids, but the model's vocab_size is {self._width}")
        if not any(self._requests):
            return scores
        point = self._follow(input_ids)
        scores = scores.clone(memory_format=torch.contiguous_format)
        device = self._on(scores.device)
        if self._ends.wanted:
            point = replace(point, state=self._ends.state(point.state, input_ids[:, self._prompt.shape[1] :]))
        mask_logits(scores, device.rows.masked_fill(point.ended, -1), point.state, device.tables)
        self._points.append(replace(point, draw=self._move_eos(scores, point)))
        self._seen = input_ids
        return scores

    def results(self, output: Any) -> list[dict[str, Any] | None]:
        """What each sequence spent on thinking, as the server's `meta_info["think"]`; None where it has no budget.

        Args:
            output: what `generate()` returned. The processor is not called after the last token, so it is read here.

        Raises:
            ValueError: the sequences do not come from this processor's draws.
        """
        sequences: torch.Tensor = getattr(output, "sequences", output)
        if not any(self._requests):
            return [None] * len(self._requests)
        point = self._follow(sequences)
        results: list[dict[str, Any] | None] = []
        for i, (request, words) in enumerate(zip(self._requests, point.unpadded.tolist(), strict=True)):
            if request is not None and not words[Word.FLAGS] & Flag.ACTIVE:
                raise ValueError(_overridden(i))
            if request is not None:
                request.note(words, sequences.shape[1] - self._prompt.shape[1])
            results.append(request.result() if request is not None else None)
        return results

    def _on(self, device: torch.device) -> Rows:
        if self._device is None or self._device.tables.step.device != device:
            assert self._admission.automaton is not None
            self._device = Rows(self._admission, self._requests, device)
        return self._device

    def _follow(self, input_ids: torch.Tensor) -> Point:
        """The state after `input_ids`: one token beyond a point that is known, or the start."""
        rows, length = input_ids.shape
        start = self._prompt.shape[1]
        if rows != len(self._prompt):
            raise ValueError(f"generate() runs {rows} sequences, the processor was made for {len(self._prompt)}; give "
                             "both the same num_return_sequences; beam search is not supported")
        while self._points and self._points[-1].length >= length:
            self._points.pop()
        if length <= start:
            if not torch.equal(input_ids, self._prompt.to(input_ids.device)):
                raise ValueError("generate() got other prompts than the processor; make one for each batch of prompts")
            return self._on(input_ids.device).start(length)
        base = self._points[-1] if self._points else None
        if base is None or base.length != length - 1 or not self._agrees(input_ids):
            reason = ("beam search, which is not supported, reorders them" if rows > 1 else
                      f"a draft may be {WINDOW} tokens long, and every token is to be drawn with this processor")
            raise ValueError(f"the sequences do not continue those of the last call: {reason}")
        return self._take(base, input_ids[:, -1])

    def _agrees(self, input_ids: torch.Tensor) -> bool:
        """Whether all but the last token are those seen, as far as the window reaches."""
        assert self._seen is not None
        stop = input_ids.shape[1] - 1
        near = slice(max(0, stop - WINDOW), stop)
        return torch.equal(input_ids[:, near], self._seen[:, near])

    def _take(self, base: Point, tokens: torch.Tensor) -> Point:
        """The point after `base` and one token per row, [rows] int64."""
        device, draw = self._on(tokens.device), base.draw
        assert draw is not None
        ends = torch.isin(tokens, device.eos_ids)
        rows = device.rows.masked_fill(base.ended, -1)
        taken = torch.where(draw.wanted_eos & (tokens == draw.end_ids), device.first_eos, tokens)
        state = replace(base.state, words=base.state.words.clone())
        advance(taken, rows, state, device.tables)
        # What cannot have been drawn: padding where a stopping criterion ended a sequence, a draft, or a mistake.
        strayed = (rows >= 0) & (taken != tokens)
        if bool(strayed.any()):
            state.words[strayed] = base.state.words[strayed]
            self._check_strayed(strayed & (tokens != self._options.pad_id))
            if len(tokens) == 1:
                state.words[0, Word.FLAGS] &= ~int(Flag.ACTIVE)
        pads = (tokens == self._options.pad_id) & ~ends
        unpadded = torch.where(pads[:, None], base.unpadded, state.words)
        return Point(base.length + 1, state, base.ended | strayed | ends, unpadded)

    def _check_strayed(self, strayed: torch.Tensor) -> None:
        """A single sequence may be a draft that will be rejected; `results` looks at the one that is not."""
        if len(strayed) > 1 and bool(strayed.any()):
            raise ValueError(_overridden(int(strayed.nonzero()[0])))

    def _move_eos(self, scores: torch.Tensor, point: Point) -> Draw:
        """Inside blocks that EOS closes, give the scores of all EOS ids to the id that the server would put there.

        The sum of probabilities is that of the temperature at which the token is drawn, the maximum where it is not
        sampled. Whether the id, if drawn, stands for EOS is decided here too, with the odds that the two had.
        """
        device, words, t = self._on(scores.device), point.state.words, self._options.temperature
        needed = int(Flag.ACTIVE | Flag.EOS_CLOSES)
        closable = ((words[:, Word.FLAGS] & needed) == needed) & ((words[:, Word.AUTO] & INSIDE) != 0)
        closable &= (words[:, Word.CURSOR] == NOT_FORCING) & ~point.ended
        rest = device.tables.end_cursor[words[:, Word.AUTO] & STATE_MASK]
        whole = device.tables.end_start[words[:, Word.AUTO] & STATE_MASK]
        end_ids = point.state.program[torch.where(rest == 0, whole, rest)].long()
        end, eos = scores.gather(1, end_ids[:, None]), scores[:, device.eos_ids]
        both = torch.cat([end, eos], 1)
        if t:
            whole = (both / t).logsumexp(1, keepdim=True)
            wanted_eos = (device.uniform(len(scores)) >= (end / t - whole).exp()).squeeze(1)
            whole = whole * t
        else:
            whole = both.amax(1, keepdim=True)
            wanted_eos = (whole > end).squeeze(1)
        scores[:, device.eos_ids] = eos.masked_fill(closable[:, None], -torch.inf)
        scores.scatter_(1, end_ids[:, None], torch.where(closable[:, None], whole, end))
        return Draw(closable & wanted_eos, end_ids)


def _overridden(row: int) -> str:
    return (f"sequence {row} does not hold the id that its think budget forced: another logits processor overrode it; "
            "put the think budget last")
