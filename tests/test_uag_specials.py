"""Control tokens of one vocabulary in another: the same token, a role, text, or opaque."""

from __future__ import annotations

import pytest
from uag_tokenizers import made, vocabulary

from sglang_ext.uag.text.translator import SpecialMap
from sglang_ext.uag.text.vocabulary import Vocabulary


def both_ways(target: Vocabulary, draft: Vocabulary, **override: str) -> tuple[dict[str, object], dict[str, str]]:
    """The map by names."""
    found = SpecialMap.of(target, draft, override)
    def name(vocabulary: Vocabulary, i: int) -> str:
        return vocabulary.added.get(i) or vocabulary.special[i]
    to_draft = {name(target, i): name(draft, m[0]) if isinstance(m, tuple) else m for i, m in found.to_draft.items()}
    return to_draft, {name(draft, i): name(target, j) for i, j in found.to_target.items()}


def test_the_same_token() -> None:
    to_draft, to_target = both_ways(made("<|im_end|>", "<|im_start|>", "<|tool|>"),
                                    made("<|tool|>", "<|im_start|>", "<|im_end|>"))
    assert to_draft == {t: t for t in ("<|im_end|>", "<|im_start|>", "<|tool|>")}
    assert to_target == to_draft


def test_ends_have_ids_of_their_own() -> None:
    """The target's end must not reach a draft that ends with another id."""
    to_draft, to_target = both_ways(made("<|im_end|>", "<|im_start|>"), made("</s>", "<unk>"))
    assert to_draft == {"<|im_end|>": "</s>", "<|im_start|>": None}
    assert to_target == {"</s>": "<|im_end|>"}


def test_turns() -> None:
    to_draft, to_target = both_ways(made("<|im_end|>", "<|im_start|>"),
                                    made("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", bos="<bos>"))
    assert to_draft == {"<|im_end|>": "<end_of_turn>", "<|im_start|>": "<start_of_turn>"}
    assert to_target == {"<end_of_turn>": "<|im_end|>", "<start_of_turn>": "<|im_start|>", "<eos>": "<|im_end|>"}


def test_a_draft_without_a_start_of_text_does_not_read_the_targets() -> None:
    to_draft, _ = both_ways(made("</s>", "<s>", bos="<s>"), made("<|im_end|>", "<|im_start|>", bos="<|im_start|>"))
    assert to_draft == {"</s>": "<|im_end|>", "<s>": None}


def test_padding_is_no_end() -> None:
    """A draft that pads with its end still ends by it."""
    _, to_target = both_ways(made("<|im_end|>", "<pad>", pad="<pad>"), made("</s>", pad="</s>"))
    assert to_target == {"</s>": "<|im_end|>"}


@pytest.mark.parametrize(("target", "draft"), [
    (made("</s>", "[THINK]", "[/THINK]"), made("</s>", "<think>", "</think>")),
    (made("</s>", "[THINK]", "[/THINK]"), made("</s>", text=("<think>", "</think>"))),
    (made("</s>", text=("[THINK]", "[/THINK]")), made("</s>", "<think>", "</think>")),
], ids=["control", "text in the draft", "text in the target"])
def test_thinking_by_role(target: Vocabulary, draft: Vocabulary) -> None:
    to_draft, to_target = both_ways(target, draft)
    assert (to_draft["[THINK]"], to_draft["[/THINK]"]) == ("<think>", "</think>")
    assert (to_target["<think>"], to_target["</think>"]) == ("[THINK]", "[/THINK]")


def test_text_in_both_is_no_atom() -> None:
    to_draft, to_target = both_ways(made("</s>", text=("<think>",)), made("</s>", text=("<think>",)))
    assert to_draft == to_target == {"</s>": "</s>"}


def test_a_control_token_that_the_draft_writes_as_text() -> None:
    """Only where it is a token of the draft's text; strings that it would have to spell are opaque."""
    target = made("</s>", " the", "<|spelled|>")
    to_draft, _ = both_ways(target, vocabulary("byte-level"))
    assert to_draft[" the"] == b" the"
    assert to_draft["<|spelled|>"] is None


def test_override() -> None:
    target, draft = made("<|im_end|>", "<|a|>", "<|b|>"), made("</s>", "<|a|>", "<x>")
    to_draft, to_target = both_ways(target, draft, **{"<|b|>": "<x>", "<|a|>": ""})
    assert to_draft == {"<|im_end|>": "</s>", "<|a|>": None, "<|b|>": "<x>"}
    assert to_target == {"</s>": "<|im_end|>", "<x>": "<|b|>"}


@pytest.mark.parametrize(("override", "message"), [
    ({"<|c|>": ""}, r"has no token '<\|c\|>'; accepted are its control and added tokens, such as '</s>', '<\|a\|>'"),
    ({"<|a|>": "<y>"}, r"'<\|a\|>' -> '<y>', which the draft does not have; accepted are \"\" and"),
    ({"<|a|>": 3}, r"'<\|a\|>' -> 3; accepted is a token of the draft, or \"\""),
])
def test_bad_override(override: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpecialMap.of(made("</s>", "<|a|>"), made("</s>", "<x>"), override)


def test_real_vocabularies() -> None:
    smollm2, tekken = vocabulary("smollm2"), vocabulary("tekken")
    found = SpecialMap.of(smollm2, tekken)
    end = smollm2.named["<|im_end|>"]
    assert found.to_draft[end] == (tekken.named["</s>"],)
    assert found.to_target[tekken.named["</s>"]] == end
    assert SpecialMap.of(tekken, smollm2).to_draft[tekken.named["[INST]"]] is None
