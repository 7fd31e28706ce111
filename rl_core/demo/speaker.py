"""A language model that answers in a conversation, decoded as in a rollout."""

from __future__ import annotations

import torch

from rl_core.demo.questions import Answer, Question
from rl_core.errors import DataError
from rl_core.models.decoding.decode import Request, Sampling, decode
from rl_core.serving.served_model import ServedModel
from schemas.sections.policy import ModelConfig


class Speaker(ServedModel):
    """A loaded language model that answers one question at a time."""

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        super().__init__(source, config.model_copy(update={"exact": False}), device)

    def answer(self, question: Question) -> Answer:
        """Return the model's reply to the conversation."""
        prompt, longest = self.chat.encode(question.messages), self.longest
        room = question.max_new_tokens if longest is None else longest.num_tokens - len(prompt)
        if longest is not None and room < 1:
            raise DataError(
                f"the conversation has {len(prompt)} tokens; begin a new one, since the model "
                f"{longest.why}"
            )
        sampling = Sampling(
            question.max_new_tokens, question.temperature, self.eos_ids, self.pad_id
        )
        generator = torch.Generator(self.device).manual_seed(question.seed)
        requests = [Request(prompt, 1, room)]
        with self.policy.ready_to_decode() as packed:
            (reply,) = decode(self.policy, requests, sampling, generator, self.device, packed)
        text = self.chat.decode(reply.token_ids)
        return Answer(text=text, is_cut=reply.stop_reason.is_truncated)
