"""The typed recipe: what to train. Every key is checked; a key nobody knows is refused.

Plug-in blocks (`algorithm`, `rewards`, `environments`) stay mappings here and are validated by the plug-in's own
`Config` when the recipe is loaded (`rl_core.recipes`), since schemas import nothing from above.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.data import DataConfig
from schemas.placement import PlacementConfig
from schemas.preference import PreferenceConfig
from schemas.registration import RegistrationConfig, RetrainingConfig, Start
from schemas.rewards import RewardServiceConfig
from schemas.rollout import EngineKind, RolloutConfig, SyncMode
from schemas.section import DType, Section


class Domain(StrEnum):
    """What a policy produces; selects the trainer."""

    TEXT = "text"
    """Tokens of a language model, single- or multi-turn."""
    VISION = "vision"
    """Tokens of a vision-language model, whose prompts show pictures."""
    PREFERENCE = "preference"
    """Nothing is sampled: rows hold a better and a worse answer each."""
    DIFFUSION = "diffusion"
    """Pictures or videos of a flow-matching model, denoised from prompts."""


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
    """A local folder, a Hugging Face id (`name` or `name@revision`), `embedded:smollm2-135m-instruct`, or
    `embedded:tiny-vlm`."""
    frozen: list[ModelPart] | None = None
    """Parts of a vision-language model that are not trained and get no adapters; unset freezes the vision tower."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the tokenizer's chat template, in the length filter and in the rollout alike."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers."""


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
    """Format of the stored parameters and of the optimiser's moments; small updates are lost in bfloat16."""
    reduce_dtype: DType = DType.FLOAT32
    """Format in which gradients are added up over micro-batches and ranks."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimiser state in the host's memory; blocks visit the device one by one."""
    reshard_after_forward: bool | None = None
    """Free a block's gathered parameters after its forward pass; unset follows `fsdp_mode`."""
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

    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
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


class TrainingConfig(Section):
    """How long to train, and in what portions."""

    num_iterations: int = Field(default=4, ge=1)
    """Train-iteration tasks; each ends in a complete checkpoint."""
    steps_per_iteration: int = Field(default=5, ge=1)
    """Turns of the loop in one iteration."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Different prompts in one rollout."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps one rollout is split into."""
    num_updates_per_batch: int = Field(default=1, ge=1)
    """Passes over one rollout with the old log-probabilities frozen."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this global norm."""
    keep_last: int = Field(default=2, ge=1)
    """Newest complete checkpoints kept; older ones are removed."""
    keep_best: int = Field(default=0, ge=0)
    """Checkpoints kept besides, for having the highest `best_metric`."""
    best_metric: str = "reward_mean"
    """A metric of the iteration, or a score such as `eval/accuracy` where evaluations follow iterations."""


class EvaluationConfig(Section):
    """How the held-out rows are scored."""

    eval_every: int = Field(default=0, ge=0)
    """Evaluate after every so many iterations; 0 means only before and after training."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Room to answer, which may exceed the rollout's."""
    batch_size: int = Field(default=64, ge=1)
    """Rows decoded at once (greedy)."""


