"""`NGRAMWorker`: a closing sequence that a budget forces is its own draft, and takes as few rounds as it is wide."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def prepare_draft_tokens(original: Callable[..., tuple[Array, Array]], self: Any, batch: Any) -> tuple[Array, Array]:
    """[n * width] ids and [n * width * width] ancestors. What is forced after a request's text takes the place of what
    the corpus has: a chain behind the last token. Ids behind the chain are verified like any draft."""
    drafts, mask = original(self, batch)
    width = self.draft_token_num
    lens = batch.seq_lens_cpu.tolist()  # without the last token, which has no keys and values yet
    for i, req in enumerate(batch.reqs):
        if getattr(req, "think", None) is None:
            continue
        late = self.prev_token_ids[i * width : i * width + self.prev_accept_lens[i]]
        missing = lens[i] + 1 - len(req.origin_input_ids) - len(req.output_ids)  # a prefill may stand between
        output = req.output_ids + array("q", late[-missing:]) if missing > 0 and late else req.output_ids
        lookahead = req.think.lookahead(output)
        forced = lookahead.complete((), width - 1) if lookahead is not None else []
        if forced:
            drafts.reshape(-1, width)[i, 1 : 1 + len(forced)] = forced
            mask.reshape(-1, width, width)[i] = np.tri(width)
    return drafts, mask
