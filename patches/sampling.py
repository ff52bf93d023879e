"""`ModelRunner` and `Sampler`: mask before the token is drawn, advance right after.

The mask is the last thing before the draw, after penalties, grammar, bias and custom processors, so a forced id stands
whatever they say. The state advances on the device in the same stream, so overlap scheduling sees no stale state. The
words after the step go to the host with the sampled tokens, as sglang's auxiliary output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang_ext.budget.kernels import advance, mask_logits, prewarm

from sglang_ext.budget import service

from .forward_batch import Sent, ThinkDevice
from .hook import HookError


@dataclass(frozen=True)
class _Step:
    """What the sampler needs of the step it runs in."""

    device: ThinkDevice
    rows: torch.Tensor  # [n] int64, slot of each row of logits


@dataclass(frozen=True)
class _HostWords:
    """Slots' words after a step, on the host."""

    words: torch.Tensor  # [n, WORDS] int32
    taken: torch.Tensor | None  # [n] int32, tokens that the step took in; None: one each
    ends: Sent

    @property
    def _counts(self) -> list[int]:
        return [1] * len(self.words) if self.taken is None else self.taken.tolist()

    def announce(self, batch: Any) -> None:
        """Tell the requests their words before the step's tokens are looked at for stops."""
        for words, count, req in zip(self.words.tolist(), self._counts, batch.reqs, strict=True):
            if getattr(req, "think", None) is not None:
                req.think.announce(words, count)

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        for words, count, req, commit in zip(self.words.tolist(), self._counts, batch.reqs, commits, strict=True):
            think = getattr(req, "think", None)
            if commit is None or think is None:
                continue
            begin, length = commit.output_index, commit.output_index + len(commit.token_ids)
            if len(commit.token_ids) == count:
                think.note(words, length)
                think.look(req, begin, length)
            else:
                think.ended(req, begin, length)
            for whose, end in self.ends:
                if whose is think:
                    think.retire(end)


@dataclass(frozen=True)
class _DeviceWords:
    """Slots' words after a step, on the device."""

    words: torch.Tensor  # [n, WORDS] int32
    taken: torch.Tensor | None  # [n] int32
    ends: Sent

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> _HostWords:
        return _HostWords(copy_tensor(self.words), None if self.taken is None else copy_tensor(self.taken), self.ends)


def report_words(logits_output: Any, device: ThinkDevice, rows: torch.Tensor, taken: torch.Tensor | None = None,
                 ends: Sent | None = None) -> None:
    """Send the words of these slots to the host with the step's tokens.

    Args:
        rows: [n] int, slots.
        taken: [n] int, how many tokens the step took in for each; None: one each.
        ends: ends that were asked for before the step.
    """
    from sglang.srt.managers.auxiliary_output import append_auxiliary_output

    logits_output.auxiliary_device_output = append_auxiliary_output(
        logits_output.auxiliary_device_output, _DeviceWords(device.state.words[rows], taken, ends or []))


def init_post_memory_pool_components(original: Callable[..., Any], self: Any) -> None:
    original(self)
    self.think_device = None
    if self.is_draft_worker or service.current().automaton is None:
        return
    for name in ("forward", "_preprocess_logits"):
        if not hasattr(getattr(type(self.sampler), name), "__wrapped__"):
            raise HookError(f"the sampler {type(self.sampler).__name__} overrides {name}, so think budgets would not "
                            "be enforced")
    from sglang.srt.runtime_context import get_disagg

    slots, receives = self.req_to_token_pool.req_to_token.shape[0], get_disagg().disaggregation_mode == "decode"
    self.think_device = ThinkDevice(slots, self.device, receives)
    self.req_to_token_pool.think_device = self.think_device  # a verification knows the slots, but no runner


def prewarm_sampling(original: Callable[..., Any], self: Any) -> Any:
    """Compile and load the kernels. sglang's logits are float32 wherever a token is drawn (`LogitsProcessor`)."""
    result = original(self)
    device: ThinkDevice | None = getattr(self, "think_device", None)
    if device is not None:
        prewarm(device.state, device.tables, self.model_config.vocab_size, (torch.float32,),
                drafts=not self.spec_algorithm.is_none())
    return result


def sample(original: Callable[..., Any], self: Any, logits_output: Any, forward_batch: Any) -> torch.Tensor:
    device: ThinkDevice | None = getattr(self, "think_device", None)
    staged = getattr(forward_batch, "think_staged", None)
    asked = getattr(forward_batch, "think_asks", None)
    sent: Sent = []
    for rows in (staged, asked) if device is not None else ():
        if rows is not None:
            rows.flush(device)
            sent += rows.ends
    if device is None or not getattr(forward_batch, "think_active", False):
        return original(self, logits_output, forward_batch)
    slots = forward_batch.req_pool_indices[: logits_output.next_token_logits.shape[0]]
    self.sampler.think_step = _Step(device, slots)
    try:
        tokens = original(self, logits_output, forward_batch)
    finally:
        self.sampler.think_step = None
    report_words(logits_output, device, slots, ends=sent)
    return tokens


def preprocess_logits(original: Callable[..., Any], self: Any, logits: torch.Tensor,
                      sampling_info: Any) -> torch.Tensor:
    logits = original(self, logits, sampling_info)
    step: _Step | None = getattr(self, "think_step", None)
    if step is not None:
        mask_logits(logits, step.rows, step.device.state, step.device.tables)
    return logits


def forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    tokens = original(self, *args, **kwargs)
    step: _Step | None = getattr(self, "think_step", None)
    if step is not None:
        advance(tokens, step.rows, step.device.state, step.device.tables)
    return tokens
