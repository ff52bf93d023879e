"""Requests whose prefill was elsewhere: the decode server of a prefill/decode pair, with sglang's fake transfer.

No KV arrives, and the first token, which would be the prefill server's, follows from the request's id, so ids are
chosen that give a known one. The model looks at nothing but its last token, so all that follows is known. What cannot
be run without a transfer engine is the prefill server's half of the pair; it runs the path of every other prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import servers
from scripted_model import EOS, HIDDEN, Scripts, build_scripted_model
from servers import FLOAT32
from transformers import AutoTokenizer, PreTrainedTokenizerFast

pytestmark = pytest.mark.served

FIRST = "first"
SCRIPTS = Scripts([[FIRST, "lo", "loo", "loop", "lo"], [">", "\n\n", "answer", EOS]])
CYCLE = ["lo", "loo", "loop"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_scripted_model(tmp_path_factory.mktemp("arrivals"), SCRIPTS)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def decode_server(folder: Path) -> Iterator[servers.Server]:
    server = servers.launch("--model-path", str(folder), "--reasoning-parser", "qwen3", *FLOAT32,
                            "--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake",
                            "--disaggregation-decode-retraction-backup", "cpu_tensor",
                            "--max-total-tokens", "2048", "--max-running-requests", "8")
    yield server
    assert not server.stop()


@pytest.fixture(scope="module")
def rids(tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    """Request ids for which sglang's fake transfer hands over FIRST."""
    wanted = tokenizer.convert_tokens_to_ids(FIRST)
    return (rid for rid in map(str, count()) if int.from_bytes(
        blake2b(rid.encode(), digest_size=8, person=b"fake-pd").digest(), "little") % HIDDEN == wanted)


def body(rids: Iterator[str], budget: Any, new: int = 30, message: str = "") -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": new}
    if budget is not None:
        params["think_budget"] = {"max_tokens": budget, "message": message}
    return {"text": "<think>\n", "sampling_params": params, "bootstrap_host": "2.2.2.2", "bootstrap_room": 7,
            "rid": next(rids)}


def test_rows_are_written_when_their_request_arrives(decode_server: servers.Server, rids: Iterator[str],
                                                     tokenizer: PreTrainedTokenizerFast) -> None:
    """The first token came with the request; it counts as thought. Twice the slots there are, so that all of them
    change hands between requests with and without a budget."""
    budgets = [None, 1, 2, 7, -1, 12, None, 3, 5, None, 2, 9, None, 4, 1, 6]
    results = decode_server.generate_all([body(rids, b) for b in budgets])
    for budget, result in zip(budgets, results, strict=True):
        got = [str(p).replace("Ċ", "\n") for p in tokenizer.convert_ids_to_tokens(result["output_ids"])]
        own = [FIRST, *(CYCLE[i % 3] for i in range(40))]
        think = result["meta_info"].get("think")
        if budget in (None, -1):
            assert got == own[:30]
            continue
        assert got == [*own[:budget], "</", "think", ">", "\n\n", "answer", EOS], budget
        assert think == {"budget": budget, "tokens": budget, "forced_tokens": 3, "outcome": "forced"}


def test_a_message_on_the_decode_server(decode_server: servers.Server, rids: Iterator[str],
                                        tokenizer: PreTrainedTokenizerFast) -> None:
    result = decode_server.generate(**body(rids, 3, message="So: "))
    assert tokenizer.decode(result["output_ids"]) == f"{FIRST}loloo" + f"So: </think>\n\nanswer{EOS}"