class Recipe(Section):
    """One training job."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name of the job: lower case, digits, dashes."""
    domain: Domain = Domain.TEXT
    """Which trainer runs it."""
    seed: int = Field(default=0, ge=0)
    """Seed of data order, sampling and initialisation."""
    model: ModelConfig
    lora: LoraConfig | None = None
    """Adapters; unset trains every parameter."""
    ema_lora: EmaLoraConfig | None = None
    """Moving average of the adapters; unset keeps none."""
    ema_full: EmaFullConfig | None = None
    """Moving average of the trained weights; unset keeps none."""
    fsdp: FSDPConfig = FSDPConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: LrSchedulerConfig = LrSchedulerConfig()
    data: DataConfig
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options per environment id, validated by the environment's Config."""
    rewards: list[dict[str, Any]] = Field(default_factory=list)
    """Scorers beside the environment, `{name: ..., weight: ...}` or `{target: my_pkg.my_module:MyReward, ...}`; their
    weighted scores are added to the environment's reward."""
    reward_service: RewardServiceConfig = RewardServiceConfig()
    """What becomes of scores that fail, and of replies that were cut off."""
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "grpo"})
    """`{name: grpo, ...}` or `{target: my_pkg.my_module:MyAlgorithm, ...}`."""
    value_model: ValueModelConfig = ValueModelConfig()
    """The critic, where the algorithm has one."""
    rollout: RolloutConfig = RolloutConfig()
    preference: PreferenceConfig = PreferenceConfig()
    """How pairs are read, in the domain `preference`."""
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    registration: RegistrationConfig = RegistrationConfig()
    retraining: RetrainingConfig = RetrainingConfig()
    placement: PlacementConfig = PlacementConfig()

    @model_validator(mode="after")
    def _batches_divide(self) -> "Recipe":
        rows = self.training.prompts_per_step * self.rows_per_prompt
        replicas = self.placement.num_replicas
        name = self.placement.train_devices_name
        name = name if replicas == self.placement.train_devices else f"{name} / (tp_size x sp_size)"
        parts = self.training.num_mini_batches * replicas
        if rows % parts:
            raise ValueError(
                f"prompts_per_step x {self._rows_per_prompt_name} = {rows} rows do not divide into num_mini_batches x "
                f"{name} = {parts} equal parts"
            )
        if self.training.prompts_per_step % replicas:
            raise ValueError(
                f"prompts_per_step = {self.training.prompts_per_step} must be a multiple of {name} = "
                f"{replicas}, so that siblings stay on one rank"
            )
        return self

    @model_validator(mode="after")
    def _curriculum_draws_alone(self) -> "Recipe":
        if self.data.curriculum is None:
            return self
        if self.data.blend is not None:
            raise ValueError("data.curriculum draws prompts by their pass rate, data.blend by their source: keep one")
        if self.domain is Domain.PREFERENCE:
            raise ValueError("data.curriculum: pairs of the domain preference have no pass rate; leave it out")
        return self

    @model_validator(mode="after")
    def _engine_has_devices_and_weights(self) -> "Recipe":
        dedicated, sync = self.rollout.engine is EngineKind.DEDICATED, self.rollout.sync
        if dedicated != bool(self.placement.rollout_devices):
            wanted = "1 or more" if dedicated else "0"
            raise ValueError(
                f"placement.rollout_devices is {self.placement.rollout_devices}; with rollout.engine: "
                f"{self.rollout.engine} it must be {wanted}"
            )
        if sync.mode is SyncMode.ADAPTER and self.lora is None:
            raise ValueError("rollout.sync.mode: adapter sends adapters: set lora, or use mode: full")
        if sync.dtype is not DType.BFLOAT16 and sync.dtype is not self.fsdp.param_dtype:
            raise ValueError(
                f"rollout.sync.dtype: {sync.dtype} is finer than fsdp.param_dtype: {self.fsdp.param_dtype}, which both "
                "sides compute in; use bfloat16"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_not_sampled(self) -> "Recipe":
        if self.domain is Domain.PREFERENCE and self.rollout != RolloutConfig():
            raise ValueError("rollout: nothing is sampled in the domain preference; leave the block out")
        return self

    @model_validator(mode="after")
    def _one_average_of_what_is_trained(self) -> "Recipe":
        if self.ema_lora is not None and self.lora is None:
            raise ValueError("ema_lora follows an adapter: set lora, or use ema_full")
        if self.ema_lora is not None and self.ema_full is not None:
            raise ValueError("ema_lora and ema_full exclude each other: keep one")
        return self

    @model_validator(mode="after")
    def _champion_is_a_whole_model(self) -> "Recipe":
        if self.retraining.start is Start.CHAMPION and self.lora and self.lora.export is ExportKind.ADAPTER:
            raise ValueError("retraining.start: champion needs whole models to start from: set lora.export: merged")
        return self

    @model_validator(mode="after")
    def _best_metric_exists(self) -> "Recipe":
        metric = self.training.best_metric
        if metric.startswith("eval/"):
            if self.domain is Domain.TEXT and metric not in ("eval/accuracy", "eval/mean_reward"):
                raise ValueError(
                    f"training.best_metric {metric!r}: evaluations give eval/accuracy and eval/mean_reward"
                )
            if self.training.keep_best and not self.evaluation.eval_every:
                raise ValueError(f"training.best_metric {metric!r} needs evaluation.eval_every of 1 or more")
        return self

    @property
    def ema(self) -> EmaLoraConfig | EmaFullConfig | None:
        """The moving average, of either kind."""
        return self.ema_lora or self.ema_full

    @property
    def rows_per_prompt(self) -> int:
        """Rows of a step that belong to one prompt: the samples of a group, or the two answers of a pair."""
        return 2 if self.domain is Domain.PREFERENCE else self.rollout.samples_per_prompt

    @property
    def _rows_per_prompt_name(self) -> str:
        return "2 answers" if self.domain is Domain.PREFERENCE else "samples_per_prompt"

    @property
    def registered_name(self) -> str:
        return self.registration.model_name or f"rl-train-{self.name}"

    def evaluates_after(self, iteration: int) -> bool:
        """Whether an evaluation follows this iteration; the last one has its own."""
        every = self.evaluation.eval_every
        return bool(every) and iteration % every == 0 and iteration < self.training.num_iterations
