"""The small reasoning model that ships with the package: a Llama of 1.2 million parameters that thinks aloud.

`tasks` makes its questions, `messages` the texts that a server may force on it, `tokenizer` its vocabulary, `data` its
training sequences; `sglang_ext.demo.train_reasoner` trains it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def reasoner() -> Path:
    """Folder of the shipped model. It is package data: nothing is built or downloaded.

    Raises:
        RuntimeError: the package was installed without it.
    """
    folder = Path(str(files("sglang_ext.demo") / "models" / "reasoner"))
    if not (folder / "model.safetensors").is_file():
        raise RuntimeError(f"the reasoner's weights are not in {folder}; train them with "
                           f"`python -m sglang_ext.demo.train_reasoner --out {folder}`")
    return folder
