"""The recipe's blocks about one trained model: its weights, its adapters and averages, its optimiser."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.section import DType, Section

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Of a moving average."""

RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        *("messages", "conversation", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "return_dict", "return_tensors", "return_assistant_tokens_mask", "sanitize_control_tokens"),
        *("padding", "truncation", "max_length", "tokenizer_kwargs", "processor_kwargs", "load_audio_from_video"),
    }
)
"""Arguments of `apply_chat_template` that preparation and rollout set themselves."""


def reserved_template_kwargs(template_kwargs: Mapping[str, Any]) -> str:
    """What is wrong with options of a chat template; empty when nothing is."""
    taken = sorted(RESERVED_TEMPLATE_KWARGS & set(template_kwargs))
    if not taken:
        return ""
    return (
        f"{', '.join(taken)} cannot be set: the rollout decides it (a prompt that ends with the assistant's message is "
        "continued, any other opens the assistant's turn); keep only variables of the template, such as enable_thinking"
    )


class FSDPMode(StrEnum):
    """How parameters lie on the ranks."""

    FULL = "full"
    """Shard parameters, gradients and optimiser state; gather again in the backward pass (ZeRO-3)."""
    GRAD_OP = "grad_op"
    """Keep parameters gathered between forward and backward (ZeRO-2): more memory, less traffic."""


class LrSchedulerKind(StrEnum):
    """Shape of the learning rate after the warm-up."""

    CONSTANT = "constant"
    """The peak throughout."""
    LINEAR = "linear"
    """A straight line from the peak to the minimum."""
    COSINE = "cosine"
    """Half a cosine from the peak to the minimum (arXiv 1608.03983)."""


class EmaWarmup(StrEnum):
    """How the decay of a moving average grows to its final value over the updates n = 0, 1, ..."""

    NONE = "none"
    """The final decay from the first update."""
    RATIO = "ratio"
    """(1 + n) / (10 + n): early averages forget the start quickly."""
    RAMP = "ramp"
    """n * ramp_step, as DiffusionNFT raises it (arXiv 2509.16117)."""


class ExportKind(StrEnum):
    """What an export of a policy with adapters holds."""

    MERGED = "merged"
    """An ordinary model, the adapters added to its weights."""
    ADAPTER = "adapter"
    """The adapters alone, in peft's format, beside the name of the base model."""


class ModelPart(StrEnum):
    """A part of a vision-language model."""

    VISION_TOWER = "vision_tower"
    """From pixels to features."""
    PROJECTOR = "projector"
    """From features to what stands among the embeddings of words."""
    LANGUAGE_MODEL = "language_model"
    """What reads both and answers."""


class ModelConfig(Section):
    """The policy's starting weights."""

    path: str
    """A local folder, a Hugging Face id (`name` or `name@revision`), or one that needs no hub:
    `embedded:smollm2-135m-instruct`, `embedded:smollm2-enhancer`, `embedded:tiny-vlm`, `embedded:tiny-sd3`,
    `embedded:tiny-unified`."""
    frozen: list[ModelPart] | None = None
    """Parts of a vision-language model that are not trained and get no adapters; unset freezes the vision tower. In the
    domain text everything but the language model is frozen."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking`, in the length filter and in the rollout alike."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers."""
    exact: bool = False
    """Compute so that a token's log-probability has the same bits in the rollout and in training, whatever else is in
    the batch: the ratio of a first update is then exactly 1. On CPUs, in process, without packing; several times as
    slow, and refused where a model does not keep the promise."""
    dropout: bool = False
    """Let the model drop out what its own config says (attention, residuals, router noise) in the passes that learn.
    Rollout and reference never do, so the policy that learns is then another one than the one that sampled."""
    trust_remote_code: bool = False
    """Run Python code that lies beside the weights, where a family has its classes there (HunyuanImage-3.0)."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _template_variables_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        if problem := reserved_template_kwargs(value):
            raise ValueError(problem)
        return value


class LoraConfig(Section):
    """Low-rank adapters (arXiv 2106.09685), injected before the FSDP wrap."""

    rank: int = Field(default=16, ge=1)
    """Inner dimension of each adapter."""
    alpha: float = Field(default=32, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout inside the adapter; leave 0 so that rollout and training agree."""
    target_modules: list[str] | None = None
    """Names of the linear layers; unset means the model family's own list."""
    export: ExportKind = ExportKind.MERGED
    """What the exported folder holds."""


