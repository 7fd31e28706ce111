"""Control tokens in text that a row, an environment or a tool wrote: found, and read as text.

A tokenizer turns the text `<|im_end|>` into the token that ends a turn, wherever it stands. In a
question or a retrieved page it would end the user's turn and open a fake one. So before a chat
template is applied, U+2060 (word joiner: no width, no break) is put after the first character of
each such text. What the template itself writes stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rl_core.data.prepare.tokenizer import Tokenizer

JOINER = "\u2060"
REASONING = frozenset({"<think>", "</think>"})
"""Marks that stay tokens in an assistant's own words, where a model's reasoning begins and ends."""


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return special tokens by their text: those with names in transformers, and those of the
    tokenizer's own file."""
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    own = {}
    for place, token in tokenizer.added_tokens_decoder.items():
        if token.special:
            own[str(token)] = place
    return named | own


class ControlTokens:
    """The control tokens of one tokenizer.

    Args: texts: special tokens as text; one of a single character cannot be parted and is left.
    """

    def __init__(self, texts: Collection[str]) -> None:
        # The longest first, so that what is parted is the whole token.
        self.texts = sorted({text for text in texts if len(text) > 1}, key=lambda text: -len(text))
        self._beginnings = {text[:2] for text in self.texts}
        self._pattern = re.compile("|".join(map(re.escape, self.texts)))

    @classmethod
    def of(cls, owner: object) -> ControlTokens:
        """Return those of a tokenizer, or of a processor's tokenizer."""
        tokenizer: Any = getattr(owner, "tokenizer", owner)
        known = hasattr(tokenizer, "added_tokens_decoder")
        return cls(special_ids(tokenizer) if known else ())

    def found(self, text: str) -> list[str]:
        """Return the control tokens in a text, in order."""
        if not any(beginning in text for beginning in self._beginnings):
            return []
        return self._pattern.findall(text)

    def parted(self, text: str, kept: Collection[str] = ()) -> str:
        """Return a text whose control tokens are read as text; itself where it has none.

        Args: kept: control tokens that stay.
        """

        def part(match: re.Match[str]) -> str:
            token = match[0]
            if token in kept:
                return token
            return token[0] + JOINER + token[1:]

        # Again, since a token may have another one inside.
        while any(token not in kept for token in self.found(text)):
            text = self._pattern.sub(part, text)
        return text

    def in_message(self, message: Mapping[str, object]) -> list[str]:
        """Return the control tokens in what a message says."""
        kept = _kept(message)
        tokens: list[str] = []
        for text in _texts(message):
            for token in self.found(text):
                if token not in kept:
                    tokens.append(token)
        return tokens

    def message(self, message: Mapping[str, object]) -> dict[str, object]:
        """Return a message whose control tokens are read as text, whatever its content's form."""
        kept = _kept(message)
        parted: dict[str, object] = {}
        for key, value in message.items():
            parted[key] = value if key == "role" else self._parted(value, kept)
        return parted

    def _parted(self, value: object, kept: Collection[str]) -> object:
        if isinstance(value, str):
            return self.parted(value, kept)
        if isinstance(value, Mapping):
            return {key: self._parted(one, kept) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._parted(one, kept) for one in value]
        return value


def _kept(message: Mapping[str, object]) -> Collection[str]:
    if message.get("role") == "assistant":
        return REASONING
    return ()


def _texts(message: Mapping[str, object]) -> Sequence[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list | tuple) else ()
    return [str(part.get("text") or "") for part in parts if isinstance(part, Mapping)]
