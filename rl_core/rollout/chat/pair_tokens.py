"""Tokens of a pair of answers: one prompt, the chosen answer, the rejected one.

An answer is encoded separately from its prompt and ends with the token that ends a turn in the chat
template, as a sampled reply would; with the end-of-sequence token if the template has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rl_core.data.prepare.control_tokens import REASONING
from rl_core.data.prepare.items import PairItem
from rl_core.models.media import PromptMedia
from rl_core.rollout.chat.text import ChatFormat
from schemas.sections.preference import PreferenceConfig, ThinkMode

OPEN, CLOSE = "<think>", "</think>"


class Idle(StrEnum):
    """Reason why a pair has no learning signal."""

    OVERLONG = "overlong"
    """Prompt and answer have more than `max_length` tokens together."""
    EQUAL = "equal"
    """Without their reasoning the answers are equal, or one is empty."""


@dataclass(frozen=True)
class PairTokens:
    """Tokens of a pair; an idle pair only has as many as a row needs to exist."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    idle: Idle | None = None
    media: PromptMedia | None = None
    """Images of the prompt; both answers share them."""


class PairEncoder:
    """Encoder of pairs with a model's chat format, which has its tokenizer, template and images."""

    def __init__(self, chat: ChatFormat, config: PreferenceConfig, max_length: int) -> None:
        """Create the encoder.

        Args: max_length: longest prompt plus answer in tokens.
        """
        self.chat, self.tokenizer, self.config, self.max_length = (
            chat,
            chat.tokenizer,
            config,
            max_length,
        )
        written = chat.turns.end_id
        self.end_id = chat.tokenizer.eos_token_id if written is None else written

    def __call__(self, item: PairItem) -> PairTokens:
        """Return the tokens of a prepared pair. Raises: ModelError when it has images that the
        model does not support."""
        encoded = self.chat.encode_prompt(item["prompt"], item)
        prompt = encoded.token_ids
        texts = []
        for side in ("chosen", "rejected"):
            texts.append(answer_text(item[side], self.config.think))
        chosen, rejected = (self._answer(text, prompt) for text in texts)
        if texts[0].strip() == texts[1].strip() or not all(text.strip() for text in texts):
            return self._idle(Idle.EQUAL)
        if len(prompt) + max(len(chosen), len(rejected)) > self.max_length:
            return self._idle(Idle.OVERLONG)
        return PairTokens(prompt, chosen, rejected, media=encoded.media)

    def _answer(self, text: str, prompt: list[int]) -> list[int]:
        # A reasoning model's template may have opened the block already.
        if text.startswith(OPEN) and self.tokenizer.decode(prompt[-8:]).rstrip().endswith(OPEN):
            text = text.removeprefix(OPEN)
        text = self.chat.template.control_tokens.parted(text, kept=REASONING)
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.end_id]

    def _idle(self, why: Idle) -> PairTokens:
        token = [self.tokenizer.eos_token_id]
        return PairTokens(token, token, token, why)


def answer_text(answer: str, mode: ThinkMode) -> str:
    """Return an answer with its reasoning kept, removed, or with an empty one added if it has
    none."""
    before, close, after = answer.partition(CLOSE)
    if mode is ThinkMode.STRIP:
        if close:
            return (before.partition(OPEN)[0] + after).strip()
        return answer.partition(OPEN)[0].strip()
    if mode is ThinkMode.EMPTY and OPEN not in answer and not close:
        return f"{OPEN}{CLOSE}{answer}"
    return answer
