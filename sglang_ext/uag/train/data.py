"""Rows of tokens to train on: the target's texts in the draft's tokens, and copying text that needs no target."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...training import IGNORED
from .prompts import Prompt, PromptMaker
from .texts import Text

_CUT_SHARE = 0.04
_SYNTHETIC_SHARE = 0.4
_DRILL_SHARE = 0.2
_DRILL_LENGTH = 128
"""Tokens of a row of drills: in a short row the attention finds what comes back far sooner."""


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
        special = {draft.pad_token_id, *draft.all_special_ids}
        self._plain = [i for i in range(len(draft)) if i not in special]

    def batches(self, size: int, drills: int = 0, skip: int = 0) -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Input ids and labels, int64 [size, length] each; labels are the inputs, IGNORED where there is no loss.

        Args:
            size: rows of a batch.
            drills: this many first batches hold nothing but random sequences that come back, in as many tokens but
                shorter rows. What the target wrote is soon known by heart, and a model that knows it by heart never
                learns to copy; in a drill nothing else helps.
            skip: batches to leave out at the beginning.
        """
        chance = random.Random(f"{self._seed} drills")
        first = self._batches((self._drill(chance) for _ in count()),
                              max(1, size * self._length // _DRILL_LENGTH), _DRILL_LENGTH)
        rest = self._batches(self._documents(), size, self._length)
        yield from islice(chain(islice(first, drills), rest), skip, None)

    def _batches(self, documents: Iterator[tuple[list[int], list[int]]], size: int, length: int
                 ) -> Iterator[tuple[NDArray[np.int64], ...]]:
        ids: list[int] = []
        labels: list[int] = []
        for more_ids, more_labels in documents:
            ids += more_ids
            labels += more_labels
            while len(ids) >= size * length:
                yield tuple(np.array(part[: size * length]).reshape(size, length) for part in (ids, labels))
                ids, labels = ids[size * length :], labels[size * length :]

    def _documents(self) -> Iterator[tuple[list[int], list[int]]]:
        epoch = 0
        while True:
            chance = random.Random(f"{self._seed} {epoch}")
            maker = PromptMaker(chance.randrange(1 << 30), passages=[t.reply for t in self._texts])
            for text in chance.sample(self._texts, len(self._texts)):
                yield self._document(text, chance)
                while chance.random() < _SYNTHETIC_SHARE:
                    yield self._document(self._synthetic(maker, chance), chance)
                while chance.random() < _DRILL_SHARE:
                    yield self._drill(chance)
            epoch += 1

    def _synthetic(self, maker: PromptMaker, chance: random.Random) -> Text:
        if chance.random() < 0.5:
            request, passage = maker.echo()
            style = chance.choice(["chat", "answer"])
            return Text("echo", Prompt("copying", style, request).render(self._target), passage, True)
        first, again = maker.repeats()
        return Text("repeats", first, again, False)

    def _drill(self, chance: random.Random) -> tuple[list[int], list[int]]:
        """Random tokens that come back once or more; there is loss from the second time on, but not on its first
        token."""
        once = chance.choices(self._plain, k=chance.randint(6, 24))
        times = chance.randint(1, 3)
        labels = [IGNORED] * (len(once) + 1) + (once * times)[1:]
        return [self._draft.pad_token_id, *once, *once * times], [IGNORED, *labels]

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
