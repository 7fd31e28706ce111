"""Index over the questions of held-out rows and benchmarks, which finds candidates for any number
of training texts; memory is bounded by the indexed side.

Three ways lead to a candidate, since each is blind to what another finds: equal words (texts of any
length); n-grams in common (a question inside a longer text, for which the Jaccard similarity is
small); MinHash and LSH over 3-grams (a question with a word changed here and there, of which few
13-grams survive). N-grams are integers here, and whole batches of texts are looked up at once;
`compare` decides on the words themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from rl_core.data.overlap.compare import (
    LONG_GRAM,
    MIN_SHARE,
    MIN_SIMILAR,
    SHORT_GRAM,
    Common,
    Gram,
    held_size,
)

if TYPE_CHECKING:
    from datasketch import MinHash, MinHashLSH

NUM_PERMUTATIONS = 64
LSH_THRESHOLD = 0.7
"""Below `MIN_SIMILAR`, since LSH misses some pairs that are just above its threshold."""
MANY, MANY_TRAIN, PART = 3, 10, 0.02
"""An n-gram in this many different held-out questions, or different training rows, belongs to none
of them. One of 3 words, or of training rows, is in this part of them all besides."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Words = tuple[str, ...]
Media = tuple[str, ...]


@dataclass
class Held:
    """A text of the indexed side, and the rows that ask it."""

    words: Words
    rows: dict[Media, dict[str, dict[bytes, int]]] = field(default_factory=dict)
    """Row numbers by pictures, file, and digest of the question as written."""

    def add(self, media: Media, file: str, digest: bytes, row: int) -> None:
        """Add a row; of those that agree in everything the first is kept."""
        self.rows.setdefault(media, {}).setdefault(file, {}).setdefault(digest, row)


class HeldIndex:
    """Index over texts.

    Args: texts: what is held out. sample: different training texts, which show what is common.
    """

    def __init__(self, texts: Iterable[Held], sample: Sequence[Words] = ()) -> None:
        self.texts = list(texts)
        self._at = {held.words: number for number, held in enumerate(self.texts)}
        self._ids: dict[str, int] = {}
        for held in self.texts:
            for word in held.words:
                self._ids.setdefault(word, len(self._ids) + 1)
        sizes = sorted({held_size(held.words) for held in self.texts} - {0})
        self.common = self._common({SHORT_GRAM, *sizes}, sample)
        self._long = {size: _Postings(self._hashed_long(size)) for size in sizes}
        self._common_short = self._hashes(
            [gram for gram in self.common.grams if len(gram) == SHORT_GRAM], SHORT_GRAM
        )
        self._short, self._lsh = self._near_texts()

    def candidates(self, texts: Sequence[Words]) -> list[list[int]]:
        """Return, for each text of a batch, the numbers of the indexed texts that may be like
        it."""
        found: list[set[int]] = [set() for _ in texts]
        for place, words in enumerate(texts):
            if (number := self._at.get(words)) is not None:
                found[place].add(number)
        batch = _Batch.of(texts, self._ids)
        for size, postings in self._long.items():
            hashes, places = batch.grams(size)
            for place, number in postings.matches(hashes, places):
                found[place].add(number)
        for place, hashes in self._nearly_known(batch, len(texts)):
            found[place].update(int(str(key)) for key in self._lsh.query(_sketch(hashes)))
        return [sorted(numbers) for numbers in found]

    def _common(self, sizes: Set[int], sample: Sequence[Words]) -> Common:
        """Return the n-grams of many held-out texts, or of a good part of the training texts."""
        texts = [held.words for held in self.texts]
        held, train = _Batch.of(texts, self._ids), _Batch.of(sample, self._ids)
        grams: set[Gram] = set()
        for size in sizes:
            few = MANY if size > SHORT_GRAM else max(MANY, round(PART * len(texts)))
            frequent = np.union1d(
                _frequent(*held.grams(size), few),
                _frequent(*train.grams(size), max(MANY_TRAIN, round(PART * len(sample)))),
            )
            hashes, places, starts = held.grams_with_starts(size)
            for at in np.flatnonzero(_is_in(hashes, frequent)):
                grams.add(texts[places[at]][starts[at] : starts[at] + size])
        return Common(grams)

    def _hashed_long(self, size: int) -> Mapping[int, np.ndarray]:
        hashes_by_number: dict[int, np.ndarray] = {}
        for number, held in enumerate(self.texts):
            if held_size(held.words) == size and len(
                hashes := self._hashes(self.common.own(held.words, size), size)
            ):
                hashes_by_number[number] = hashes
        return hashes_by_number

    def _near_texts(self) -> tuple[np.ndarray, MinHashLSH]:
        from datasketch import MinHashLSH

        lsh = MinHashLSH(threshold=LSH_THRESHOLD, num_perm=NUM_PERMUTATIONS)
        known = [np.empty(0, np.uint64)]
        for number, held in enumerate(self.texts):
            own = self.common.own(held.words, SHORT_GRAM) if len(held.words) >= LONG_GRAM else ()
            if own:
                hashes = self._hashes(own, SHORT_GRAM)
                lsh.insert(number, _sketch(hashes))
                known.append(hashes)
        return np.unique(np.concatenate(known)), lsh

    def _nearly_known(self, batch: _Batch, num_texts: int) -> Iterable[tuple[int, np.ndarray]]:
        """Yield the 3-grams of the texts most of whose 3-grams are held out: of any other text the
        similarity to a held-out one is below `MIN_SIMILAR`, whatever its sketch says."""
        if not len(self._short):
            return
        hashes, places = batch.grams(SHORT_GRAM)
        own = ~_is_in(hashes, self._common_short)
        hashes, places = hashes[own], places[own]
        num_known = np.bincount(places[_is_in(hashes, self._short)], minlength=num_texts)
        # Grams with a word that is never held out are not in `hashes`: counted by text length.
        num_common = np.bincount(batch.places_of_common(own), minlength=num_texts)
        total = np.maximum(batch.lengths - (SHORT_GRAM - 1) - num_common, 1)
        enough = (num_known >= MIN_SIMILAR * total) & (batch.lengths >= LONG_GRAM)
        for place in np.flatnonzero(enough & (num_known > 0)):
            yield int(place), np.unique(hashes[places == place])

    def _hashes(self, grams: Iterable[Gram], size: int) -> np.ndarray:
        """Return the sorted hashes of n-grams; those with a word that is not indexed have none."""
        known = []
        for gram in grams:
            known.append([self._ids.get(word, 0) for word in gram])
        ids = np.array([one for one in known if all(one)], np.uint64).reshape(-1, size)
        if len(ids):
            return np.unique(_mixed(ids.T))
        return np.empty(0, np.uint64)


