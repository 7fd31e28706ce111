"""One token of each row through a plain decoder, with little overhead around the products.

A token is a few hundred numbers per layer, so that the overhead of transformers around the products
(calls of modules, keyword arguments, views) is significant. Here a layer is its operations alone,
in the same order and with the same roundings. A model may have the parts of a plain decoder and
still use them differently: see `next_states`.

Axes: R rows, H hidden features, M features between, S states of a layer's heads, K key heads, G
query heads of each, D features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import silu

from rl_core.kernels import GatedMLP, RMSNorm
from rl_core.models.packing import ROW_BY_ROW

if TYPE_CHECKING:
    pass

MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}
"""Names of the parts of a plain decoder in transformers."""
BLOCK = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""Names of the parts of its blocks."""
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
"""Names of the parts of their attention."""
HEAD_NORMS = {"q_norm", "k_norm"}
"""Names of the norms that some attention modules also have."""
Layers = tuple[nn.Module, ...]
"""Linear layers that read the same states."""


class Product(Protocol):
    """Joint product of such layers."""

    sizes: list[int]
    """Number of output features of each layer."""

    def whole(self, states: Tensor) -> Tensor:
        """Return the outputs of all layers for the states, side by side in the last axis."""
        ...


class Memory(Protocol):
    """KV cache of the rows."""

    def begin(self) -> None:
        """Extend every row by one token."""

    def attend(
        self, layer: int, query_RKGD: Tensor, key_RKD: Tensor, value_RKD: Tensor, scale: float
    ) -> Tensor:
        """Add the token's keys and values. Returns: its attention result, [R, K, G, D]."""
        ...


class Attention(Protocol):
    """Sizes of a transformers module of attention."""

    head_dim: int
    scaling: float


class LayerByLayer:
    """Unchanged layers, each with its own product."""

    def __init__(self, layers: Layers) -> None:
        self.layers: list[Any] = list(layers)
        self.sizes = [layer.out_features for layer in self.layers]

    def whole(self, states: Tensor) -> Tensor:
        """Return the outputs of all layers for the states, side by side in the last axis."""
        return torch.cat([layer(states) for layer in self.layers], -1)


def layer_by_layer(layers: Layers) -> LayerByLayer | None:
    """Return the product of unchanged layers; None if one is not linear, or cut over ranks."""
    weights = [weight for layer in layers for weight in layer.parameters()]
    is_linear = all(hasattr(layer, "out_features") for layer in layers)
    if is_linear and not any(isinstance(weight, DTensor) for weight in weights):
        return LayerByLayer(layers)
    return None


class PlainDecoder:
    """A transformers model with the usual shape of a decoder-only model."""

    def __init__(self, model: Any, blocks: list[_Block]) -> None:
        self.model, self.blocks = model, blocks

    def step(self, tokens_R: Tensor, positions_R1: Tensor, memory: Memory) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H]."""
        memory.begin()
        hidden_RH = self.model.embed_tokens(tokens_R)
        cos_R1D, sin_R1D = (
            angle.view(len(tokens_R), 1, -1)
            for angle in self.model.rotary_emb(hidden_RH, positions_R1)
        )
        for index, block in enumerate(self.blocks):
            hidden_RH = block.step(hidden_RH, (cos_R1D, sin_R1D), memory, index)
        return self.model.norm(hidden_RH)


@dataclass(frozen=True)
class _Block:
    first_norm: RMSNorm
    reads: Product
    """Product of queries, keys and values."""
    attention: Attention
    head_norms: tuple[RMSNorm, RMSNorm] | None
    """Norms of queries and keys."""
    writes: Product
    second_norm: RMSNorm
    gate_up: Product
    down: Product

    def step(
        self,
        hidden_RH: Tensor,
        angles: tuple[Tensor, Tensor],
        memory: Memory,
        index: int,
    ) -> Tensor:
        num_rows, size = len(hidden_RH), self.attention.head_dim
        num_keys = self.reads.sizes[1] // size
        states_RSD = self.reads.whole(self.first_norm.forward(hidden_RH)).view(num_rows, -1, size)
        asking_RSD = states_RSD[:, :-num_keys]
        if self.head_norms is not None:
            queries_RQD, keys_RKD = asking_RSD.split([asking_RSD.shape[1] - num_keys, num_keys], 1)
            query_norm, key_norm = self.head_norms
            asking_RSD = torch.cat([query_norm.forward(queries_RQD), key_norm.forward(keys_RKD)], 1)
        cos_R1D, sin_R1D = angles
        low, high = asking_RSD.chunk(2, -1)
        turned_RSD = asking_RSD * cos_R1D + torch.cat([-high, low], -1) * sin_R1D
        queries_RKGD = turned_RSD[:, :-num_keys].reshape(num_rows, num_keys, -1, size)
        added = turned_RSD[:, -num_keys:], states_RSD[:, -num_keys:]
        seen_RKGD = memory.attend(index, queries_RKGD, *added, self.attention.scaling)
        hidden_RH = hidden_RH + self.writes.whole(seen_RKGD.reshape(num_rows, -1))
        gate_RM, up_RM = self.gate_up.whole(self.second_norm.forward(hidden_RH)).split(
            self.gate_up.sizes, -1
        )
        return hidden_RH + self.down.whole(silu(gate_RM) * up_RM)


def plain_decoder(
    model: Any, product_of: Callable[[Layers], Product | None]
) -> PlainDecoder | None:
    """Return a transformers model (without its head) as a plain decoder; None if it has another
    shape.

    Args: product_of: returns the product of layers that read the same states; None if they have
    none.
    """
    if _parts(model) != MODEL or not isinstance(model.norm, RMSNorm):
        return None
    if model.config._attn_implementation not in ("sdpa", ROW_BY_ROW):
        return None
    blocks = [_block(block, product_of) for block in model.layers]
    plain = [block for block in blocks if block is not None]
    turned = 2 * len(getattr(model.rotary_emb, "inv_freq", ()))
    is_whole = all(block.attention.head_dim == turned for block in plain)
    if len(plain) == len(blocks) and is_whole:
        return PlainDecoder(model, plain)
    return None


def _block(block: Any, product_of: Callable[[Layers], Product | None]) -> _Block | None:
    # torch can add hooks but not list them; this can go when it can.
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())
    if hooked or _parts(block) != BLOCK:
        return None
    attention, mlp = block.self_attn, block.mlp
    extra = _parts(attention) - ATTENTION
    if not {"head_dim", "scaling"} <= vars(attention).keys():
        return None
    if (
        not isinstance(mlp, GatedMLP)
        or extra not in (set(), HEAD_NORMS)
        or not _parts(attention) >= ATTENTION
    ):
        return None
    head_norms = (attention.q_norm, attention.k_norm) if extra else None
    norms = block.input_layernorm, block.post_attention_layernorm
    layers = attention.q_proj, attention.k_proj, attention.v_proj
    groups = layers, (attention.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)
    products = []
    for group in groups:
        if (product := product_of(group)) is not None:
            products.append(product)
    if len(products) < len(groups) or not all(
        isinstance(norm, RMSNorm) for norm in (*norms, *(head_norms or ()))
    ):
        return None
    reads, writes, gate_up, down = products
    return _Block(norms[0], reads, attention, head_norms, writes, norms[1], gate_up, down)


def _parts(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
