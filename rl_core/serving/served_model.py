"""A language model loaded for answering, by the endpoint and the demo page alike."""

from __future__ import annotations

import torch

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.bundle import TextBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import LongestRow, longest_row_of
from rl_core.rollout.chat.text import ChatFormat
from schemas.sections.policy import ModelConfig


class KnownModel:
    """A model as requests need to know it: its chat template, its words and its limit.

    Args: longest: limit of a prompt and its reply; None for none. num_words: number of tokens that
    the model knows.
    """

    def __init__(self, chat: ChatFormat, longest: LongestRow | None, num_words: int) -> None:
        self.chat, self.longest, self.num_words = chat, longest, num_words

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.chat.tokenizer

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        return tuple(sorted(self.chat.stop_ids))

    @property
    def pad_id(self) -> int:
        """Token that fills shorter rows."""
        return self.tokenizer.pad_token_id

    def word(self, token_id: int) -> str:
        """Return the text of one token, special ones included."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False)


class ServedModel(KnownModel):
    """A loaded language model with its chat template.

    A vision-language model answers text alone. Args: source: result of `locate`. config: chat
    template and attention of its recipe. Raises: ModelError when it cannot be loaded.
    """

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        self.device = torch.device(device)
        bundle = TextBundle(source, config)
        self.policy = bundle.policy.to(self.device).eval()
        if config.exact:
            self.policy.make_exact()
        stop_ids = configured_stop_ids(self.policy.language_model)
        super().__init__(
            ChatFormat(bundle.tokenizer, config.chat_template_kwargs, stop_ids),
            longest_row_of(self.policy.language_model),
            self.policy.num_known_words or len(bundle.tokenizer),
        )
