"""Batch-invariant forward passes, which give a token the same bits whatever else is in its batch:
`model.exact: true`.

The result of a product for a row depends on the number of rows, since libraries choose other
kernels for other shapes and these sum in another order; in bfloat16 such a difference is then
rounded, and grows from layer to layer. So a token's log-probability is one number while it is
sampled, a token at a time, and another in training, a row at a time. Here every product has one
shape, every sum one order: rows in blocks, keys in blocks counted from the start of their row.
Blocks are padded with zeros, which change no sum. (Batch invariance, as in He et al. 2025,
"Defeating Nondeterminism in LLM Inference".) Backward passes are the usual ones.

Axes: N rows, I features in, O features out; B rows, H query heads, K key heads, Q queries, L keys,
D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from rl_core.errors import ModelError
from rl_core.kernels import AutogradContext, multiplied_as_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "exact"
"""Name of this file's attention in transformers."""
ROWS = 32
"""Number of rows in every product."""
KEYS = 64
"""Number of keys that are summed at once."""
AT_HAND = "weight_at_hand"
"""Attribute of a layer with its weight in the layout of the products."""


def make_exact(model: PreTrainedModel) -> None:
    """Make a transformers model (below any adapters, which exist already) exact, in place.

    Raises: ModelError when its attention does not go through transformers' interface, or it runs on
    a GPU.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = type(model).__name__
    if model.device.type != "cpu":
        raise ModelError(
            "model.exact: true was never measured on a GPU; set it to false, or placement.device "
            "to cpu"
        )
    if (
        not getattr(model, "_supports_attention_backend", False)
        or model.config._attn_implementation != "sdpa"
    ):
        raise ModelError(
            f"model.exact: true: {name} with model.attention "
            f"{model.config._attn_implementation!r} does not go through transformers' attention "
            "interface; set model.exact to false"
        )
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(  # type: ignore[method-assign]
                _layer, module, in_float32=module is head
            )


def is_exact(model: PreTrainedModel) -> bool:
    """Return True if `make_exact` was called."""
    return model.config._attn_implementation == NAME


@contextmanager
def weights_at_hand(model: nn.Module) -> Iterator[None]:
    """Keep layers' weights in the layout of their products during the block, in which no weight
    changes."""
    layers = []
    for module in model.modules():
        if isinstance(module, nn.Linear) and "forward" in vars(module):
            layers.append(module)
    # Without AVX-512 oneDNN packs no bfloat16, and products take the weights as they are.
    can_pack = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    try:
        for layer in layers:
            if layer.forward.keywords["in_float32"]:  # type: ignore[attr-defined]
                vars(layer)[AT_HAND] = layer.weight.detach().t().float()
            elif can_pack and layer.weight.dtype is torch.bfloat16:
                vars(layer)[AT_HAND] = torch.ops.mkldnn._reorder_linear_weight(
                    layer.weight.detach(), None
                )
        yield
    finally:
        for layer in layers:
            vars(layer).pop(AT_HAND, None)


def _layer(layer: nn.Linear, states: Tensor, *, in_float32: bool) -> Tensor:
    flat_NI = states.reshape(-1, states.shape[-1])
    at_hand = vars(layer).get(AT_HAND)
    if at_hand is None:
        product_NO: Tensor = _Product.apply(flat_NI, layer.weight, layer.bias, in_float32)
    elif in_float32:
        product_NO = _in_float32(flat_NI, at_hand, layer.bias, layer.weight.dtype)
    else:
        bias = layer.bias
        blocks = pad(flat_NI, (0, 0, 0, -len(flat_NI) % ROWS)).split(ROWS)
        parts = []
        for block in blocks:
            parts.append(torch.ops.mkldnn._linear_pointwise(block, at_hand, bias, "none", [], ""))
        product_NO = torch.cat(parts)[: len(flat_NI)]
    return product_NO.view(*states.shape[:-1], product_NO.shape[-1])


def _in_float32(
    states_NI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return states @ weight + bias, block by block, not rounded. Args: dtype: format of both."""
    blocks = pad(states_NI, (0, 0, 0, -len(states_NI) % ROWS)).float().split(ROWS)
    with multiplied_as_bfloat16(dtype):
        parts = [torch.mm(block, weight_IO) for block in blocks]
    product_NO = torch.cat(parts)[: len(states_NI)]
    if bias_O is None:
        return product_NO
    return product_NO + bias_O


class _ProductContext(AutogradContext, Protocol):
    has_bias: bool


