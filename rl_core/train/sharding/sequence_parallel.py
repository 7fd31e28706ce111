"""Sequence parallelism: ranks share each sequence, and each computes a slice of it (Ulysses, arXiv
2309.14509).

All layers work position by position except attention, which sees every position for a share of the
heads: an all-to-all before it converts slices of positions to slices of heads, one after it
converts them back. It is registered with transformers as an attention implementation, so any model
that uses that interface can be trained this way. Labels are shifted before the cut and the
log-probabilities of all slices are gathered, so every sibling computes the loss of whole rows.

Shapes: B rows, L positions (padded to a multiple of the ranks), S = L / ranks, H heads, D width of
a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.kernels import AutogradContext
from rl_core.models.layer_types import other_layers, sizes_of_layers

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from transformers import PreTrainedModel

    from rl_core.models.model_inputs import ModelInputs

M = TypeVar("M")
Score = Callable[[Tensor, Tensor], tuple[Tensor | None, ...]]
Attention: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: output, and weights if it computes them."""

PREFIX = "ulysses_"
"""Prefix of the name of the attention implementation that does the work."""
MASKED = "chunked_attention"
"""Layers that depend on the mask alone, of which every rank has the whole."""

_positions_are_cut: ContextVar[bool] = ContextVar("positions_are_cut", default=False)


class SequenceParallel:
    """The ranks that share sequences, and the index of this one's slice."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def cut(self, values_BL: Tensor) -> Tensor:
        """Return this rank's slice [B, S]; the last one is padded with columns of zeros."""
        padded_BL = torch.nn.functional.pad(values_BL, (0, -values_BL.shape[1] % self.size))
        return padded_BL.chunk(self.size, dim=1)[self.rank]

    def gather(self, values_BS: Tensor) -> Tensor:
        """Return all slices in order [B, L], padding columns included; the gradient of this rank's
        slice flows back into it.

        Every sibling must compute the same loss from the result.
        """
        return _Gather.apply(values_BS, self)  # type: ignore[return-value]

    def scores(
        self,
        model: PreTrainedModel,
        inputs: ModelInputs,
        acts_BL: Tensor,
        targets_N: Tensor,
        score: Score,
    ) -> tuple[Tensor | None, ...]:
        """Return the scores of the actions of whole rows [N], row by row; each rank scores those of
        its slice.

        Args: inputs: as of `hidden_states`. acts_BL: the N positions that predict an action.
        targets_N: the actions. score: function from hidden states and actions to numbers per
        action, None for one that is not wanted.
        """
        hidden_BSH = self.hidden_states(model, inputs)
        here_BS = self.cut(acts_BL)
        targets_BL = torch.zeros_like(acts_BL, dtype=targets_N.dtype).masked_scatter(
            acts_BL, targets_N
        )
        measured = score(hidden_BSH[here_BS], self.cut(targets_BL)[here_BS])
        return tuple(
            None if values is None else self._everyones(values, here_BS, acts_BL)
            for values in measured
        )

    def _everyones(self, values: Tensor, here_BS: Tensor, acts_BL: Tensor) -> Tensor:
        values_BS = torch.zeros(here_BS.shape, dtype=values.dtype, device=values.device)
        values_BL = self.gather(values_BS.masked_scatter(here_BS, values))
        return values_BL[:, : acts_BL.shape[1]][acts_BL]

    def hidden_states(self, model: PreTrainedModel, inputs: ModelInputs) -> Tensor:
        """Return the last hidden states [B, S, hidden] of this rank's slice, from a model that
        passed `check_sequence_parallel`.

        Args: inputs: keyword arguments of a forward pass over whole rows, padded or packed end to
        end.
        """
        # Set here, since packing may change the implementation until the first pass; it stays for
        # recomputed blocks.
        # transformers has no public name to read the implementation by; this can go when it has.
        attention = model.config._attn_implementation
        assert attention is not None
        if not attention.startswith(PREFIX):
            model.set_attn_implementation(_register(attention))
        with _cut_positions():
            return model(
                **self._cut_inputs(inputs), use_cache=False, sequence_parallel=self
            ).last_hidden_state

    def _cut_inputs(self, inputs: ModelInputs) -> ModelInputs:
        words_BL, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        assert words_BL is not None, "embeddings are not cut"
        short = -words_BL.shape[1] % self.size
        cut: ModelInputs = {
            **inputs,
            "input_ids": self.cut(words_BL),
            "position_ids": self.cut(inputs["position_ids"]),
        }
        if mask is not None and mask.dim() == 2:
            # No real token sees the padding behind it. With 1 in the mask, rows without other
            # padding need no mask at all.
            cut["attention_mask"] = torch.nn.functional.pad(mask, (0, short), value=1)
        if short and "cu_seq_lens_q" in inputs:
            bounds = inputs["cu_seq_lens_q"]
            cut["cu_seq_lens_q"] = cut["cu_seq_lens_k"] = torch.cat([bounds, bounds[-1:] + short])
        return cut

    def heads_for_positions(self, states_BHSD: Tensor) -> Tensor:
        """Exchange [B, H, S, D] of all heads at some positions for [B, H / ranks, L, D] of some
        heads at all positions."""
        return _Exchange.apply(states_BHSD, 1, 2, self)  # type: ignore[return-value]

    def positions_for_heads(self, states_BLHD: Tensor) -> Tensor:
        """Exchange [B, L, H / ranks, D] of some heads at all positions for [B, S, H, D]."""
        return _Exchange.apply(states_BLHD, 1, 2, self)  # type: ignore[return-value]


