"""What a policy makes of rows: the numbers that two ways of computing must share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.models.causal_lm import CausalLMPolicy


class Outcome(NamedTuple):
    log_probs_BT: Tensor
    entropy_BT: Tensor
    gradients: dict[str, Tensor]
    """Parameter -> the gradient of a weighted sum of both."""


def outcome(policy: CausalLMPolicy, rows: DataProto, **how: bool) -> Outcome:
    """Forward and backward. Args: how: switches of `CausalLMPolicy.forward`, such as `packed`."""
    policy.zero_grad()
    names = ("input_ids", "attention_mask", "position_ids", "response_mask")
    log_probs_BT, entropy_BT = policy(
        *(rows.tensor(name) for name in names),
        temperature=0.7,
        with_entropy=True,
        entropy_grad=True,
        **how,
    )
    assert entropy_BT is not None
    weights_BT = torch.linspace(-1, 1, log_probs_BT.numel()).reshape(log_probs_BT.shape)
    ((log_probs_BT + 0.3 * entropy_BT) * weights_BT).sum().backward()
    gradients = {
        name: value.grad.clone()
        for name, value in policy.named_parameters()
        if value.grad is not None
    }
    return Outcome(log_probs_BT.detach(), entropy_BT.detach(), gradients)
