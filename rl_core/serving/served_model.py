"""A language model loaded for answering, by the endpoint and the demo page alike."""

from __future__ import annotations

import torch

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError
from rl_core.models.bundle import ModelBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.chat.tokenizer import load_processor
from rl_core.models.checks.row_length import LongestRow, longest_row_of
from rl_core.models.family import sees_pictures
from rl_core.models.vlm import VLMPolicy
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.chat.vision import VisionChat, chat_format
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

    A vision-language model sees pictures if its processor can be loaded, and answers text in any
    case. Args: source: result of `locate`. config: chat template and attention of its recipe.
    Raises: ModelError when it cannot be loaded.
    """

    def __init__(self, source: str, config: ModelConfig, device: str) -> None:
        self.device = torch.device(device)
        bundle, why_blind = _loaded(source, config)
        self.policy = bundle.policy.to(self.device).eval()
        if isinstance(self.policy, VLMPolicy):
            # No rank is waited for, so a text needs no pass of the encoder.
            self.policy.blank = None
        if config.exact:
            self.policy.make_exact()
        stop_ids = configured_stop_ids(self.policy.language_model)
        chat = chat_format(bundle, config.chat_template_kwargs, stop_ids)
        if isinstance(chat, VisionChat):
            # Requests of different clients have little in common.
            chat.max_remembered = 0
        if why_blind:
            chat.why_no_pictures = f"this server reads text alone: {why_blind}"
        super().__init__(
            chat,
            longest_row_of(self.policy.language_model),
            self.policy.num_known_words or len(bundle.tokenizer),
        )


def _loaded(source: str, config: ModelConfig) -> tuple[ModelBundle, str]:
    """Return the loaded model, and why it sees no pictures although it could."""
    why_blind = ""
    if sees_pictures(source):
        try:
            load_processor(source)
        except ModelError as error:
            why_blind = str(error)
    return ModelBundle(source, config, text_alone=bool(why_blind)), why_blind