class EmaConfig(Section):
    """An exponential moving average of the trained weights: shadow = decay * shadow + (1 - decay) * weights."""

    decay: float = Field(default=0.999, ge=0, lt=1)
    """Final decay per optimiser step."""
    warmup: EmaWarmup = EmaWarmup.NONE
    """How the decay grows to its final value."""
    ramp_step: float = Field(default=0.001, gt=0)
    """With `ramp`: growth of the decay per update."""
    evaluate: bool = True
    """Evaluate and export the average instead of the weights it follows."""


class EmaLoraConfig(EmaConfig):
    """A second, frozen adapter that follows the trained one; needs `lora`."""

    rollout: bool = False
    """Sample with the average; the old log-probabilities are then those of the average, too."""


class EmaFullConfig(EmaConfig):
    """A moving average of every trained tensor, sharded like the model."""

    mirror: bool = False
    """Keep the average as a second, frozen model that can run forward, instead of as bare tensors."""
    rollout: bool = False
    """Sample with the average (needs `mirror`); the old log-probabilities are then those of the average, too."""

    @model_validator(mode="after")
    def _rollout_needs_a_model(self) -> "EmaFullConfig":
        if self.rollout and not self.mirror:
            raise ValueError("rollout: true needs mirror: true, a second model to sample with")
        return self


class FSDPConfig(Section):
    """How FSDP2 wraps the model."""

    fsdp_mode: FSDPMode = FSDPMode.FULL
    """How parameters lie on the ranks."""
    param_dtype: DType = DType.BFLOAT16
    """Format of the gathered parameters and of the computation."""
    master_dtype: DType = DType.FLOAT32
    """Format of the trained parameters where they are stored, and of the optimiser's moments; small updates are lost in
    bfloat16. Frozen ones, as under adapters, are stored in `param_dtype`."""
    reduce_dtype: DType = DType.FLOAT32
    """Format in which gradients are added up over micro-batches and ranks."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimiser state in the host's memory; blocks visit the device one by one."""
    reshard_after_forward: bool | None = None
    """Free a block's gathered parameters after its forward pass; unset follows `fsdp_mode`, but keeps them on a rank
    that shares its weights with nobody: true then saves the gathered copy's memory and costs time."""
    activation_checkpointing: bool = False
    """Recompute block activations in the backward pass: less memory, about a third more time."""
    torch_compile: bool = False
    """Compile each block for training; sampling stays uncompiled, since its shapes change with every token."""
    defer_grad_sync: bool = False
    """Reduce gradients once per optimiser step instead of per micro-batch: less traffic, whole gradients per rank."""
    forward_prefetch: int = Field(default=0, ge=0)
    """Blocks whose parameters are gathered ahead of the running one, beyond what FSDP2 does by itself."""
    root_wrap: bool = True
    """Shard what lies outside the blocks (embeddings, last norm), too; otherwise every rank keeps it whole."""


class OptimizerConfig(Section):
    """AdamW."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0, le=1)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0, le=100)
    """Decoupled weight decay."""


class LrSchedulerConfig(Section):
    """Learning rate over optimiser steps."""

    kind: LrSchedulerKind = LrSchedulerKind.CONSTANT
    """Shape after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final rate as a share of the peak (linear, cosine)."""


class ValueModelConfig(Section):
    """The critic of algorithms that have one: the policy's starting weights with a value head, trained by itself."""

    lora: LoraConfig | None = None
    """Adapters; unset trains every parameter. The value head is always trained."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Its own optimiser."""
    scheduler: LrSchedulerConfig = LrSchedulerConfig()
    """Its own schedule."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Its gradients are clipped to this global norm."""
