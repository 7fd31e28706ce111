"""A language model that answers in a conversation, decoded as in a rollout."""

from __future__ import annotations

from typing import Any

import torch

from rl_core.demo.contestants import Answer, Question
from rl_core.errors import DataError
from rl_core.models.bundle import ModelBundle
from rl_core.models.packed_weights import packed_weights
from rl_core.models.row_length import longest_row_of
from rl_core.models.tokenizer import encode_chat
from rl_core.rollout.decode import Request, Sampling, decode
from schemas.policy import ModelConfig


class Speaker:
    """One loaded model. Args: source: what `locate` returned. config: chat template and attention of the recipe."""

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        self.device, self.config = torch.device(device), config
        bundle = ModelBundle(source, config)
        self.tokenizer, self.policy = bundle.tokenizer, bundle.policy.to(self.device).eval()

    def answer(self, question: Question) -> Answer:
        """Its reply to the conversation."""
        prompt = encode_chat(self.tokenizer, question.messages, self.config.chat_template_kwargs)
        longest = longest_row_of(self.policy.language_model)
        room = question.max_new_tokens if longest is None else longest.num_tokens - len(prompt)
        if room < 1:
            raise DataError(
                f"the conversation has {len(prompt)} tokens; begin a new one, since the model {longest.why}"
            )
        sampling = Sampling(question.max_new_tokens, question.temperature, self._eos_ids(), self.tokenizer.pad_token_id)
        generator = torch.Generator(self.device).manual_seed(question.seed)
        requests = [Request(prompt, 1, room)]
        with packed_weights(self.policy.model) as packed:
            (reply,) = decode(self.policy, requests, sampling, generator, self.device, packed)
        text = self.tokenizer.decode(reply.token_ids, skip_special_tokens=True)
        return Answer(text=text, is_cut=reply.stop_reason.is_truncated)

    def _eos_ids(self) -> tuple[int, ...]:
        configured: Any = self.policy.language_model.generation_config.eos_token_id
        several = configured if isinstance(configured, list) else [configured]
        return tuple(sorted({self.tokenizer.eos_token_id, *(one for one in several if one is not None)}))
