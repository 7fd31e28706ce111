"""A language model loaded for answering, by the endpoint and the demo page alike."""

from __future__ import annotations

from typing import Any

import torch

from rl_core.models.bundle import TextBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import LongestRow, longest_row_of
from rl_core.rollout.chat.text import ChatFormat
from schemas.sections.policy import ModelConfig


class ServedModel:
    """A loaded language model with its chat template.

    A vision-language model answers text alone. Args: source: result of `locate`. config: chat
    template and attention of its recipe. Raises: ModelError when it cannot be loaded.
    """

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        self.device = torch.device(device)
        bundle = TextBundle(source, config)
        self.tokenizer: Any = bundle.tokenizer
        self.policy = bundle.policy.to(self.device).eval()
        if config.exact:
            self.policy.make_exact()
        stop_ids = configured_stop_ids(self.policy.language_model)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs, stop_ids)
        self.longest: LongestRow | None = longest_row_of(self.policy.language_model)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        return tuple(sorted(self.chat.stop_ids))

    @property
    def num_words(self) -> int:
        """Number of tokens that the model knows."""
        return self.policy.num_known_words or len(self.tokenizer)

    @property
    def pad_id(self) -> int:
        """Token that fills shorter rows."""
        return self.tokenizer.pad_token_id

    def word(self, token_id: int) -> str:
        """Return the text of one token, special ones included."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False)
