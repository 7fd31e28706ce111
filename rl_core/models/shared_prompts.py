"""The prompt that siblings have in common, computed once in a pass instead of once per sibling.

A pass lays its tokens in one sequence: the prompts, each once, then the responses. What works token by token
(projections, norms, MLPs) meets every token once. Attention alone wants whole rows: it copies queries, keys and values
into rectangles, a row a line, prompt first and padding last, where plain causal attention is right, and takes back what
each token got. A prompt is answered by its first row; its gradient is the sum over its rows.

Axes: B rows, L positions of a row, N tokens of the sequence of which the first P are prompts', M places in all
rectangles, G rows of the largest group, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.models.layer_types import other_layers

FULLNESS = 0.75
"""Rows share a rectangle with the longest in it as long as they have this share of its length."""


@dataclass(frozen=True)
class SharedRows:
    """Where the tokens of a pass stand in rectangles of whole rows."""

    shapes: list[tuple[int, int]]
    """Rows and length of each rectangle."""
    token_M: Tensor
    """The token at each place; any at one that is padding."""
    place_N: Tensor
    """The place that answers for each token."""
    answers_M: Tensor
    """Whether a place answers for its token."""
    places_PG: Tensor
    """All places of each prompt token; -1 where its group has fewer rows."""

    def spread(self, states_BHND: Tensor) -> list[Tensor]:
        """The states [1, heads, N, D] as one [rows, heads, length, D] per rectangle."""
        num_heads = states_BHND.shape[1]
        states_MF = _Spread.apply(states_BHND[0].transpose(0, 1).flatten(1), self)
        parts = states_MF.split([rows * length for rows, length in self.shapes])  # type: ignore[union-attr]
        return [
            part.view(rows, length, num_heads, -1).transpose(1, 2)
            for part, (rows, length) in zip(parts, self.shapes, strict=True)
        ]

    def collect(self, answers: list[Tensor]) -> Tensor:
        """One [rows, length, heads, D] per rectangle back to [1, N, heads, D]."""
        tail = answers[0].shape[2:]
        answers_MF = torch.cat([answer.flatten(0, 1).flatten(1) for answer in answers])
        return _Collect.apply(answers_MF, self).unflatten(-1, tail)[None]  # type: ignore[union-attr]


@dataclass(frozen=True)
class SharedPass:
    """A pass over rows whose neighbours share prompts."""

    source_N: Tensor
    """The position in the flattened [B * L] rows from which each token comes."""
    token_BL: Tensor
    """The token that stands for each used position."""
    rows: SharedRows

    def inputs(self, input_ids_BL: Tensor, position_ids_BL: Tensor) -> dict[str, Any]:
        """Keyword arguments for the forward of a model that took `packing.enable_packing`."""
        return {
            "input_ids": input_ids_BL.flatten()[self.source_N][None],
            "position_ids": position_ids_BL.flatten()[self.source_N][None],
            # A mask of four dimensions is passed through as it is, so none is made; the attention ignores it.
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids_BL.device),
            "shared_rows": self.rows,
        }


def can_share(model: Any) -> bool:
    """Whether siblings get the same from a transformers model that computes their prompt once."""
    # What is dropped would be the same for all siblings.
    drops = getattr(model.config, "attention_dropout", 0) or any(
        module.p for module in model.modules() if isinstance(module, nn.Dropout)
    )
    return model.config._attn_implementation.startswith("sdpa") and not drops and not other_layers(model)


def lay_out(input_ids_BL: Tensor, used_BL: Tensor, position_ids_BL: Tensor, num_prompt: int) -> SharedPass:
    """Plan a pass. Adjacent rows with the same prompt, in the first `num_prompt` columns, share it.

    Args: used_BL: where a token is.
    """
    num_rows, length = used_BL.shape
    device = used_BL.device
    leader_B = _leaders(*(tensor[:, :num_prompt] for tensor in (input_ids_BL, used_BL.long(), position_ids_BL)))
    row_B = torch.arange(num_rows, device=device)
    asks_BL = used_BL.clone()
    asks_BL[:, num_prompt:] = False
    leads_BL = asks_BL & (leader_B == row_B)[:, None]
    prompts_P, responses = (mask.flatten().nonzero()[:, 0] for mask in (leads_BL, used_BL & ~asks_BL))
    source_N = torch.cat([prompts_P, responses])
    token_BL = torch.zeros(num_rows * length, dtype=torch.long, device=device)
    token_BL[source_N] = torch.arange(len(source_N), device=device)
    token_BL = token_BL.view(num_rows, length)
    token_BL[:, :num_prompt] = token_BL[leader_B, :num_prompt]

    shapes, start_B = _rectangles(used_BL.sum(1).tolist())
    place_BL = torch.tensor(start_B, device=device)[:, None] + used_BL.cumsum(1) - 1
    token_M = torch.zeros(sum(rows * width for rows, width in shapes), dtype=torch.long, device=device)
    token_M[place_BL[used_BL]] = token_BL[used_BL]
    place_N = place_BL.flatten()[source_N]
    answers_M = torch.zeros(len(token_M), dtype=torch.bool, device=device)
    answers_M[place_N] = True
    sibling_BL = (row_B - leader_B)[:, None].expand_as(used_BL)
    places_PG = torch.full((len(prompts_P), int(sibling_BL.max()) + 1), -1, device=device)
    places_PG[token_BL[asks_BL], sibling_BL[asks_BL]] = place_BL[asks_BL]
    return SharedPass(source_N, token_BL, SharedRows(shapes, token_M, place_N, answers_M, places_PG))


def _leaders(*columns: Tensor) -> Tensor:
    """The first row of each row's group of adjacent rows that agree in all columns."""
    rows_BC = torch.cat(columns, 1)
    row_B = torch.arange(len(rows_BC), device=rows_BC.device)
    same = (rows_BC[1:] == rows_BC[:-1]).all(1)
    starts_B = torch.cat([same.new_ones(1), ~same])
    return row_B.where(starts_B, 0).cummax(0).values


