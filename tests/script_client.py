"""Ask a server of a scripted model, in pieces."""

from __future__ import annotations

from typing import Any

import servers
from transformers import PreTrainedTokenizerFast

OPEN = "<think>\n"


class Script:
    """Asks a scripted server and speaks in pieces."""

    def __init__(self, server: servers.Server, tokenizer: PreTrainedTokenizerFast) -> None:
        self.server = server
        self.tokenizer = tokenizer

    def ask(self, prompt: str, start: str, budget: Any, new: int = 24,
            **params: Any) -> tuple[list[str], dict[str, Any]]:
        """Pieces of the response, and its think object."""
        ids = [*self.tokenizer.encode(prompt), self._id(start)]
        result = self.server.generate(input_ids=ids, sampling_params={
            "temperature": 0, "max_new_tokens": new, "think_budget": budget, **params})
        return [self._piece(i) for i in result["output_ids"]], result["meta_info"].get("think", {})

    def _id(self, piece: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(piece))

    def _piece(self, i: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(i)).replace("Ċ", "\n").replace("Ġ", " ")
