"""Strings that end a reply, found in its text: one may begin inside one token and end inside
another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

TextOf: TypeAlias = Callable[[list[int], Collection[str]], str]
"""Function that returns the text of a reply's tokens, given the special tokens that stay in it."""
MARGIN = 8
"""Tokens before those that a stop string can span. Some tokenizers drop a space before the first
token of a text, and a character may begin in an earlier token."""


@dataclass(frozen=True)
class StopStrings:
    """Strings of which the first that a reply's text has ends the reply."""

    strings: tuple[str, ...]
    tags: frozenset[str] = frozenset()
    """Special tokens that stay in the text."""

    @classmethod
    def of(cls, strings: Sequence[str], tags: Collection[str] = ()) -> StopStrings | None:
        """Return the strings, each once; None if there are none."""
        if not strings:
            return None
        return cls(tuple(dict.fromkeys(strings)), frozenset(tags))

    def end(self, token_ids: Sequence[int], text_of: TextOf) -> bool:
        """Return True if the last token completes one of the strings.

        Args: token_ids: of the reply alone, so that strings of the prompt do not count.
        """
        window = self._longest_in_tokens + MARGIN
        near = list(token_ids[-window:])
        text = text_of(near, self.tags)
        if not any(one in text for one in self.strings):
            return False
        # Only a string that is new with the last token counts: an earlier one did not end the
        # reply, since it was too short.
        before = text_of(near[:-1], self.tags)
        same = _common(before, text)
        return any(text.find(one, max(0, same - len(one) + 1)) >= 0 for one in self.strings)

    def cut(self, token_ids: Sequence[int], at_least: int, text_of: TextOf) -> int | None:
        """Return the number of tokens up to the first string's end; None if none is there.

        Args: at_least: number of tokens by which no string ends a reply.
        """
        for stop in range(at_least + 1, len(token_ids) + 1):
            if self.end(token_ids[:stop], text_of):
                return stop
        return None

    @property
    def _longest_in_tokens(self) -> int:
        """Most tokens of the longest string: a token has a byte or more."""
        return max(len(one.encode()) for one in self.strings)


def _common(one: str, other: str) -> int:
    """Return the number of leading characters that two texts share."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
