"""The think budget on the device: state, and the two operations that a decoding step needs.

No engine is imported here; `reference` defines what every implementation does.
"""

from .advance import advance
from .layout import BudgetState, Event, Flag, Outcome, Tables, Word
from .mask import mask_logits

__all__ = ["BudgetState", "Event", "Flag", "Outcome", "Tables", "Word", "advance", "mask_logits"]