class _Product(torch.autograd.Function):
    """Product states @ weight.T + bias, block by block. Args: in_float32: do not round the result
    (a head's logits)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _ProductContext,
        states_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        in_float32: bool,
    ) -> Tensor:
        ctx.save_for_backward(states_NI, weight_OI)
        ctx.has_bias = bias_O is not None
        if in_float32:
            return _in_float32(states_NI, weight_OI.t().float(), bias_O, weight_OI.dtype)
        blocks = pad(states_NI, (0, 0, 0, -len(states_NI) % ROWS)).split(ROWS)
        return torch.cat([linear(block, weight_OI, bias_O) for block in blocks])[: len(states_NI)]

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _ProductContext, grad_NO: Tensor
    ) -> tuple[Tensor | None, ...]:
        states_NI, weight_OI = ctx.saved_tensors
        grad_NO = grad_NO.to(weight_OI.dtype)
        grad_states = grad_NO @ weight_OI if ctx.needs_input_grad[0] else None
        grad_weight = grad_NO.t() @ states_NI if ctx.needs_input_grad[1] else None
        grad_bias = grad_NO.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_states, grad_weight, grad_bias, None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    unknown = []
    for name in ("s_aux", "position_bias", "softcap"):
        if kwargs.get(name) is not None:
            unknown.append(name)
    if unknown or dropout:
        raise ModelError(
            f"model.exact: true: {type(module).__name__} wants {unknown or 'dropout'} of its "
            "attention"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    key, value = (
        states.repeat_interleave(groups, 1) if groups > 1 else states for states in (key, value)
    )
    sees_BQL = _visible(query, key, attention_mask)
    seen_BHQD = _Attend.apply(query, key, value, sees_BQL, scale)
    return seen_BHQD.transpose(1, 2), None  # type: ignore[union-attr]


def _visible(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask of keys that each query sees, [B, Q, L]. Args: mask: of transformers, True
    where it sees; None is causal."""
    rows, num_queries, num_keys = len(query), query.shape[2], key.shape[2]
    if mask is not None:
        return (mask if mask.dtype is torch.bool else mask == 0)[:, 0].expand(rows, -1, -1)
    last_Q = torch.arange(num_keys - num_queries, num_keys, device=query.device)
    return (torch.arange(num_keys, device=query.device) <= last_Q[:, None]).expand(rows, -1, -1)


class _AttendContext(AutogradContext, Protocol):
    scale: float


class _Attend(torch.autograd.Function):
    """Attention in float32, rounded once at the end; sums run over blocks of keys from the first
    one of the row."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _AttendContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sees_BQL: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, sees_BQL)
        ctx.scale = scale
        _, heads, num_queries, size = query.shape
        # A row begins at its first key that anybody sees; before it there is padding.
        start_B = sees_BQL.any(1).int().argmax(-1)
        num_blocks = -(-int((key.shape[2] - start_B).max()) // KEYS)
        place_BL = start_B[:, None] + torch.arange(num_blocks * KEYS, device=key.device)
        is_there_BL = place_BL < key.shape[2]
        place_BL = place_BL.clamp_max(key.shape[2] - 1)
        index = place_BL[:, None, :, None].expand(-1, heads, -1, size)
        keys, values = (
            states.gather(2, index).float() * is_there_BL[:, None, :, None]
            for states in (key, value)
        )
        sees_BQL = (
            sees_BQL.gather(2, place_BL[:, None].expand(-1, num_queries, -1)) & is_there_BL[:, None]
        )
        seen = []
        for first in range(0, num_queries, ROWS):
            block = slice(first, first + ROWS)
            short = ROWS - len(range(*block.indices(num_queries)))
            queries = pad(query[:, :, block].float(), (0, 0, 0, short))
            hidden_BQL = ~pad(sees_BQL[:, block], (0, 0, 0, short))
            seen.append(_seen(queries, keys, values, hidden_BQL, scale)[:, :, : ROWS - short])
        return torch.cat(seen, 2).to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _AttendContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        *states, sees_BQL = ctx.saved_tensors
        wide = [one.detach().float().requires_grad_() for one in states]
        # A query that sees nothing is padding, and nothing follows from it.
        mask = (sees_BQL | ~sees_BQL.any(-1, keepdim=True))[:, None]
        with torch.enable_grad():
            query, key, value = wide
            seen = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, mask, scale=ctx.scale
            )
            grads = torch.autograd.grad(seen, wide, grad.float())
        return (
            *(one.to(state.dtype) for one, state in zip(grads, states, strict=True)),
            None,
            None,
        )


def _seen(
    queries: Tensor, keys: Tensor, values: Tensor, hidden_BQL: Tensor, scale: float
) -> Tensor:
    """Return the attention result of `ROWS` queries, [B, H, ROWS, D], in float32."""
    matrices = [states.flatten(0, 1) for states in (queries, keys, values)]
    scores = torch.cat(
        [torch.bmm(matrices[0], block.mT) for block in matrices[1].split(KEYS, 1)], -1
    )
    scores = (
        scores.view(*queries.shape[:3], -1)
        .mul_(scale)
        .masked_fill_(hidden_BQL[:, None], float("-inf"))
    )
    # The maximum does not depend on the order of keys. Its lower bound keeps a query that sees no
    # key from becoming NaN.
    weights = (scores - scores.amax(-1, keepdim=True).clamp_min(-1e30)).exp_()
    total, seen = torch.zeros_like(weights[..., :1]), torch.zeros_like(queries)
    for part, block in zip(weights.split(KEYS, -1), matrices[2].split(KEYS, 1), strict=True):
        total = total + part.sum(-1, keepdim=True)
        seen = seen + torch.bmm(part.flatten(0, 1), block).view_as(seen)
    return seen / total.clamp_min(1e-30)
