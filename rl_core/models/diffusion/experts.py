"""Two transformers for different noise levels, as one module that trains like one (Wan 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Experts(nn.Module):
    """Pair of experts: `transformer` predicts at timesteps from the boundary on, `transformer_2`
    below it.

    Rows of a batch may be on both sides. The names are the pipeline's, so that weights and adapters
    carry over.

    Args: boundary: a timestep, in the transformers' units.
    """

    def __init__(self, transformer: nn.Module, transformer_2: nn.Module, boundary: float) -> None:
        super().__init__()
        self.transformer = transformer
        self.transformer_2 = transformer_2
        self.boundary = boundary

    def enable_gradient_checkpointing(self) -> None:
        """Enable gradient checkpointing in both experts."""
        for expert in (self.transformer, self.transformer_2):
            expert.enable_gradient_checkpointing()  # type: ignore[operator]

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, return_dict: bool = False, **inputs: Tensor
    ) -> tuple[Tensor | None]:
        """Compute like diffusers' transformers; every tensor among the inputs is [B, ...]. Returns:
        a tuple of one [B, ...]."""
        # With a timestep per token the given frames are at 0 and the noisy ones share a level.
        if timestep.dim() > 1:
            high_B = timestep.flatten(1).amax(dim=1) >= self.boundary
        else:
            high_B = timestep >= self.boundary
        predicted = None
        for expert, mine_B in ((self.transformer, high_B), (self.transformer_2, ~high_B)):
            rows = mine_B.nonzero().squeeze(1)
            if not _needed(expert, rows):
                continue
            # An expert that only siblings need runs along on one row, whose result is dropped.
            kept, rows = bool(len(rows)), rows if len(rows) else rows.new_zeros(1)
            chosen = {name: value[rows] for name, value in inputs.items()}
            part = expert(
                hidden_states=hidden_states[rows],
                timestep=timestep[rows],
                return_dict=False,
                **chosen,
            )[0]
            if predicted is None:
                predicted = part.new_zeros(len(hidden_states), *part.shape[1:])
            else:
                predicted = predicted
            predicted = predicted.index_add(0, rows, part * kept)
        return (predicted,)


def _needed(expert: nn.Module, rows: Tensor) -> bool:
    """Return True if an expert must run: for rows of this rank, or of a sibling with which it
    shares weights or gradients.

    Gathering an expert's shards, or reducing its gradients, takes all ranks: one that does not take
    part blocks the others. If all weights are gathered and nothing is trained, ranks sample
    independently.
    """
    from torch import distributed
    from torch.distributed.tensor import DTensor

    alone = not torch.is_grad_enabled() and not any(
        isinstance(value, DTensor) for value in expert.parameters()
    )
    if alone or not distributed.is_initialized():
        return len(rows) > 0
    needed = torch.tensor(len(rows) > 0, device=rows.device, dtype=torch.int32)
    distributed.all_reduce(needed, distributed.ReduceOp.MAX)
    return bool(needed)
