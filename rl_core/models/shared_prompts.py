"""Prefix sharing: the common prompt of siblings, computed once per pass instead of once per
sibling.

A pass puts its tokens in one sequence: the prompts, each once, then the responses. Token-wise
operations (projections, norms, MLPs) process every token once. In attention a prompt's tokens
attend once, among themselves; the tokens of a response attend to the keys of their prompt and their
own.

Axes: B rows, L positions of a row, N tokens of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_core.kernels import Rectangles, Row, lay_out_rows
from rl_core.models.backbone import attention_of
from rl_core.models.layer_types import other_layers
from rl_core.models.model_inputs import ModelInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SharedPass:
    """A pass over rows whose adjacent rows share prompts."""

    source_N: Tensor
    """Position in the flattened [B * L] rows of each token."""
    token_BL: Tensor
    """Token of each used position."""
    rectangles: Rectangles

    def inputs(self, input_ids_BL: Tensor, position_ids_BL: Tensor) -> ModelInputs:
        """Return keyword arguments for the forward of a model after `packing.enable_packing`."""
        return {
            "input_ids": input_ids_BL.flatten()[self.source_N][None],
            "position_ids": position_ids_BL.flatten()[self.source_N][None],
            # A mask of four dimensions is passed through as it is, so none is made; the attention
            # ignores it.
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids_BL.device),
            "rectangles": self.rectangles,
        }


def why_not(model: PreTrainedModel) -> str | None:
    """Return the reason why sharing prompts would change the results of a transformers model; None
    if it would not."""
    if not attention_of(model).startswith("sdpa"):
        return f"its attention is {attention_of(model)}, not sdpa"
    # Dropout would drop the same elements for all siblings.
    if (model.training and getattr(model.config, "attention_dropout", 0)) or any(
        module.p and module.training for module in model.modules() if isinstance(module, nn.Dropout)
    ):
        return "something is dropped out while it learns"
    if other := other_layers(model):
        return f"its layers of type {other} carry something from row to row"
    return None


def lay_out(
    input_ids_BL: Tensor, used_BL: Tensor, position_ids_BL: Tensor, num_prompt: int
) -> SharedPass:
    """Plan a pass. Adjacent rows with the same prompt, in the first `num_prompt` columns, share it.

    Args: used_BL: mask of tokens.
    """
    num_rows, length = used_BL.shape
    device = used_BL.device
    leader_B = leaders(
        *(tensor[:, :num_prompt] for tensor in (input_ids_BL, used_BL.long(), position_ids_BL))
    )
    asks_BL = used_BL.clone()
    asks_BL[:, num_prompt:] = False
    leads_B = leader_B == torch.arange(num_rows, device=device)
    prompts, responses = (
        mask.flatten().nonzero()[:, 0] for mask in (asks_BL & leads_B[:, None], used_BL & ~asks_BL)
    )
    source_N = torch.cat([prompts, responses])
    token_BL = torch.zeros(num_rows * length, dtype=torch.long, device=device)
    token_BL[source_N] = torch.arange(len(source_N), device=device)
    token_BL = token_BL.view(num_rows, length)
    token_BL[:, :num_prompt] = token_BL[leader_B, :num_prompt]

    prompt_lengths_B = asks_BL.sum(1).tolist()
    tokens_B = token_BL[used_BL].split(used_BL.sum(1).tolist())
    rows = []
    for tokens, start, leads in zip(tokens_B, prompt_lengths_B, leads_B.tolist(), strict=True):
        rows += [Row(tokens, start), *([Row(tokens[:start], 0)] if leads else [])]
    placed = lay_out_rows([row for row in rows if row.num_queries], len(source_N))
    return SharedPass(source_N, token_BL, placed)


def leaders(*columns: Tensor) -> Tensor:
    """Return the first row of each row's group of adjacent rows that agree in all columns."""
    rows_BC = torch.cat(columns, 1)
    row_B = torch.arange(len(rows_BC), device=rows_BC.device)
    same = (rows_BC[1:] == rows_BC[:-1]).all(1)
    starts_B = torch.cat([same.new_ones(1), ~same])
    return row_B.where(starts_B, 0).cummax(0).values
