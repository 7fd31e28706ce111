"""Muon (Jordan 2024; arXiv 2502.16982) on the matrices inside a model's blocks, AdamW on the rest.

The running mean of a matrix's gradients, looked ahead as by Nesterov, is replaced by the nearest
matrix with orthonormal rows or columns, and scaled by 0.2 sqrt(max(rows, columns)), the usual size
of AdamW's updates. A sharded matrix is gathered for that: an orthogonal shard is not a shard of
the orthogonal matrix. Every rank computes the whole update and keeps its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import AdamW, Muon

from rl_core.models.policy import Policy
from rl_core.train.weights.ema import local_part

STEP = "step"
"""Key of a parameter's update count."""
MOMENTUM = "momentum_buffer"
"""Key of the running mean of a matrix's gradients."""
MATRICES = "matrices"
"""Key of a group's flag: Muon updates it."""


class MuonWithAdamW(AdamW):
    """An optimizer over groups of parameters with the flag `matrices`: Muon updates those that have
    it, AdamW the others. Its step is collective where matrices are sharded.

    Args: momentum: decay of the running mean of gradients. options: of AdamW; learning rate and
    weight decay are Muon's, too.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, momentum: float, **options: Any):
        super().__init__(groups, **options)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        groups = self.param_groups
        for group in groups:
            if group[MATRICES]:
                for matrix in group["params"]:
                    if matrix.grad is not None:
                        self._update(matrix, matrix.grad, group["lr"], group["weight_decay"])
        self.param_groups = [group for group in groups if not group[MATRICES]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups

    def _update(self, matrix: nn.Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        state = self.state[matrix]
        if not state:
            state.update(initial_state(matrix))
        own, mean = local_part(gradient), local_part(state[MOMENTUM])
        mean.lerp_(own, 1 - self.momentum)
        change = _orthogonal(_whole(own.lerp(mean, self.momentum), matrix), rate)
        local_part(matrix).mul_(1 - rate * decay).add_(_own_part(change, matrix))
        state[STEP] += 1


def initial_state(matrix: nn.Parameter) -> dict[str, Tensor]:
    """Return Muon's state of a matrix without an update: zeros, no step taken."""
    zeros = torch.zeros_like(matrix, requires_grad=False)
    return {STEP: torch.zeros((), device=matrix.device), MOMENTUM: zeros}


def hidden_matrices(policy: Policy) -> set[str]:
    """Return the names of the matrices inside a policy's blocks, low-rank ones of adapters among
    them; embeddings, the head and stacks of experts' matrices are left out."""
    found = set()
    for path, module in policy.named_modules():
        # FSDP gives a wrapped module's class another name.
        if type(module).__name__.removeprefix("FSDP") in policy.block_classes:
            for name, parameter in module.named_parameters():
                if parameter.ndim == 2:
                    found.add(f"{path}.{name}")
    return found


def _orthogonal(matrix: Tensor, rate: float) -> Tensor:
    """Return the update of a whole matrix: torch's Muon from zero, without momentum and decay."""
    change = nn.Parameter(torch.zeros_like(matrix))
    change.grad = matrix
    plain = Muon(
        [change],
        lr=rate,
        weight_decay=0.0,
        momentum=0.0,
        nesterov=False,
        adjust_lr_fn="match_rms_adamw",
    )
    plain.step()
    return change.detach()


def _whole(part: Tensor, like: nn.Parameter) -> Tensor:
    """Return the tensor whose part this rank has, on the device of collectives."""
    if not isinstance(like, DTensor):
        return part
    mesh = like.device_mesh
    return DTensor.from_local(
        part.to(mesh.device_type),
        mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    ).full_tensor()


def _own_part(whole: Tensor, like: nn.Parameter) -> Tensor:
    """Return this rank's part of a tensor that every rank has."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part = everywhere.redistribute(placements=like.placements).to_local()
    return part.to(local_part(like).device)
