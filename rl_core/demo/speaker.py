"""A language model that answers in a conversation, decoded as in a rollout."""

from __future__ import annotations

from typing import Any

import torch

from rl_core.demo.questions import Answer, Question
from rl_core.errors import DataError
from rl_core.models.bundle import TextBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import longest_row_of
from rl_core.models.decoding.decode import Request, Sampling, decode
from rl_core.rollout.chat.text import ChatFormat
from schemas.sections.policy import ModelConfig


class Speaker:
    """A loaded language model that answers.

    Args: source: result of `locate`. config: chat template and attention of the recipe.
    """

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        self.device = torch.device(device)
        bundle = TextBundle(source, config)
        self.tokenizer: Any = bundle.tokenizer
        self.policy = bundle.policy.to(self.device).eval()
        stop_ids = configured_stop_ids(self.policy.language_model)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs, stop_ids)

    def answer(self, question: Question) -> Answer:
        """Return the model's reply to the conversation."""
        prompt, stop_ids = self.chat.encode(question.messages), tuple(sorted(self.chat.stop_ids))
        longest = longest_row_of(self.policy.language_model)
        room = question.max_new_tokens if longest is None else longest.num_tokens - len(prompt)
        if longest is not None and room < 1:
            raise DataError(
                f"the conversation has {len(prompt)} tokens; begin a new one, since the model "
                f"{longest.why}"
            )
        sampling = Sampling(
            question.max_new_tokens, question.temperature, stop_ids, self.tokenizer.pad_token_id
        )
        generator = torch.Generator(self.device).manual_seed(question.seed)
        requests = [Request(prompt, 1, room)]
        with self.policy.ready_to_decode() as packed:
            (reply,) = decode(self.policy, requests, sampling, generator, self.device, packed)
        text = self.chat.decode(reply.token_ids)
        return Answer(text=text, is_cut=reply.stop_reason.is_truncated)
