"""Packed rows: rows end to end in one sequence without padding; each attends to itself only.

transformers tells packed rows apart by their position ids, but its sdpa path then fills a mask over
all pairs of tokens. The attention here runs row by row instead: cost and memory are those of the
rows alone, and no mask is made.

Axes: N packed tokens, R rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rl_core.errors import ModelError
from rl_core.kernels import (
    Rectangle,
    Rectangles,
    attend_in_bfloat16,
    attends_in_bfloat16,
    multiplies_in_bfloat16,
)
from rl_core.models.backbone import attention_of
from rl_core.models.layer_types import other_layers
from rl_core.models.model_inputs import ModelInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROW_BY_ROW = "sdpa_row_by_row"
"""Name of this file's attention in transformers; without packed rows it is `sdpa`."""


def why_not(model: PreTrainedModel) -> str | None:
    """Return the reason why a row would see into an adjacent one; None if it would not."""
    if other := other_layers(model):
        return f"its layers of type {other} carry something from row to row"
    return None


def enable_packing(model: PreTrainedModel) -> None:
    """Enable packed rows in a transformers model. Raises: ModelError when a row would see into an
    adjacent one."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if why := why_not(model):
        raise ModelError(
            f"placement.max_tokens_per_micro_batch: rows of {type(model).__name__} cannot be "
            f"packed ({why}); unset it and use placement.micro_batch_size"
        )
    if attention_of(model) == "sdpa":
        AttentionInterface.register(ROW_BY_ROW, _attend_row_by_row)
        AttentionMaskInterface.register(ROW_BY_ROW, sdpa_mask)
        model.set_attn_implementation(ROW_BY_ROW)


def packed_inputs(
    model: PreTrainedModel, input_ids_BL: Tensor, used_BL: Tensor, position_ids_BL: Tensor
) -> ModelInputs:
    """Return keyword arguments for a model's forward over the used tokens, in row-major order.

    Args: used_BL: mask of tokens; a row without any is left out.
    """
    lengths_R = used_BL.sum(-1)
    lengths_R = lengths_R[lengths_R > 0]
    bounds = torch.nn.functional.pad(lengths_R.cumsum(0), (1, 0)).int()
    longest = int(lengths_R.max())
    inputs: ModelInputs = {
        "input_ids": input_ids_BL[used_BL][None],
        "position_ids": position_ids_BL[used_BL][None],
        "attention_mask": None,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    # Sequence parallelism puts its own name before that of the attention it exchanges heads for.
    if attention_of(model).endswith(ROW_BY_ROW):
        # A mask of four dimensions is passed through as it is, so none is made; the attention below
        # ignores it.
        inputs["attention_mask"] = torch.ones(
            1, 1, 1, 1, dtype=torch.bool, device=input_ids_BL.device
        )
    return inputs


def _attend_row_by_row(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    sliding_window: int | None = None,
    rectangles: Rectangles | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    settings: dict[str, Any] = {"is_causal": module.is_causal} | kwargs

    def attend(shape: Rectangle, *states: Tensor) -> Tensor:
        q, k, v = (part.float() if _is_faster_wide(part) else part for part in states)
        if attends_in_bfloat16(q, k, **settings):
            mask = shape.mask(sliding_window, torch.float32, q.device)
            return attend_in_bfloat16(q, k, v, kwargs["scaling"], mask).transpose(1, 2)
        mask = shape.mask(sliding_window, q.dtype, q.device)
        if mask is not None and q.is_cpu and not kwargs.keys() & {"position_bias", "is_causal"}:
            # transformers would repeat the keys for every head that shares them.
            dropout, scale = kwargs.get("dropout", 0.0), kwargs.get("scaling")
            answers = scaled_dot_product_attention(
                q, k, v, mask, dropout, scale=scale, enable_gqa=True
            )
            return answers.transpose(1, 2).to(query.dtype)
        return sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0].to(query.dtype)

    if rectangles is not None:
        queries, keys, values = (
            places.spread(states)
            for places, states in (
                (rectangles.queries, query),
                (rectangles.keys, key),
                (rectangles.keys, value),
            )
        )
        parts = zip(rectangles.shapes, queries, keys, values, strict=True)
        return rectangles.queries.collect([attend(*part) for part in parts]), None
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    lengths_R = [stop - start for start, stop in pairwise(cu_seq_lens_q.tolist())]
    # Not slices: the gradient of each would be a whole sequence of zeros around it.
    rows = zip(*(states.split(lengths_R, dim=2) for states in (query, key, value)), strict=True)
    squares = []
    for length, row in zip(lengths_R, rows, strict=True):
        squares.append(attend(Rectangle(length, length, (0,)), *row))
    return torch.cat(squares, dim=1), None


def _is_faster_wide(query: Tensor) -> bool:
    """Return True if attention should run in float32: forward and backward take half the time of
    bfloat16 on CPUs without bfloat16 instructions."""
    is_narrow = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return is_narrow and not multiplies_in_bfloat16(query.device, query.dtype)
