"""Rows of tokens to train on: the target's texts in the draft's tokens, and copying text that needs no target."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .train_draft_prompts import Prompt, PromptMaker
from .train_draft_texts import Text

IGNORED = -100
"""Label of a position without loss."""
_CUT_SHARE = 0.04
_SYNTHETIC_SHARE = 0.4


class Rows:
    """An endless stream of rows, the same for the same seed.

    A pass over the texts is one epoch: in a new order, cut in new places, with new copying text between.

    Args:
        target: the target's tokenizer, which says where a confirmed text can end.
        draft: the draft's tokenizer.
        texts: what the target wrote.
        length: tokens of a row.
        seed: of order, cuts and copying text.
    """

    def __init__(self, target: Any, draft: Any, texts: Sequence[Text], length: int, seed: int) -> None:
        self._target, self._draft, self._texts = target, draft, texts
        self._length, self._seed = length, seed

    def batches(self, size: int, skip: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Input ids and labels, [size, length] int64 each; labels are the inputs, IGNORED where there is no loss.

        Args:
            size: rows of a batch.
            skip: batches to leave out at the beginning.
        """
        rows = self._rows()
        for _ in range(skip * size):
            next(rows)
        while True:
            chosen = [next(rows) for _ in range(size)]
            yield np.stack([ids for ids, _ in chosen]), np.stack([labels for _, labels in chosen])

    def _rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        ids: list[int] = []
        labels: list[int] = []
        for more_ids, more_labels in self._documents():
            ids += more_ids
            labels += more_labels
            while len(ids) >= self._length:
                yield np.array(ids[: self._length]), np.array(labels[: self._length])
                ids, labels = ids[self._length :], labels[self._length :]

    def _documents(self) -> Iterator[tuple[list[int], list[int]]]:
        epoch = 0
        while True:
            chance = random.Random(f"{self._seed} {epoch}")
            maker = PromptMaker(chance.randrange(1 << 30), passages=[t.reply for t in self._texts])
            for text in chance.sample(self._texts, len(self._texts)):
                yield self._document(text, chance)
                while chance.random() < _SYNTHETIC_SHARE:
                    yield self._document(self._synthetic(maker, chance), chance)
            epoch += 1

    def _synthetic(self, maker: PromptMaker, chance: random.Random) -> Text:
        if chance.random() < 0.5:
            request, passage = maker.echo()
            style = chance.choice(["chat", "answer"])
            return Text("echo", Prompt("copying", style, request).render(self._target), passage, True)
        first, again = maker.repeats()
        return Text("repeats", first, again, False)

    def _document(self, text: Text, chance: random.Random) -> tuple[list[int], list[int]]:
        """Ids and labels of one text; only the reply has loss."""
        end = self._draft.eos_token if text.finished else ""
        whole = text.prompt + text.reply + end
        ids: list[int] = [self._draft.pad_token_id]
        labels = [IGNORED]
        cuts = self._cuts(whole, chance)
        for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            piece = self._draft(whole[start:stop], add_special_tokens=False, return_offsets_mapping=True)
            ids += piece["input_ids"]
            labels += [token if start + begin >= len(text.prompt) else IGNORED
                       for token, (begin, _) in zip(piece["input_ids"], piece["offset_mapping"], strict=True)]
        return ids, labels

    def _cuts(self, whole: str, chance: random.Random) -> list[int]:
        """Some places where a token of the target ends. The draft is asked to go on from such places, which may lie
        inside what would be one token of its own, so it has to have seen the rest of a token written alone."""
        offsets = self._target(whole, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ends = sorted({stop for _, stop in offsets if 0 < stop < len(whole)})
        return [stop for stop in ends if chance.random() < _CUT_SHARE]