@dataclass
class _Batch:
    """Word numbers of a batch of texts, one after the other with a 0 between them."""

    ids: np.ndarray
    places: np.ndarray
    """Number of the text of each word."""
    lengths: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Words], ids: Mapping[str, int]) -> _Batch:
        """Number the words; 0 is every word that no indexed text has."""
        get = ids.get
        numbers: list[int] = []
        for words in texts:
            numbers += [get(word, 0) for word in words]
            numbers.append(0)
        lengths = np.array([len(words) for words in texts], np.int64)
        places = np.repeat(np.arange(len(texts)), lengths + 1)
        return cls(np.array(numbers, np.uint64), places, lengths)

    def grams(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return hash and text number of each n-gram whose words are all indexed."""
        known = self._known(size)
        if not len(known):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(self.ids, size)
        return _mixed(windows[known].T), self.places[known]

    def grams_with_starts(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same, with the position of each n-gram in its text."""
        first_words = np.cumsum(self.lengths + 1) - (self.lengths + 1)
        hashes, places = self.grams(size)
        return hashes, places, self._known(size) - first_words[places]

    def _known(self, size: int) -> np.ndarray:
        num = len(self.ids) - size + 1
        if num <= 0:
            return np.empty(0, np.int64)
        unknown = np.concatenate([[0], np.cumsum(self.ids == 0)])
        return np.flatnonzero(unknown[size:] == unknown[:num])

    def places_of_common(self, own: np.ndarray) -> np.ndarray:
        """Return the text numbers of the 3-grams that are not `own`."""
        return self.grams(SHORT_GRAM)[1][~own]


class _Postings:
    """Texts by the hashes of their n-grams."""

    def __init__(self, hashes_of: Mapping[int, np.ndarray]) -> None:
        numbers = [np.full(len(hashes), number) for number, hashes in hashes_of.items()]
        hashes = np.concatenate([*hashes_of.values(), np.empty(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order].astype(np.uint64)
        self._numbers = np.concatenate([*numbers, np.empty(0, np.int64)]).astype(np.int64)[order]
        self._num_grams = {number: len(hashes) for number, hashes in hashes_of.items()}

    def matches(self, hashes: np.ndarray, places: np.ndarray) -> Iterable[tuple[int, int]]:
        """Yield the place of each looked-up text with each indexed text of which it has enough
        n-grams."""
        hit = np.flatnonzero(_is_in(hashes, self._hashes))
        counts: dict[int, Counter[int]] = defaultdict(Counter)
        pairs = set(zip(places[hit].tolist(), hashes[hit].tolist(), strict=True))
        for place, value in pairs:
            first = np.searchsorted(self._hashes, np.uint64(value))
            last = np.searchsorted(self._hashes, np.uint64(value), side="right")
            counts[place].update(self._numbers[first:last].tolist())
        for place, found in counts.items():
            for number, count in found.items():
                if count >= MIN_SHARE * self._num_grams[number]:
                    yield place, number


def _frequent(hashes: np.ndarray, places: np.ndarray, few: int) -> np.ndarray:
    """Return the hashes that stand in at least `few` texts."""
    if not len(hashes):
        return hashes
    order = np.lexsort((places, hashes))
    hashes, places = hashes[order], places[order]
    again = np.zeros(len(hashes), bool)
    again[1:] = (hashes[1:] == hashes[:-1]) & (places[1:] == places[:-1])
    values, counts = np.unique(hashes[~again], return_counts=True)
    return values[counts >= few]


def _mixed(columns: np.ndarray) -> np.ndarray:
    """Return one hash per n-gram. Args: columns: the words' numbers, [n, number of n-grams]."""
    mixed = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        mixed = (mixed + column) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _is_in(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which of the values are among the sorted `known` ones."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[at] == values


def _sketch(hashes: np.ndarray) -> MinHash:
    sketch = _empty_sketch().copy()
    sketch.update_batch(hashes.tolist())
    return sketch


@cache
def _empty_sketch() -> MinHash:
    from datasketch import MinHash

    return MinHash(NUM_PERMUTATIONS, hashfunc=int, scheme="affine64")
