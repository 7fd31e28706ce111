"""A language model as a critic: the same backbone, with one number per position in place of the vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from rl_core.models.checks.paths import Paths


class TokenPolicy(Protocol):
    """What of a policy the head is put into."""

    paths: Paths | None

    @property
    def language_model(self) -> Any: ...


Policy = TypeVar("Policy", bound=TokenPolicy)


class ValueHead(nn.Linear):
    """From a hidden state to the return expected from there on; 0 everywhere until it is trained."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def values(self, hidden_NH: Tensor) -> Tensor:
        """[N] in float32."""
        return self(hidden_NH.to(self.weight.dtype)).float()[:, 0]


def add_value_head(policy: Policy) -> Policy:
    """Put a value head in place of the vocabulary projection, in place.

    What `forward` then gives for each action is the value before it, [B, T], zero where the mask is.
    """
    model = policy.language_model
    hidden_size = model.get_output_embeddings().weight.shape[1]
    # A tied projection would otherwise be looked for among the embeddings when the model is saved or adapted.
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(ValueHead(hidden_size))
    if policy.paths is not None:
        policy.paths = replace(policy.paths, truth=None)
    return policy


def train_value_head(policy: nn.Module) -> None:
    """Let the value head learn, where there is one; adapters have frozen it with the rest of their base."""
    for module in policy.modules():
        if isinstance(module, ValueHead):
            module.requires_grad_(True)
