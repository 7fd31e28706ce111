"""A language model as a critic or a reward model: the same backbone, with one number per position
in place of the vocabulary projection."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from rl_core.models.backbone import head_of
from rl_core.models.policy import TokenPolicy

P = TypeVar("P", bound=TokenPolicy)


class ValueHead(nn.Linear):
    """Linear layer from a hidden state to one number: a critic's expected return from there on, or
    a reward model's score of everything up to there. 0 everywhere until it is trained."""

    def __init__(self, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__(hidden_size, 1, bias=bias)
        nn.init.zeros_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)

    def values(self, hidden_NH: Tensor) -> Tensor:
        """Return values [N] in float32."""
        return self(hidden_NH.to(self.weight.dtype)).float()[:, 0]


def add_value_head(policy: P, *, bias: bool = True) -> P:
    """Put a value head in place of the vocabulary projection, in place.

    The policy's `forward` then gives the value before each action, [B, T], zero where the mask is
    0.
    """
    model = policy.language_model
    hidden_size = head_of(model).weight.shape[1]
    # A tied projection would otherwise be looked for among the embeddings when the model is saved
    # or adapted.
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(ValueHead(hidden_size, bias=bias))
    if policy.paths is not None:
        policy.paths = replace(policy.paths, truth=None)
    return policy


def train_value_head(policy: nn.Module) -> None:
    """Make the value head trainable, if there is one; adapters froze it with the rest of their
    base."""
    for module in policy.modules():
        if isinstance(module, ValueHead):
            module.requires_grad_(True)
