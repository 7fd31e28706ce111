"""Model family: decoder-only language models of transformers.

Shapes: B rows, L = P + T positions (prompt, left-padded; response, right-padded), H hidden, N selected positions,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl_core.errors import ModelError
from rl_core.models import packing, shared_prompts
from rl_core.models.chunked_log_probs import is_plain_head, linear_log_probs
from rl_core.models.gated_mlp import use_gated_mlps
from rl_core.models.media import PromptMedia
from rl_core.models.rms_norm import use_quick_norms
from rl_core.models.rotary import use_quick_rotations
from rl_core.models.value_head import ValueHead
from schemas.recipe import ModelConfig

if TYPE_CHECKING:
    from rl_core.train.sequence_parallel import SequenceParallel

CHUNK_TOKENS = 1024
"""Positions whose vocabulary row exists at once: bounds the memory of the log-softmax."""


class CausalLMPolicy(nn.Module):
    """A language model as a policy: its forward gives the log-probability of each response token."""

    num_choices: int | None = None
    """Tokens that may be written are the first so many of the head's; None is all of them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.sequence_parallel: SequenceParallel | None = None
        """The ranks that compute each sequence together with this one."""

    @property
    def language_model(self) -> Any:
        """The transformers model, below any adapters."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

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
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities [B, T] of the response tokens, zero where the mask is, and entropy [B, T] or None.

        Only positions with a set mask meet the vocabulary projection. The entropy carries a gradient only on request,
        since it doubles what the log-softmax keeps for the backward pass.
        Args: packed: run the rows end to end without their padding (after `enable_packing`); the result is the same.
        share_prompts: besides, compute the prompt of adjacent rows that have the same one only once (after
        `enable_prompt_sharing`). media_B: what each row shows besides text.
        """
        keep_BT = response_mask_BT.bool()
        acts_BL = torch.zeros_like(input_ids_BL, dtype=torch.bool)
        acts_BL[:, -keep_BT.shape[1] - 1 : -1] = keep_BT
        targets_N = input_ids_BL[:, -keep_BT.shape[1] :][keep_BT]
        score = partial(self._score, temperature=temperature, with_entropy=with_entropy, entropy_grad=entropy_grad)
        model, used_BL = self.language_model.model, attention_mask_BL.bool()
        inputs = self.inputs(input_ids_BL, attention_mask_BL, position_ids_BL, media_B)
        if share_prompts:
            num_prompt = used_BL.shape[1] - keep_BT.shape[1]
            shared = shared_prompts.lay_out(input_ids_BL, used_BL, position_ids_BL, num_prompt)
            inputs = shared.inputs(input_ids_BL, position_ids_BL)
            hidden_NH = model(**inputs, use_cache=False).last_hidden_state[0]
            log_probs_N, entropy_N = score(hidden_NH.index_select(0, shared.token_BL[acts_BL]), targets_N)
        else:
            if packed:
                inputs = packing.packed_inputs(self.language_model, input_ids_BL, used_BL, position_ids_BL)
                acts_BL = acts_BL[used_BL][None]
            if self.sequence_parallel is None:
                hidden_BLH = model(**inputs, use_cache=False).last_hidden_state
                log_probs_N, entropy_N = score(hidden_BLH[acts_BL], targets_N)
            else:
                log_probs_N, entropy_N = self.sequence_parallel.scores(model, inputs, acts_BL, targets_N, score)
        zeros = torch.zeros(keep_BT.shape, dtype=torch.float32, device=keep_BT.device)
        entropy_BT = zeros.masked_scatter(keep_BT, entropy_N) if entropy_N is not None else None
        return zeros.masked_scatter(keep_BT, log_probs_N), entropy_BT

    def inputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        media_B: Sequence[PromptMedia | None] | None,
    ) -> dict[str, Any]:
        """Keyword arguments of the model's forward. Raises: ModelError when a row shows what the model cannot see."""
        if any(media is not None for media in media_B or ()):
            raise ModelError(f"{type(self.language_model).__name__} sees no pictures; the rows have some")
        return {"input_ids": input_ids_BL, "attention_mask": attention_mask_BL, "position_ids": position_ids_BL}

    def reply_positions(self, last_R: Tensor, step: int) -> Tensor:
        """Position ids of a reply's token `step` (0 is the first), [R, 1] or with several axes [A, R, 1].

        Args: last_R: of the last token before the reply.
        """
        return (last_R + 1 + step)[:, None]

    def choices(self, logits: Tensor) -> Tensor:
        """Of what the head says in the last axis, all that may be written: its first so many rows."""
        return logits if self.num_choices is None else logits[..., : self.num_choices]

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        return tuple(self.language_model._no_split_modules or ())

    @property
    def lora_targets(self) -> list[str] | str:
        """Linear layers that get an adapter unless a recipe names others."""
        return "all-linear"

    def enable_activation_checkpointing(self) -> None:
        """Recompute the blocks in the backward pass."""
        self.language_model.gradient_checkpointing_enable({"use_reentrant": False})

    def enable_packing(self) -> None:
        """Allow `packed=True`. Raises: ModelError when the architecture cannot."""
        packing.enable_packing(self.language_model)

    def enable_prompt_sharing(self) -> bool:
        """Allow `share_prompts=True` if the result is the same then. Returns: whether it is."""
        model = self.language_model
        if self.sequence_parallel is not None or not shared_prompts.can_share(model):
            return False
        packing.enable_packing(model)
        return True

    def _score(
        self, hidden_NH: Tensor, targets_N: Tensor, *, temperature: float, with_entropy: bool, entropy_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        head = self.language_model.lm_head
        if isinstance(head, ValueHead):
            return head.values(hidden_NH), None
        if is_plain_head(head):
            entropy = {"with_entropy": with_entropy, "entropy_grad": entropy_grad}
            weight_VH = head.weight if self.num_choices is None else head.weight[: self.num_choices]
            return linear_log_probs(hidden_NH, weight_VH, targets_N, temperature=temperature, **entropy)

        def chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.choices(head(hidden.to(head.weight.dtype)))
            all_log_probs = (logits.float() / temperature).log_softmax(-1)
            log_probs = all_log_probs.gather(-1, targets[:, None])[:, 0]
            if not with_entropy:
                return log_probs, torch.zeros_like(log_probs)
            counted = all_log_probs if entropy_grad else all_log_probs.detach()
            return log_probs, -(counted.exp() * counted).sum(-1)

        recompute = torch.is_grad_enabled() and len(targets_N) > CHUNK_TOKENS
        parts = [
            checkpoint(chunk, hidden, targets, use_reentrant=False) if recompute else chunk(hidden, targets)
            for hidden, targets in zip(hidden_NH.split(CHUNK_TOKENS), targets_N.split(CHUNK_TOKENS), strict=True)
        ]
        log_probs = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs, torch.cat([entropy for _, entropy in parts]) if with_entropy else None


def load_policy(source: str, config: ModelConfig) -> CausalLMPolicy:
    """The policy with float32 master weights. Raises: ModelError when the model cannot be loaded."""
    from transformers import AutoModelForCausalLM

    return CausalLMPolicy(load_model(AutoModelForCausalLM, source, config, "causal language model"))


def load_model(auto_class: Any, source: str, config: ModelConfig, what: str) -> Any:
    """Float32 weights by one of transformers' auto classes, whose norms, MLPs and rotations train quicker here.

    Raises: ModelError when they cannot be loaded.
    """
    name, _, revision = source.partition("@")
    try:
        model = auto_class.from_pretrained(
            name, revision=revision or None, dtype=torch.float32, attn_implementation=config.attention
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"model.path {config.path}: cannot be loaded as a {what}: {reason}") from error
    use_quick_norms(model)
    use_gated_mlps(model)
    use_quick_rotations(model)
    return model


def blocks(policy: Any) -> list[nn.Module]:
    """The repeated transformer blocks, which FSDP wraps one by one; found by class, wrapped or not."""
    names = set(policy.block_classes)
    return [module for module in policy.modules() if names & {cls.__name__ for cls in type(module).__mro__}]
