"""Tokens of a pair of whole conversations, as a reward model reads them: rendered by the chat
template, without opening a turn after the last one."""

from __future__ import annotations

from itertools import takewhile

from rl_core.data.prepare.chat_template import ChatTemplate, Message, with_reply
from rl_core.data.prepare.items import PairItem
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError
from rl_core.rollout.chat.pair_tokens import Idle, PairTokens, answer_text
from rl_core.rollout.chat.text import ChatFormat
from schemas.sections.preference import PreferenceConfig

SIDES = ("chosen", "rejected")


class ConversationEncoder:
    """Encoder of pairs: the tokens that both conversations begin with, and the rest of each.

    After the rest stands one placeholder, the action whose value is the score of all tokens before
    it. Args: max_length: longest conversation in tokens; a pair that is longer is idle.
    """

    def __init__(self, chat: ChatFormat, config: PreferenceConfig, max_length: int) -> None:
        self.chat, self.config, self.max_length = chat, config, max_length
        self.placeholder: int = chat.tokenizer.eos_token_id

    def __call__(self, item: PairItem) -> PairTokens:
        """Return the tokens of a prepared pair. Raises: ModelError when it has images."""
        if item["env_extras"].get("images"):
            raise ModelError(self.chat.why_no_images)
        texts = [answer_text(item[side], self.config.think) for side in SIDES]
        if texts[0].strip() == texts[1].strip() or not all(text.strip() for text in texts):
            return self._idle(Idle.EQUAL)
        whole = []
        for text in texts:
            whole.append(
                conversation_ids(self.chat.tokenizer, self.chat.template, item["prompt"], text)
            )
        if max(map(len, whole)) > self.max_length:
            return self._idle(Idle.OVERLONG)
        # The shared prompt may not be empty, nor hold the last token of either conversation.
        most = max(1, min(map(len, whole)) - 1)
        both = zip(whole[0][:most], whole[1][:most], strict=True)
        same = takewhile(lambda two: two[0] == two[1], both)
        num_shared = max(1, sum(1 for _ in same))
        chosen, rejected = ([*ids[num_shared:], self.placeholder] for ids in whole)
        return PairTokens(whole[0][:num_shared], chosen, rejected)

    def _idle(self, why: Idle) -> PairTokens:
        token = [self.placeholder]
        return PairTokens(token, token, token, why)


def conversation_ids(
    tokenizer: Tokenizer, template: ChatTemplate, prompt: list[Message], reply: str
) -> list[int]:
    """Return the tokens of a conversation that ends with an assistant's reply."""
    text = template.conversation(with_reply(prompt, reply))
    return tokenizer.encode(text, add_special_tokens=False)
