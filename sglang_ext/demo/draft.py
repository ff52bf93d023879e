"""The draft for the default demo model, which has a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path


def draft() -> Path:
    """Folder of the draft: `python launch.py --speculative-algorithm UAG --speculative-draft-model-path <this>`."""
    return Path(__file__).parent / "models" / "smollm2-draft"
