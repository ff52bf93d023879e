"""When slots are taken for a verification."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang_ext.patches.speculation import alloc_for_spec_decode

WIDTH = 8


@pytest.mark.parametrize(("name", "overlap", "ahead", "taken"), [
    ("UAG", False, [8, 8], False),
    ("UAG", False, [9, 16], False),
    ("UAG", False, [16, 7], True),
    ("UAG", False, [0], True),
    ("UAG", True, [8, 8], True),  # the round in flight may have used them
    ("NGRAM", False, [16, 16], True),
])
def test_slots_are_taken_where_a_verification_may_lack_some(name: str, overlap: bool, ahead: list[int],
                                                            taken: bool) -> None:
    """`ahead`: slots that each request holds behind its text."""
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_committed_len=40 + i, kv_allocated_len=40 + i + n))
            for i, n in enumerate(ahead)]
    batch = SimpleNamespace(spec_algorithm=SimpleNamespace(name=name), enable_overlap=overlap,
                            spec_info=SimpleNamespace(draft_token_num=WIDTH))
    calls = []
    alloc_for_spec_decode(lambda *args, **kwargs: calls.append((args, kwargs)), "tree", "pool", reqs=reqs, batch=batch,
                          num_needed_tokens=2)
    assert calls == ([(("tree", "pool"), {"reqs": reqs, "batch": batch, "num_needed_tokens": 2})] if taken else [])
