"""The recipe's blocks about one trained model: weights, adapters, moving averages and optimizer."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.sections.optimizer import OptimizerConfig
from schemas.sections.section import DType, Section

RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        *("messages", "conversation", "add_generation_prompt", "continue_final_message"),
        *(
            "tokenize",
            "return_dict",
            "return_tensors",
            "return_assistant_tokens_mask",
            "sanitize_control_tokens",
        ),
        *(
            "padding",
            "truncation",
            "max_length",
            "tokenizer_kwargs",
            "processor_kwargs",
            "load_audio_from_video",
        ),
    }
)
"""Arguments of `apply_chat_template` that preparation and rollout set themselves."""


def reserved_template_kwargs(template_kwargs: Mapping[str, object]) -> str:
    """Return the problem of a chat template's options as a sentence, or an empty string if there is
    none."""
    taken = sorted(RESERVED_TEMPLATE_KWARGS & set(template_kwargs))
    if not taken:
        return ""
    return (
        f"{', '.join(taken)} cannot be set: the rollout decides it (a prompt that ends with the "
        "assistant's message is continued, any other opens the assistant's turn); keep only "
        "variables of the template, such as enable_thinking"
    )


class FSDPMode(StrEnum):
    """Sharding of parameters over the ranks."""

    FULL = "full"
    """Shard parameters, gradients and optimizer state; gather parameters again in the backward pass
    (ZeRO-3)."""
    GRAD_OP = "grad_op"
    """Keep parameters gathered between forward and backward (ZeRO-2): more memory, less traffic."""


class LrSchedulerKind(StrEnum):
    """Shape of the learning-rate schedule after the warm-up."""

    CONSTANT = "constant"
    """Constant peak rate."""
    LINEAR = "linear"
    """Linear decay from the peak to the minimum."""
    COSINE = "cosine"
    """Cosine decay from the peak to the minimum (arXiv 1608.03983)."""


class EmaWarmup(StrEnum):
    """Growth of a moving average's decay to its final value over the updates n = 0, 1, ..."""

    NONE = "none"
    """Final decay from the first update on."""
    RATIO = "ratio"
    """Decay (1 + n) / (10 + n): early averages forget the initial weights quickly."""
    RAMP = "ramp"
    """Decay n * ramp_step, as in DiffusionNFT (arXiv 2509.16117)."""


class ExportKind(StrEnum):
    """Content of an export of a policy with adapters."""

    MERGED = "merged"
    """A plain model, with the adapters merged into its weights."""
    ADAPTER = "adapter"
    """The adapters alone, in peft's format, with the name of the base model."""


class ModelPart(StrEnum):
    """A part of a vision-language model."""

    VISION_TOWER = "vision_tower"
    """Vision encoder, from pixels to features."""
    PROJECTOR = "projector"
    """Projector from vision features to the embedding space of the language model."""
    LANGUAGE_MODEL = "language_model"
    """Language model that reads text and image features and generates the reply."""


class ModelConfig(Section):
    """Initial weights of the policy, and how they are loaded and run."""

    path: str = Field(pattern=r"\S")
    """Local folder, Hugging Face id (`name` or `name@revision`), or an embedded model that needs no
    download: `embedded:smollm2-135m-instruct`, `embedded:smollm2-enhancer`,
    `embedded:smollm2-adder`, `embedded:tiny-vlm`, `embedded:tiny-sd3`, `embedded:tiny-unified`."""
    frozen: list[ModelPart] | None = None
    """Parts of a vision-language model that are not trained and get no adapters; unset freezes the
    vision tower. In the domain `text` everything but the language model is frozen."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking`, for both the length filter and the
    rollout."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers."""
    exact: bool = False
    """Batch-invariant computation: a token's log-probability has the same bits in the rollout and
    in training, whatever else is in the batch, so that the ratio of a first update is exactly 1.
    For CPUs, in-process rollout and no packing; several times slower, and refused for models that
    it does not work for."""
    dropout: bool = False
    """Apply the dropout of the model's own config (attention, residuals, router noise) in the
    training passes. Rollout and reference passes never do, so the policy that is updated then
    differs from the policy that sampled."""
    quantize: Literal["nf4"] | None = None
    """Store the weights of the blocks' linear layers in 4 bits (QLoRA, arXiv 2305.14314), beneath
    adapters; needs `lora` and the extra `bitsandbytes`. The run's model is the rounded one, also
    when it is exported."""
    trust_remote_code: bool = False
    """Run Python code that is stored with the weights, for families whose classes are not in a
    library (HunyuanImage-3.0)."""

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
    """Dropout inside the adapter; leave it at 0 so that rollout and training agree."""
    target_modules: list[str] | None = None
    """Names of the adapted linear layers; unset means the model family's own list."""
    export: ExportKind = ExportKind.MERGED
    """Content of the exported folder."""


