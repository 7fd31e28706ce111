"""Model family: decoder-only language models of transformers.

Shapes: B rows, L = P + T positions (prompt, left-padded; response, right-padded), H hidden, N
selected positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl_core.errors import ModelError
from rl_core.kernels import Packed, multiplied_as_bfloat16, packed_weights, product_in_float32
from rl_core.models import packing, shared_prompts
from rl_core.models.backbone import backbone_of, blocks_named, head_of, taken_by
from rl_core.models.checks.paths import Path, Paths
from rl_core.models.checks.probe import settle
from rl_core.models.chunked_log_probs import is_plain_head, linear_log_probs
from rl_core.models.decoding.distributions import DistributionReader
from rl_core.models.decoding.restriction import SHARED_SEQUENCES, Restricted, Restriction, projected
from rl_core.models.decoding.router_replay import (
    enable_router_replay,
    recomputed_alike,
    routed_by,
)
from rl_core.models.decoding.routing import replay_of
from rl_core.models.exact import is_exact, make_exact, weights_at_hand
from rl_core.models.heads.head import own_logits, projection_scale
from rl_core.models.heads.value_head import ValueHead
from rl_core.models.loading.load_model import load_model
from rl_core.models.media import PromptMedia
from rl_core.models.model_inputs import ModelInputs
from rl_core.models.policy import Policy, TokenPolicy
from rl_core.models.quantized import QuantizedLinear, quantize
from schemas.recipe import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Scores: TypeAlias = tuple[Tensor, Tensor | None]
"""Log-probabilities [N] and entropies [N] or None."""


class SharedSequences(Protocol):
    """Ranks that compute each sequence together: see `rl_core.train.sharding.sequence_parallel`."""

    def scores(
        self,
        model: PreTrainedModel,
        inputs: ModelInputs,
        acts_BL: Tensor,
        targets_N: Tensor,
        score: Callable[[Tensor, Tensor], Scores],
    ) -> Scores: ...


class CausalLMPolicy(TokenPolicy):
    """A language model as a policy: its forward gives the log-probability of each response
    token."""

    num_choices: int | None = None
    """Number of the head's tokens, from the first, that may be sampled; None means all of them."""
    num_known_words: int | None = None
    """Rows of the embedding, if the tokenizer has special tokens beyond them; None if it has
    none."""
    projection_scale: float | None
    """Factor from the projection to the model's logits; None if they are computed otherwise: see
    `head`."""
    sequence_parallel: SharedSequences | None = None
    """Ranks that compute each sequence together with this one."""
    _wide_head: Tensor | None = None
    paths: Paths | None = None
    """Ways of computing that were found to give the model's own results; None before the check."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.projection_scale = projection_scale(self.head_model)

    @property
    def language_model(self) -> PreTrainedModel:
        """The transformers model, below any adapters."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def head_model(self) -> PreTrainedModel:
        """The module that computes logits from hidden states: the transformers model, or one inside
        it."""
        return self.language_model

    @property
    def backbone(self) -> PreTrainedModel:
        """The transformers model without its head."""
        return backbone_of(self.language_model)

    def compute_part_alone(self, alone: bool) -> bool:
        """Compute text with the language model inside a larger model, without the modules around
        it.

        Returns: True if there are any modules around it.
        """
        return False

    def hidden_states(self, inputs: ModelInputs) -> Tensor:
        """Return the last hidden states [B, L, H]. Args: inputs: result of `inputs`."""
        backbone = self.backbone
        return backbone(**taken_by(backbone, inputs), use_cache=False).last_hidden_state

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return the model's own logits [N, V] of the tokens that may be sampled."""
        projection = head_of(self.language_model)
        weight = getattr(projection, "weight", None)
        states_NH = hidden_NH if weight is None else hidden_NH.to(weight.dtype)
        if self.projection_scale is None:
            return self.choices(own_logits(self.head_model, states_NH))
        if isinstance(projection, nn.Module) and is_plain_head(projection):
            logits_NV = self._projected(states_NH, projection.weight)
        else:
            logits_NV = self.choices(projection(states_NH))
        return logits_NV if self.projection_scale == 1.0 else logits_NV * self.projection_scale

    def _projected(self, states_NH: Tensor, weight_VH: Tensor) -> Tensor:
        """Return a plain projection, not rounded to the format of its factors."""
        if self._wide_head is None:
            return self.choices(product_in_float32(states_NH, weight_VH.t()))
        with multiplied_as_bfloat16(states_NH.dtype):
            return self.choices(torch.mm(states_NH.float(), self._wide_head.t()))

    @property
    def is_exact(self) -> bool:
        """True if a token gets the same bits whatever else is in its batch; see `exact`."""
        return is_exact(self.language_model)

    def make_exact(self) -> None:
        """Make the policy exact. Raises: ModelError when the model does not support it."""
        make_exact(self.language_model)

    @contextmanager
    def ready_to_decode(self) -> Iterator[Packed]:
        """Speed up products of few rows during the block, in which no weight changes. Yields: the
        packed weights."""
        if self.is_exact:
            with weights_at_hand(self.language_model):
                yield {}
            return
        projection = head_of(self.language_model)
        is_plain = isinstance(projection, nn.Module) and is_plain_head(projection)
        if is_plain and projection.weight.is_cpu and projection.weight.dtype is torch.bfloat16:
            # Products with unrounded results need both factors in float32.
            weight: Any = projection.weight
            self._wide_head = weight.detach().float()
        try:
            with packed_weights(self.model, leave=projection if is_plain else None) as packed:
                yield packed
        finally:
            self._wide_head = None

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        response_mask_BT: Tensor,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        entropy_grad: bool = False,
        packed: bool = False,
        share_prompts: bool = False,
        media_B: Sequence[PromptMedia | None] | None = None,
        restriction: Restriction | None = None,
        reader: DistributionReader | None = None,
        routing_B: Sequence[np.ndarray | None] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities [B, T] of the response tokens, zero where the mask is 0, and
        entropy [B, T] or None.

        Only positions with a set mask go through the vocabulary projection. The entropy has a
        gradient only on request, since that doubles the memory of the log-softmax for the backward
        pass. Args: packed: compute the rows end to end without padding (after `enable_packing`);
        the result is the same. share_prompts: also compute the common prompt of adjacent rows only
        once (after `enable_prompt_sharing`). media_B: media of each row besides text. restriction:
        how the rows were drawn, if not from the whole distribution. reader: reads the whole
        distribution at each position, and answers with a number that takes the entropy's place.
        routing_B: experts to compute (after `enable_router_replay`), as in the column `ROUTING`.
        Raises: ModelError when ranks that compute each sequence together have one.
        """
        keep_BT = response_mask_BT.bool()
        acts_BL = torch.zeros_like(input_ids_BL, dtype=torch.bool)
        acts_BL[:, -keep_BT.shape[1] - 1 : -1] = keep_BT
        targets_N = input_ids_BL[:, -keep_BT.shape[1] :][keep_BT]
        used_BL = attention_mask_BL.bool()
        if restriction is not None and self.sequence_parallel is not None:
            raise ModelError(SHARED_SEQUENCES)
        score = partial(
            self._score,
            temperature=temperature,
            with_entropy=with_entropy,
            entropy_grad=entropy_grad,
            restricted=restriction and restriction.at(input_ids_BL, used_BL, keep_BT),
            reader=reader,
        )
        inputs = self.inputs(input_ids_BL, attention_mask_BL, position_ids_BL, media_B)
        if share_prompts:
            num_prompt = used_BL.shape[1] - keep_BT.shape[1]
            shared = shared_prompts.lay_out(input_ids_BL, used_BL, position_ids_BL, num_prompt)
            inputs = shared.inputs(input_ids_BL, position_ids_BL)
            with routed_by(replay_of(routing_B, used_BL, shared.source_N)):
                hidden_NH = self.hidden_states(inputs)[0]
            log_probs_N, entropy_N = score(
                hidden_NH.index_select(0, shared.token_BL[acts_BL]), targets_N
            )
        else:
            source_N = None
            if packed:
                source_N = used_BL.flatten().nonzero()[:, 0]
                inputs = packing.packed_inputs(
                    self.language_model, input_ids_BL, used_BL, position_ids_BL
                )
                acts_BL = acts_BL[used_BL][None]
            if self.sequence_parallel is None:
                with routed_by(replay_of(routing_B, used_BL, source_N)):
                    hidden_BLH = self.hidden_states(inputs)
                log_probs_N, entropy_N = score(hidden_BLH[acts_BL], targets_N)
            else:
                scores = self.sequence_parallel.scores(
                    self.backbone, inputs, acts_BL, targets_N, score
                )
                log_probs_N, entropy_N = scores
        zeros = torch.zeros(keep_BT.shape, dtype=torch.float32, device=keep_BT.device)
        entropy_BT = zeros.masked_scatter(keep_BT, entropy_N) if entropy_N is not None else None
        return zeros.masked_scatter(keep_BT, log_probs_N), entropy_BT

    def inputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        media_B: Sequence[PromptMedia | None] | None,
    ) -> ModelInputs:
        """Return the keyword arguments of the model's forward. Raises: ModelError when a row has
        media that the model does not support."""
        if any(media is not None for media in media_B or ()):
            raise ModelError(
                f"{type(self.language_model).__name__} sees no pictures; the rows have some"
            )
        known = self.num_known_words
        if known is not None and (last := int(input_ids_BL.max())) >= known:
            raise ModelError(
                f"a row holds the special token {last}, which the model's embedding of {known} "
                "rows does not know; take it out of the texts and the chat template"
            )
        return {
            "input_ids": input_ids_BL,
            "attention_mask": attention_mask_BL,
            "position_ids": position_ids_BL,
        }

    def reply_positions(self, last_R: Tensor, step: int) -> Tensor:
        """Return position ids of a reply's token `step` (0 is the first), [R, 1] or with several
        axes [A, R, 1].

        Args: last_R: position of the last token before the reply.
        """
        return (last_R + 1 + step)[:, None]

    def choices(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that may be sampled, from the last axis of the head's
        output."""
        return logits if self.num_choices is None else logits[..., : self.num_choices]

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        # transformers names the blocks under no public name; this can go when it does.
        if named := self.language_model._no_split_modules:
            return tuple(named)
        lists = [module for module in self.backbone.modules() if isinstance(module, nn.ModuleList)]
        longest = max(lists, key=len, default=None)
        return () if not longest else (type(longest[0]).__name__,)

    @property
    def lora_targets(self) -> list[str] | str:
        """Linear layers that get an adapter by default."""
        modules = dict(self.model.named_modules())
        linear = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
        is_plain = all(type(module) in (nn.Linear, QuantizedLinear) for module in linear.values())
        # peft goes by the last part of a name: a layer called "0" would stand for every first layer
        # of a list.
        own_names = {name.rpartition(".")[2] for name in linear}
        is_named = not any(
            name.rpartition(".")[2] in own_names for name in modules if name not in linear
        )
        if is_plain and is_named:
            return "all-linear"
        # A family's own kind of linear layer computes something that an adapter does not know.
        head = head_of(self.language_model)
        return [
            name
            for name, module in linear.items()
            if type(module) in (nn.Linear, QuantizedLinear) and module is not head
        ]

    def enable_activation_checkpointing(self) -> None:
        """Recompute the blocks in the backward pass."""
        for block in blocks(self):
            recompute_in_backward(block)

    def enable_router_replay(self) -> None:
        """Allow `routing_B`. Raises: ModelError when it has no experts to choose, or
        chooses them in another way."""
        enable_router_replay(self.language_model, self.block_classes)

    def why_no_packing(self) -> str | None:
        """Return the reason why `packed=True` would change the result; None if it does not."""
        if self.is_exact:
            return "packed rows are no exact ones"
        if self.paths is not None and (why := self.paths.why_not(Path.PACKED)):
            return why
        return packing.why_not(self.language_model)

    def enable_packing(self) -> None:
        """Allow `packed=True`. Raises: ModelError when a packed row would differ from the model's
        own result."""
        if self.is_exact:
            raise ModelError(
                "placement.max_tokens_per_micro_batch: packed rows are no exact ones; unset it, "
                "or model.exact"
            )
        if why := self.why_no_packing():
            raise ModelError(
                "placement.max_tokens_per_micro_batch: rows of "
                f"{type(self.language_model).__name__} cannot be packed ({why}); unset it and "
                "use placement.micro_batch_size"
            )
        packing.enable_packing(self.language_model)

    def why_no_prompt_sharing(self) -> str | None:
        """Return the reason why `share_prompts=True` would change the result; None if it does
        not."""
        if self.is_exact:
            return "shared prompts are no exact ones"
        if self.sequence_parallel is not None:
            return "sequences are shared"
        if self.paths is not None and (why := self.paths.why_not(Path.SHARED)):
            return why
        return shared_prompts.why_not(self.language_model)

    def enable_prompt_sharing(self) -> bool:
        """Allow `share_prompts=True` if it does not change the result. Returns: True if it is
        allowed."""
        if self.why_no_prompt_sharing() is not None:
            return False
        packing.enable_packing(self.language_model)
        return True

    def _score(
        self,
        hidden_NH: Tensor,
        targets_N: Tensor,
        *,
        temperature: float,
        with_entropy: bool,
        entropy_grad: bool,
        restricted: Restricted | None = None,
        reader: DistributionReader | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        head = head_of(self.language_model)
        if isinstance(head, ValueHead):
            return head.values(hidden_NH), None
        options = {"with_entropy": with_entropy, "entropy_grad": entropy_grad}
        logits: Callable[[Tensor], Tensor] = self.logits
        if self.projection_scale is not None and is_plain_head(head):
            weight_VH = head.weight if self.num_choices is None else head.weight[: self.num_choices]
            scale = self.projection_scale
            if restricted is None and reader is None:
                return linear_log_probs(
                    hidden_NH, weight_VH, targets_N, temperature=temperature / scale, **options
                )
            logits = partial(projected, weight_VH=weight_VH, scale=scale)
        if reader is not None:
            return reader.read(logits, hidden_NH, targets_N, temperature=temperature)
        return (restricted or Restricted()).log_probs(
            logits, hidden_NH, targets_N, temperature=temperature, **options
        )


def load_policy(source: str, config: ModelConfig, paths: Paths | None = None) -> CausalLMPolicy:
    """Load the policy with float32 master weights.

    Args: paths: findings of an earlier load of the same model; unset checks again. Raises:
    ModelError when the model cannot be loaded or trained.
    """
    from transformers import AutoModelForCausalLM

    policy = CausalLMPolicy(
        load_model(AutoModelForCausalLM, source, config, "causal language model")
    )
    quantize(policy, config.quantize)
    settle(policy, paths, config.attention)
    return policy


def recompute_in_backward(block: nn.Module) -> None:
    """Keep only a block's inputs for the backward pass, also in evaluation mode, unlike
    transformers' own way."""
    forward = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> object:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(
            forward, *args, use_reentrant=False, context_fn=recomputed_alike, **kwargs
        )

    block.forward = recomputed  # type: ignore[method-assign]


def blocks(policy: Policy, class_names: Collection[str] | None = None) -> list[nn.Module]:
    """Return the repeated transformer blocks, which FSDP wraps one by one; found by class, wrapped
    or not, the outermost.

    A block that shares a parameter with another module is left out: gathering one would free the
    other. Args: class_names: of the blocks; unset takes the policy's `block_classes`.
    """
    return blocks_named(policy, policy.block_classes if class_names is None else class_names)
