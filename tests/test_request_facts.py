"""What is read off a request beside its budget: a message that it continues, a template's switch, a body of bytes."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_ext.patches.asked import Asked, continues_a_message
from sglang_ext.patches.budget_fields import has_switch
from sglang_ext.patches.request_models import SWITCHES, _collected

from sglang_ext.budget.prompt import Start

OURS = {"role": "assistant", "content": "So far"}
QUESTION = {"role": "user", "content": "Why?"}


class Body:
    def __init__(self, messages: list[dict[str, Any]], continues: bool = True) -> None:
        self.messages, self.continue_final_message = messages, continues


@pytest.mark.parametrize(("body", "expected"), [
    (Body([QUESTION, OURS]), True), (Body([OURS, QUESTION]), False), (Body([QUESTION, OURS], False), False),
    (Body([QUESTION, {"role": "assistant", "content": [{"type": "image_url"}]}]), False),
    (Body([QUESTION, {"role": "assistant", "content": None}]), False), (Body([]), False), (object(), False),
])
def test_only_a_text_of_the_assistants_is_continued(body: Any, expected: bool) -> None:
    assert continues_a_message(body) is expected


@pytest.mark.parametrize(("start", "prefilled", "expected"), [
    (None, True, False), (Start(0), False, False), (Start(0), True, True), (Start(0, closed=True), False, True),
])
def test_a_grammar_waits_for_no_end_that_will_not_come(start: Start | None, prefilled: bool, expected: bool) -> None:
    assert Asked(prefilled=prefilled, start=start).begins_with_the_answer is expected


def test_a_grammar_waits_for_the_end_of_a_block_that_a_prefill_leaves_open() -> None:
    from sglang_ext.budget.kernels.layout import THINKING

    assert not Asked(prefilled=True, start=Start(THINKING)).begins_with_the_answer


@pytest.mark.parametrize(("template", "expected"), [
    ("{% if thinking_mode == 'disabled' %}</mm:think>{% endif %}", True),
    ("{% if thinking_mode == 'chat' %}</think>{% endif %}", False),
    ("{% if enable_thinking is false %}</think>{% endif %}", True), ("{{ messages }}", False),
])
def test_a_switch_that_counts_is_one_that_is_set(template: str, expected: bool) -> None:
    import jinja2

    assert has_switch(template) is expected
    render = jinja2.Environment().from_string(template).render
    assert (render(messages="", **SWITCHES) != render(messages="")) is expected


def test_a_body_of_bytes_that_is_too_deep_is_left_to_the_checks_after() -> None:
    deep = b"[" * 200_000
    assert _collected(deep, frozenset()) == deep