def check_sequence_parallel(model: PreTrainedModel, sp_size: int, tp_size: int = 1) -> None:
    """Check that a model's attention can be exchanged, and that its heads divide by `sp_size`.

    Raises: ModelError when not.
    """
    config, name = model.config.get_text_config(), type(model).__name__
    remedy = "set placement.sp_size to 1"
    if not model._supports_attention_backend or model.config._attn_implementation == "eager":
        raise ModelError(
            f"placement.sp_size {sp_size}: {name} with model.attention "
            f"{model.config._attn_implementation!r} does not go through transformers' attention "
            f"interface; use sdpa with a model that supports it, or {remedy}"
        )
    if other := sorted(set(other_layers(model)) - {MASKED}):
        raise ModelError(
            f"placement.sp_size {sp_size}: {name} has layers of type {other} that carry a state "
            f"along; {remedy}"
        )
    heads = math.gcd(*sizes_of_layers(config, "num_attention_heads")) // tp_size
    if heads % sp_size:
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise ModelError(
            f"placement.sp_size {sp_size} does not divide the {heads} attention heads that "
            f"{name} has on a rank (tp_size {tp_size}); sizes that fit: {fitting}"
        )


def _register(base: str) -> str:
    """Return the name of the implementation that attends across slices by `base`; without slices it
    is `base`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = PREFIX + base
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _attention_by(ALL_ATTENTION_FUNCTIONS[base]))
        AttentionMaskInterface.register(name, _mask_by(ALL_MASK_ATTENTION_FUNCTIONS[base]))
    return name


def _attention_by(base: Attention) -> Attention:
    def attention(
        module: nn.Module,
        query_BHSD: Tensor,
        key_BHSD: Tensor,
        value_BHSD: Tensor,
        attention_mask: Tensor | None,
        sequence_parallel: SequenceParallel | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        if sequence_parallel is None:
            return base(module, query_BHSD, key_BHSD, value_BHSD, attention_mask, **kwargs)
        _refuse_per_head_extras(module, kwargs)
        # These positions are those of one slice; the mask already determines the order.
        kwargs.pop("position_ids", None)
        groups = query_BHSD.shape[1] // key_BHSD.shape[1]
        copies = math.lcm(key_BHSD.shape[1], sequence_parallel.size) // key_BHSD.shape[1]
        output_BLHD, weights = base(
            _Attending(module, groups // copies),
            sequence_parallel.heads_for_positions(query_BHSD),
            sequence_parallel.heads_for_positions(key_BHSD.repeat_interleave(copies, dim=1)),
            sequence_parallel.heads_for_positions(value_BHSD.repeat_interleave(copies, dim=1)),
            attention_mask,
            **kwargs,
        )
        return sequence_parallel.positions_for_heads(output_BLHD), weights

    return attention


def _mask_by(base: Callable[..., M]) -> Callable[..., M]:
    def mask(*args: object, q_length: int, kv_length: int, **kwargs: object) -> M:
        # The model sees a slice of the positions, and the padding mask of all; attention has the
        # queries of all positions.
        num_queries = kv_length if _positions_are_cut.get() else q_length
        return base(*args, q_length=num_queries, kv_length=kv_length, **kwargs)

    return mask


def _refuse_per_head_extras(module: nn.Module, kwargs: Mapping[str, object]) -> None:
    given = [name for name in ("s_aux", "position_bias") if kwargs.get(name) is not None]
    if given:
        raise ModelError(
            f"{module.__class__.__name__} gives attention {given[0]} per head, which sequence "
            "parallelism does not exchange; set placement.sp_size to 1"
        )


class _Attending:
    """An attention module as seen by its attention function, with the grouping of the received
    heads."""

    def __init__(self, module: nn.Module, num_key_value_groups: int) -> None:
        self._module, self.num_key_value_groups = module, num_key_value_groups

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


@contextmanager
def _cut_positions() -> Iterator[None]:
    token = _positions_are_cut.set(True)
    try:
        yield
    finally:
        _positions_are_cut.reset(token)


class _GatherContext(AutogradContext, Protocol):
    ranks: SequenceParallel


class _ExchangeContext(_GatherContext, Protocol):
    dimensions: tuple[int, int]


class _Exchange(torch.autograd.Function):
    """All-to-all: dimension `cut` is distributed over the ranks, dimension `joined` collected from
    them in rank order."""

    @staticmethod
    def forward(
        ctx: _ExchangeContext, values: Tensor, cut: int, joined: int, ranks: SequenceParallel
    ) -> Tensor:
        ctx.dimensions, ctx.ranks = (cut, joined), ranks
        parts = torch.stack(values.chunk(ranks.size, cut))
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=ranks.group)
        return torch.cat(received.unbind(0), joined)

    @staticmethod
    def backward(ctx: _ExchangeContext, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cut, joined = ctx.dimensions
        return _Exchange.apply(gradients[0], joined, cut, ctx.ranks), None, None, None


class _Gather(torch.autograd.Function):
    """All-gather along the positions."""

    @staticmethod
    def forward(ctx: _GatherContext, values_BS: Tensor, ranks: SequenceParallel) -> Tensor:
        ctx.ranks = ranks
        slices = [torch.empty_like(values_BS) for _ in range(ranks.size)]
        dist.all_gather(slices, values_BS.contiguous(), group=ranks.group)
        return torch.cat(slices, 1)

    @staticmethod
    def backward(ctx: _GatherContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].chunk(ctx.ranks.size, 1)[ctx.ranks.rank], None
