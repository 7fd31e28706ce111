"""A model that a worker loads once and its siblings share: the policy, its tokenizer and its
source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.adapters.exported import start_of
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.chat.tokenizer import check_words, load_processor, load_tokenizer
from rl_core.models.checks.comparison import Live, TokenRow, token_rows
from rl_core.models.checks.paths import Paths
from rl_core.models.export.folder import export_policy
from rl_core.models.family import load_policy, sees_pictures
from rl_core.models.loading.together import is_loaded_together, load_for_all, loaded_together
from schemas.recipe import LoraConfig, ModelConfig

if TYPE_CHECKING:
    from transformers import ProcessorMixin


class ModelBundle:
    """Policy and tokenizer of one model.

    Args: source: result of `rl_core.models.locate`. text_alone: True if rows are text only,
    whatever media the model supports.
    """

    def __init__(self, source: str, config: ModelConfig, *, text_alone: bool = False) -> None:
        self.source = source
        self.config = config
        self.text_alone = text_alone
        self.processor: ProcessorMixin | None = (
            load_processor(source) if not text_alone and sees_pictures(source) else None
        )
        """Processor of a vision-language model, from messages and images to tensors."""
        self.tokenizer: Tokenizer
        if self.processor is not None:
            self.tokenizer = self.processor.tokenizer
        else:
            self.tokenizer = load_tokenizer(source)
        self.in_shards = is_loaded_together()
        self.policy = load_for_all(
            lambda paths: load_policy(source, config, self.processor, paths, text_alone=text_alone)
        )
        self.policy.num_known_words = check_words(
            self.tokenizer, self.policy.language_model, config.path
        )

    @classmethod
    def in_shards_of(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a bundle whose policy all ranks shard, which read its weights when they do."""
        with loaded_together():
            return cls(*args, **kwargs)

    def load_policy(self) -> CausalLMPolicy:
        """Load a new copy of the policy before training; collective in a `loaded_together` block
        alone, since an export loads one on its first rank."""

        def load(paths: Paths | None) -> CausalLMPolicy:
            return load_policy(self.source, self.config, paths=paths, text_alone=self.text_alone)

        policy = load_for_all(load, self.policy.paths)
        policy.num_known_words = self.policy.num_known_words
        return policy

    @property
    def initial_adapters(self) -> Path | None:
        """File of the adapters that training goes on from; None if they start anew."""
        return start_of(self.config.path, self.source)

    @property
    def compared_rows(self) -> list[TokenRow]:
        """Rows on which two copies of the policy are compared: text, and for a vision-language
        model a last row with an image."""
        config = self.policy.language_model.config
        rows = token_rows(self.tokenizer, config)
        if self.processor is None:
            return rows
        blank: Any = self.policy.blank
        return [*rows, rows[0].after(blank, config.image_token_id)]

    def said_by(self, policy: CausalLMPolicy, device: torch.device) -> Tensor:
        """Return a policy's results on the probe inputs, [N]."""
        return torch.cat([row.said_by(policy, device) for row in self.compared_rows])

    def export(
        self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
    ) -> None:
        """Write the trained policy as a Hugging Face folder; see `export_policy`."""
        export_policy(self, trained, lora, out, live)


class TextBundle(ModelBundle):
    """Bundle of a model that is trained on text only, whatever media it supports."""

    def __init__(self, source: str, config: ModelConfig) -> None:
        super().__init__(source, config, text_alone=True)
