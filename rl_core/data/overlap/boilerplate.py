"""Sentences that stand around many questions of a file, such as `Solve step by step:` and `Put the
answer in \\boxed{}`, and the words of a question without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rl_core.data.overlap.words import Segment, is_number

MIN_TEXTS, MIN_PART = 3, 0.2
"""A sentence of a template stands in this many different texts, and in this part of all."""


class Templates:
    """Sentences that are left out of a comparison. One with a number never is: it may be what tells
    two questions apart."""

    def __init__(self) -> None:
        self._sentences: set[Segment] = set()

    def learn(self, texts: Iterable[Sequence[Segment]]) -> None:
        """Add the templates of texts of one file, or of the first part of it."""
        different = {tuple(segments) for segments in texts}
        counts = Counter(one for segments in different for one in set(segments))
        few = max(MIN_TEXTS, MIN_PART * len(different))
        self._sentences |= {
            one for one, count in counts.items() if count >= few and not any(map(is_number, one))
        }

    def without(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """Return the words of a text outside templates; all its words if there are no others."""
        rest = [one for one in segments if one not in self._sentences]
        return tuple(word for one in rest or segments for word in one)
