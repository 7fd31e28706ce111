"""Between messages and tokens: the chat template of one tokenizer."""

from __future__ import annotations

from typing import Any

from rl_core.models.tokenizer import encode_chat

_MARK = "\u241freply\u241f"


class ChatFormat:
    """Encodes prompts and observations, decodes replies, all with the same template and options."""

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any]) -> None:
        self.tokenizer, self.template_kwargs = tokenizer, template_kwargs

    def encode(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a prompt, ending where the reply begins."""
        return encode_chat(self.tokenizer, messages, self.template_kwargs)

    def decode(self, token_ids: list[int]) -> str:
        """Text of a reply, without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def observation(self, messages: list[dict[str, Any]], after: list[int]) -> list[int]:
        """Tokens between a reply and the next one: the end of the reply's turn (unless the reply wrote it itself), the
        observation messages, and the opening of the next turn. The reply's own tokens are never re-encoded."""
        turns = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, *messages]
        text = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, **self.template_kwargs
        )
        rest = text.partition(_MARK)[2]
        eos = self.tokenizer.eos_token
        if after and after[-1] == self.tokenizer.eos_token_id and rest.startswith(eos):
            rest = rest[len(eos) :]
        return self.tokenizer.encode(rest, add_special_tokens=False)
