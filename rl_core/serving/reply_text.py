"""Text of a reply while it is being sampled."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rl_core.models.decoding.stop_strings import TextOf

UNFINISHED = "\ufffd"
"""End of a text whose last character has more bytes to come."""


class ReplyText:
    """Turns tokens into text, piece by piece.

    Text that may be the beginning of a stop string is held back, and a stop string is not given
    out. Args: text_of: text of tokens. stop: strings that end the reply. tags: special tokens that
    stay in the text.
    """

    def __init__(
        self, text_of: TextOf, stop: Sequence[str] = (), tags: Collection[str] = ()
    ) -> None:
        self.text_of, self.stop, self.tags = text_of, tuple(stop), tags
        self._ids: list[int] = []
        # Tokens from `_start` on are decoded together, since a tokenizer may drop a space before
        # the first of a text; those before `_read` have been given out.
        self._start = self._read = 0
        self._held = ""

    def add(self, token_id: int) -> str:
        """Append a token. Returns: the text that is certain now."""
        self._ids.append(token_id)
        before = self.text_of(self._ids[self._start : self._read], self.tags)
        now = self.text_of(self._ids[self._start :], self.tags)
        if now.endswith(UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return self._certain(now[len(before) :])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens whose text is read with the rest, by `end`: decoded once, where `add`
        decodes twice per token."""
        self._ids += token_ids

    def end(self, *, at_stop: bool) -> str:
        """Return the rest of the text. Args: at_stop: a stop string ended the reply."""
        before = self.text_of(self._ids[self._start : self._read], self.tags)
        text = self._held + self.text_of(self._ids[self._start :], self.tags)[len(before) :]
        self._held = ""
        found = [place for one in self.stop if (place := text.find(one)) >= 0]
        if at_stop and found:
            return text[: min(found)]
        return text

    def _certain(self, piece: str) -> str:
        text = self._held + piece
        if any(one in text for one in self.stop):
            self._held = text
            return ""
        kept = max((_overlap(text, one) for one in self.stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that a stop string begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
