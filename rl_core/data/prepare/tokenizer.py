"""Interface of a tokenizer, which transformers declares only in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class AddedToken(Protocol):
    """A token that was added to a vocabulary."""

    @property
    def special(self) -> bool:
        """True if it is no text."""
        ...


class Tokenizer(Protocol):
    """A tokenizer of transformers, as `rl_core.models.chat.tokenizer` loads it."""

    chat_template: str | None
    padding_side: str
    pad_token: str | None
    eos_token: str | None
    why_no_images: str
    """Set by `prompt_tokenizer`: why rows with images are refused."""

    @property
    def eos_token_id(self) -> int:
        """Token that ends a sequence."""
        ...

    @property
    def pad_token_id(self) -> int:
        """Token that fills up rows."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Token that begins a sequence, if there is one."""
        ...

    @property
    def unk_token_id(self) -> int | None:
        """Token of what the tokenizer does not know, if there is one."""
        ...

    @property
    def all_special_ids(self) -> list[int]:
        """The special tokens."""
        ...

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens as text."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Tokens that were added to the vocabulary, by id."""
        ...

    def __len__(self) -> int: ...

    def __call__(self, text: Sequence[str], **options: object) -> Mapping[str, list[list[int]]]:
        """Return `input_ids` of several texts."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        ...

    def get_added_vocab(self) -> dict[str, int]:
        """Return the id of each added token."""
        ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens with these ids."""
        ...

    def apply_chat_template(self, conversation: object, **options: object) -> object:
        """Render a conversation by the chat template."""
        ...

    def save_pretrained(self, save_directory: str | Path) -> object:
        """Write the tokenizer into a folder."""
        ...
