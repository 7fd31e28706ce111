"""What a worker loads once and its siblings share: the policy, its tokenizer and where they came from."""

from __future__ import annotations

from rl_core.models.causal_lm import load_policy
from rl_core.models.tokenizer import load_tokenizer
from schemas.recipe import ModelConfig


class ModelBundle:
    """Policy and tokenizer of one model. Args: source: what `rl_core.models.locate` returned."""

    def __init__(self, source: str, config: ModelConfig) -> None:
        self.source = source
        self.config = config
        self.tokenizer = load_tokenizer(source)
        self.policy = load_policy(source, config)
