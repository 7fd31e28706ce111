"""Exact comparison of two texts, word by word: what is said of a pair of rows is true of it.

Texts are the same if all their words are. A longer text holds a held-out one if it has at least
`MIN_SHARE` of its n-grams (13 words each; a shorter text is one n-gram). Texts of similar length
are nearly the same if they have at least `MIN_SIMILAR` of the 3-grams of both in common. N-grams
that belong to many questions are no evidence (`Common`), and texts in which numbers or operators
stand for each other ask different things, however long the rest of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from rl_core.data.overlap.words import is_number, num_words, readable
from schemas.receipts import OverlapKind

LONG_GRAM, SHORT_GRAM = 13, 3
MIN_SHARE, MIN_SIMILAR = 0.5, 0.8
MIN_HELD = 8
"""Words below which a text inside a longer one means nothing: `what is 2 + 2` is in many."""

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Common:
    """N-grams shared by so many questions that they say nothing about one."""

    grams: Set[Gram] = field(default_factory=frozenset)

    def own(self, words: Sequence[str], size: int) -> set[Gram]:
        """Return the n-grams of a text without the common ones."""
        return set(grams_of(words, size)) - self.grams


@dataclass(frozen=True)
class Likeness:
    """The way in which a training text repeats a held-out one, and how much of it."""

    kind: OverlapKind
    share: float
    passage: str
    """The longest passage that they have in common."""


def grams_of(words: Sequence[str], size: int) -> Iterable[Gram]:
    """Yield the n-grams of a text, in order."""
    return zip(*(words[start:] for start in range(size)), strict=False)


def held_size(words: Sequence[str]) -> int:
    """Return the size of the n-grams by which a held-out text is found in a longer one; 0 for a
    text too short for that."""
    if num_words(words) >= MIN_HELD:
        return min(LONG_GRAM, len(words))
    return 0


def compare(held: Sequence[str], train: Sequence[str], common: Common) -> Likeness | None:
    """Return how a training text repeats a held-out one; None if it does not."""
    if held == train:
        return Likeness(OverlapKind.SAME, 1.0, readable(held))
    kind, share = _most_alike(held, train, common)
    if kind is None:
        return None
    window = _near(held, train, common)
    matcher = SequenceMatcher(None, held, window, autojunk=False)
    if _numbers_differ(held, window, matcher):
        return None
    longest = matcher.find_longest_match()
    passage = held[longest.a : longest.a + longest.size]
    return Likeness(kind, share, readable(passage))


def _most_alike(
    held: Sequence[str], train: Sequence[str], common: Common
) -> tuple[OverlapKind | None, float]:
    if (size := held_size(held)) and (own := common.own(held, size)):
        share = len(own.intersection(grams_of(train, size))) / len(own)
        if share >= MIN_SHARE:
            return OverlapKind.WITHIN, share
    if min(len(held), len(train)) >= LONG_GRAM:
        ours, theirs = common.own(held, SHORT_GRAM), common.own(train, SHORT_GRAM)
        share = len(ours & theirs) / max(1, len(ours | theirs))
        if share >= MIN_SIMILAR:
            return OverlapKind.NEAR, share
    return None, 0.0


def _near(held: Sequence[str], train: Sequence[str], common: Common) -> Sequence[str]:
    """Return the part of a long training text in which the held-out one lies."""
    if len(train) <= 2 * len(held):
        return train
    own = common.own(held, SHORT_GRAM) or set(grams_of(held, SHORT_GRAM))
    places = [at for at, gram in enumerate(grams_of(train, SHORT_GRAM)) if gram in own]
    best = max(places, key=lambda at: sum(at <= other < at + len(held) for other in places[:2000]))
    return train[max(0, best - len(held) // 2) : best + len(held) + len(held) // 2]


def _numbers_differ(
    held: Sequence[str], train: Sequence[str], matcher: SequenceMatcher[str]
) -> bool:
    """Return True if, between words in common, one text has other numbers than the other."""
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        ours, theirs = held[a:a_end], train[b:b_end]
        numbers = []
        for part in (ours, theirs):
            numbers.append([word for word in part if is_number(word)])
        if tag == "replace" and all(numbers) and numbers[0] != numbers[1]:
            return True
        inside = min(a, b) > 0 and a_end < len(held) and b_end < len(train)
        changed = [*ours, *theirs] if tag in ("insert", "delete") else []
        if inside and changed and all(map(is_number, changed)):
            return True
    return False
