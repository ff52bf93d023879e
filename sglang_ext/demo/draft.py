"""The demo model's draft: a small Llama with a tokenizer of its own, trained by `sglang_ext.uag.train_draft`."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent / "models" / "smollm2-draft"


def draft() -> Path:
    """Folder of the draft of SmolLM2-135M-Instruct, a part of this package.

    Raises:
        FileNotFoundError: the package was installed without its models.
    """
    if not (_FOLDER / "model.safetensors").exists():
        raise FileNotFoundError(f"{_FOLDER} has no model.safetensors: the package was installed without its models")
    return _FOLDER
