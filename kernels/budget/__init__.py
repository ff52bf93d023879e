"""The think budget on the device: state, and the operations that a decoding step needs.

A decoding step is `mask_logits`, the sampler, `advance`; a step that verifies a draft is `walk`, the sampler, `commit`.
No engine is imported here; `reference` defines what every implementation does.
"""

from .advance import advance
from .ask import ask
from .commit import commit
from .layout import BudgetState, Event, Flag, Outcome, Tables, Word
from .mask import mask_logits
from .prewarm import prewarm
from .tree import parents_of
from .walk import walk

__all__ = [
    "BudgetState",
    "Event",
    "Flag",
    "Outcome",
    "Tables",
    "Word",
    "advance",
    "ask",
    "commit",
    "mask_logits",
    "parents_of",
    "prewarm",
    "walk",
]
