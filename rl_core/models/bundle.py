"""What a worker loads once and its siblings share: the policy, its tokenizer and where they came from."""

from __future__ import annotations

from typing import Any

from rl_core.models.family import load_policy, sees_pictures
from rl_core.models.tokenizer import load_processor, load_tokenizer
from schemas.recipe import ModelConfig


class ModelBundle:
    """Policy and tokenizer of one model. Args: source: what `rl_core.models.locate` returned."""

    def __init__(self, source: str, config: ModelConfig) -> None:
        self.source = source
        self.config = config
        self.processor: Any = load_processor(source) if sees_pictures(source) else None
        """Of a vision-language model: from messages and pictures to tensors."""
        self.tokenizer = self.processor.tokenizer if self.processor is not None else load_tokenizer(source)
        self.policy = load_policy(source, config, self.processor)