class EmaConfig(Section):
    """An exponential moving average of the trained weights: shadow = decay * shadow + (1 - decay) *
    weights."""

    decay: float = Field(default=0.999, ge=0, lt=1)
    """Final decay per optimizer step."""
    warmup: EmaWarmup = EmaWarmup.NONE
    """Growth of the decay to its final value."""
    ramp_step: float = Field(default=0.001, gt=0)
    """With `warmup: ramp`: growth of the decay per update."""
    evaluate: bool = True
    """Evaluate and export the average instead of the trained weights."""


class EmaLoraConfig(EmaConfig):
    """Moving average of the adapters, kept as a second, frozen adapter; needs `lora`."""

    rollout: bool = False
    """Sample rollouts with the average; the old log-probabilities are then those of the average,
    too."""


class EmaFullConfig(EmaConfig):
    """Moving average of every trained tensor, sharded like the model."""

    mirror: bool = False
    """Keep the average as a second, frozen model that can run forward passes, instead of as bare
    tensors."""
    rollout: bool = False
    """Sample rollouts with the average (needs `mirror`); the old log-probabilities are then those
    of the average, too."""

    @model_validator(mode="after")
    def _rollout_needs_a_model(self) -> "EmaFullConfig":
        if self.rollout and not self.mirror:
            raise ValueError("rollout: true needs mirror: true, a second model to sample with")
        return self


class FSDPConfig(Section):
    """FSDP2 wrapping of a model."""

    fsdp_mode: FSDPMode = FSDPMode.FULL
    """Sharding of parameters over the ranks."""
    param_dtype: DType = DType.BFLOAT16
    """Data type of the gathered parameters and of the computation."""
    master_dtype: DType = DType.FLOAT32
    """Data type in which trained parameters and the optimizer's moments are stored; small updates
    are lost in bfloat16. Frozen parameters, as under adapters, are stored in `param_dtype`."""
    reduce_dtype: DType = DType.FLOAT32
    """Data type in which gradients are summed over micro-batches and ranks."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory; blocks are moved to the device
    one at a time."""
    reshard_after_forward: bool | None = None
    """Free a block's gathered parameters after its forward pass. Unset follows `fsdp_mode`, except
    on a rank that shares its weights with no other rank, which keeps them: `true` there saves the
    memory of the gathered copy and costs time."""
    activation_checkpointing: bool = False
    """Recompute block activations in the backward pass: less memory, about a third more time."""
    torch_compile: bool = False
    """Compile each block for training; sampling stays uncompiled, since its shapes change with
    every token."""
    defer_grad_sync: bool = False
    """Reduce gradients once per optimizer step instead of per micro-batch: less traffic, but whole
    gradients on each rank."""
    forward_prefetch: int = Field(default=0, ge=0)
    """Number of blocks whose parameters are gathered ahead of the running one, on top of FSDP2's
    own prefetching."""
    root_wrap: bool = True
    """Shard the parameters outside the blocks (embeddings, last norm), too; otherwise every rank
    keeps them whole."""


class LrSchedulerConfig(Section):
    """Learning-rate schedule over optimizer steps."""

    kind: LrSchedulerKind = LrSchedulerKind.CONSTANT
    """Shape of the schedule after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final rate as a share of the peak (linear, cosine)."""


class ValueModelConfig(Section):
    """The critic of algorithms that have one: the policy's initial weights with a value head,
    trained separately."""

    lora: LoraConfig | None = None
    """Adapters of the critic; unset trains every parameter. The value head is always trained."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer of the critic."""
    scheduler: LrSchedulerConfig = LrSchedulerConfig()
    """Learning-rate schedule of the critic."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global norm to which the critic's gradients are clipped."""
