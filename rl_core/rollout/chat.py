"""Between messages and tokens: the chat template of one tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rl_core.errors import ModelError
from rl_core.models.media import PromptMedia
from rl_core.models.tokenizer import encode_chat

_MARK = "\u241freply\u241f"


@dataclass(frozen=True)
class Encoded:
    """A prompt as a model takes it."""

    token_ids: list[int]
    media: PromptMedia | None = None


class ChatFormat:
    """Encodes prompts and observations, decodes replies, all with the same template and options."""

    why_no_images = "the row has images, which this language model cannot see; use a vision-language model"
    """What is said of a row that shows pictures."""

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any], stop_ids: Collection[int] = ()) -> None:
        """Args: stop_ids: tokens that end a reply, besides the tokenizer's end-of-sequence token."""
        self.tokenizer, self.template_kwargs = tokenizer, template_kwargs
        self.stop_ids = frozenset({tokenizer.eos_token_id, *stop_ids})

    def encode_prompt(self, messages: list[dict[str, Any]], item: Mapping[str, Any]) -> Encoded:
        """A row's prompt, ending where the reply begins. Raises: ModelError when the row shows pictures."""
        if item["env_extras"].get("images"):
            raise ModelError(self.why_no_images)
        return Encoded(self.encode(messages))

    def encode(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a prompt, ending where the reply begins."""
        return encode_chat(self.tokenizer, messages, self.template_kwargs)

    def decode(self, token_ids: list[int]) -> str:
        """Text of a reply, without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def observation(self, messages: list[dict[str, Any]], after: list[int]) -> list[int]:
        """Tokens between a reply and the next one: the end of the reply's turn (unless the reply wrote one itself), the
        observation messages, and the opening of the next turn. The reply's own tokens are never re-encoded.

        A reply may have ended with another stop token than the one the template writes; it then stands for it.
        Raises: ModelError when the template leaves out the reply.
        """
        turns = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, *messages]
        text = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, **self.template_kwargs
        )
        _, mark, rest = text.partition(_MARK)
        if not mark:
            raise ModelError(
                "the chat template leaves out the assistant's earlier turns; it cannot carry several turns"
            )
        token_ids = self.tokenizer.encode(rest, add_special_tokens=False)
        end = next((place for place, one in enumerate(token_ids) if one in self.stop_ids), None)
        if end is not None and after and after[-1] in self.stop_ids and not self._text(token_ids[:end]).strip():
            return token_ids[end + 1 :]
        return token_ids

    def _text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids)