def _rectangles(lengths_B: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Shapes of rectangles that hold all rows but the empty ones, and the place at which each row starts."""
    shapes: list[tuple[int, int]] = []
    start_B, place = [0] * len(lengths_B), 0
    for row in sorted(range(len(lengths_B)), key=lambda row: -lengths_B[row]):
        if not lengths_B[row]:
            continue
        if not shapes or lengths_B[row] < FULLNESS * shapes[-1][1]:
            shapes.append((0, lengths_B[row]))
        rows, width = shapes[-1]
        shapes[-1] = rows + 1, width
        start_B[row], place = place, place + width
    return shapes, start_B


class _Spread(torch.autograd.Function):
    """From tokens [N, F] to places [M, F]."""

    @staticmethod
    def forward(ctx: Any, states_NF: Tensor, rows: SharedRows) -> Tensor:
        ctx.rows = rows
        return states_NF.index_select(0, rows.token_M)

    @staticmethod
    def backward(ctx: Any, grad_MF: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        rows: SharedRows = ctx.rows
        num_prompt, most = rows.places_PG.shape
        grad_NF = grad_MF.index_select(0, rows.place_N)
        if most > 1:
            grad_PGF = grad_MF.index_select(0, rows.places_PG.flatten().clamp_min(0)).unflatten(0, (num_prompt, most))
            grad_PGF.masked_fill_((rows.places_PG < 0)[..., None], 0)
            # Their sum is rounded once, not at every sibling.
            grad_NF[:num_prompt] = grad_PGF.sum(1, dtype=torch.promote_types(grad_MF.dtype, torch.float32))
        return grad_NF, None


class _Collect(torch.autograd.Function):
    """From places [M, F] to the tokens [N, F] that they answer for."""

    @staticmethod
    def forward(ctx: Any, answers_MF: Tensor, rows: SharedRows) -> Tensor:
        ctx.rows = rows
        return answers_MF.index_select(0, rows.place_N)

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        rows: SharedRows = ctx.rows
        grad_MF = grad_NF.index_select(0, rows.token_M)
        return grad_MF.masked_fill_(~rows.answers_M[:, None], 0), None
