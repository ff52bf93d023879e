"""Places in a text where its tokenization can be cut for good.

At a proven boundary two things hold: text appended later changes no id before it, and what follows it is encoded alone
as it is encoded in its context. So only the text since the last one has to be encoded again. Two proofs:

- Pre-tokens. A pattern that looks no further than two pre-tokens ahead cannot change a pre-token with two complete ones
  after it, and it can begin anew at a boundary.
- Letters. Where the text is not split by a pattern, two neighbours that stand side by side in no piece of the
  vocabulary belong to two ids, whatever surrounds them: BPE never merges across them, and no piece that Unigram could
  choose spans them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

STABLE_AFTER = 3  # pre-tokens after a boundary that make it stable: two complete ones, and the last, which may grow


class Boundaries:
    """Finds the last proven boundary of an encoded text.

    Args:
        splits: `words`, `letters` or `unknown`, as in `encoders.Encoder`.
        pieces: bytes of every piece that text can be encoded to.
        longest_added: bytes of the longest added token that counts as text; added tokens are found before pre-tokens
            are, so one may begin before a boundary and be completed by text to come.
    """

    def __init__(self, splits: str, pieces: Iterable[bytes], longest_added: int) -> None:
        self._splits = splits
        self._longest_added = longest_added
        self._joined: frozenset[str] = frozenset()  # neighbours within some piece, characters or Latin-1 bytes
        self._bytewise = False
        if splits == "letters":
            self._joined, self._bytewise = _neighbours(pieces)

    def last(self, data: bytes, ends: Sequence[int], words: Sequence[int] | None) -> int:
        """Ids before the last proven boundary inside the text; 0 where there is none.

        Args:
            data: UTF-8 text.
            ends: [ids], bytes of the text up to the end of each id.
            words: [ids], number of the pre-token of each id, if known.
        """
        if self._splits == "letters":
            return self._by_letters(data, ends)
        if self._splits == "words" and words is not None:
            return self._by_words(len(data), ends, words)
        return 0

    def _by_words(self, size: int, ends: Sequence[int], words: Sequence[int]) -> int:
        after = 1
        for k in range(len(ends) - 1, 0, -1):
            if words[k] == words[k - 1]:
                continue
            if after >= STABLE_AFTER and ends[k - 1] <= size - self._longest_added:
                return k
            after += 1
        return 0

    def _by_letters(self, data: bytes, ends: Sequence[int]) -> int:
        symbols = data.decode("latin-1") if self._bytewise else data.decode()
        after = 0  # bytes
        for k in range(len(symbols) - 1, 0, -1):
            after += 1 if self._bytewise else len(symbols[k].encode())
            if symbols[k - 1 : k + 1] in self._joined or 0x80 <= data[len(data) - after] < 0xC0:
                continue
            count = bisect_right(ends, len(data) - after)
            return count if count and ends[count - 1] == len(data) - after else 0
        return 0


def _neighbours(pieces: Iterable[bytes]) -> tuple[frozenset[str], bool]:
    """Neighbouring characters of all pieces; neighbouring bytes, as Latin-1, where a piece holds half a character."""
    longer = [piece for piece in pieces if len(piece) > 1]
    try:
        texts, bytewise = [piece.decode() for piece in longer], False
    except UnicodeDecodeError:
        texts, bytewise = [piece.decode("latin-1") for piece in longer], True
    return frozenset(text[k : k + 2] for text in texts for k in range(len(text) - 1)), bytewise
