"""The think budget for transformers' `generate()`."""

from .processor import WINDOW, ThinkBudgetLogitsProcessor

__all__ = ["WINDOW", "ThinkBudgetLogitsProcessor"]
