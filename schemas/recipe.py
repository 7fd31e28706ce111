"""The typed recipe of a training job. Every key is checked; unknown keys are refused.

Plug-in blocks (`algorithm`, `rewards`, `environments`, and those of `PARTS`) stay mappings here and
are validated by the plug-in's own `Config` when the recipe is loaded (`rl_core.runs.recipes`),
since schemas must not import the packages above them.
"""

from typing import Any

from pydantic import Field, model_validator

from schemas.domains import Domain
from schemas.rows.contract import SchemaName
from schemas.sections.checks.engine_checks import (
    check_ahead,
    check_continuous,
    check_extra_prompts,
    check_router_replay,
    check_server,
    check_vllm,
)
from schemas.sections.checks.evaluation_checks import check_evaluation
from schemas.sections.checks.quantization import check_quantized
from schemas.sections.checks.sampling_checks import check_sampling
from schemas.sections.data import DataConfig
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.parts import PARTS, PartBlock
from schemas.sections.placement import PlacementConfig, check_experts, check_offload
from schemas.sections.policy import (
    EmaFullConfig,
    EmaLoraConfig,
    ExportKind,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
    ValueModelConfig,
)
from schemas.sections.preference import PreferenceConfig
from schemas.sections.registration import (
    RegistrationConfig,
    RetrainingConfig,
    Start,
    Weights,
)
from schemas.sections.rewards import RewardServiceConfig
from schemas.sections.rollout import EngineKind, RolloutConfig, SyncMode
from schemas.sections.section import DType, Section
from schemas.sections.sft import SftConfig, check_sft
from schemas.sections.tracking import TrackingConfig
from schemas.sections.tracks import TracksConfig
from schemas.sections.training import EvaluationConfig, TrainingConfig, ValidationConfig
from schemas.sections.unified import UnifiedConfig
from schemas.sections.watching import WatchConfig


class Recipe(Section):
    """Complete description of one training job."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name of the job: lower case, digits, dashes."""
    domain: Domain = Domain.TEXT
    """Kind of output that the policy produces; selects the trainer."""
    seed: int = Field(default=0, ge=0, lt=2**31)
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
    """Options of each environment id, validated by the environment's Config."""
    rewards: list[dict[str, Any]] = Field(default_factory=list)
    """Scorers in addition to the environment, `{name: ..., weight: ...}` or `{target:
    my_pkg.my_module:MyReward, ...}`; their weighted scores are added to the environment's reward.
    """
    reward_service: RewardServiceConfig = RewardServiceConfig()
    """Treatment of failed scores and of truncated replies."""
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "grpo"})
    """Training algorithm, `{name: grpo, ...}` or `{target: my_pkg.my_module:MyAlgorithm, ...}`."""
    value_model: ValueModelConfig = ValueModelConfig()
    """The critic, for algorithms that have one."""
    rollout: RolloutConfig = RolloutConfig()
    diffusion: DiffusionConfig = DiffusionConfig()
    """Sampling of the diffusion model in the domains `diffusion`, `pe` and `unified`."""
    tracks: TracksConfig | None = None
    """The rewriting and the drawing model in the domain `pe`."""
    unified: UnifiedConfig | None = None
    """The text and the image stage in the domain `unified`."""
    preference: PreferenceConfig = PreferenceConfig()
    """Reading of pairs in the domains `preference` and `reward_model`."""
    sft: SftConfig = SftConfig()
    """Reading of the answers to learn in the domain `sft`."""
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    validation: ValidationConfig = ValidationConfig()
    registration: RegistrationConfig = RegistrationConfig()
    retraining: RetrainingConfig = RetrainingConfig()
    tracking: TrackingConfig = TrackingConfig()
    watch: WatchConfig = WatchConfig()
    placement: PlacementConfig = PlacementConfig()
    bundle: PartBlock | None = None
    """Class that loads the model; unset takes that of the domain."""
    backend: PartBlock | None = None
    """Class that trains the model, or options of the usual one (`block_class_names`,
    `trainable_attr`); unset takes `FSDPBackend`."""
    stack: PartBlock | None = None
    """Class that sequences loss, backward and step; unset takes that of domain and algorithm."""
    engine: PartBlock | None = None
    """Class that samples; unset takes that of the domain and `rollout.engine`."""
    sync: PartBlock | None = None
    """Class that sends weights to an engine with its own model; unset takes `WeightSync`."""
    trainer: PartBlock | None = None
    """Class of the training loop; unset takes that of the domain."""

    @model_validator(mode="after")
    def _each_track_has_devices(self) -> "Recipe":
        drawing, devices = self.drawing_devices, self.placement.num_devices
        if drawing >= devices:
            raise ValueError(
                f"tracks.images.num_devices = {drawing} of placement.num_devices = {devices} "
                f"leaves none to the language model; use 0 to {devices - 1}"
            )
        rewrites = self.training.prompts_per_step * self.rollout.samples_per_prompt
        if drawing and rewrites % drawing:
            raise ValueError(
                f"prompts_per_step x samples_per_prompt = {rewrites} rewrites do not divide into "
                f"tracks.images.num_devices = {drawing} equal parts"
            )
        return self

    @model_validator(mode="after")
    def _batches_divide(self) -> "Recipe":
        # The two answers of a pair stay together.
        pairs = self.has_pairs
        units = self.training.prompts_per_step * (1 if pairs else self.rows_per_prompt)
        placed = self.writing.placement
        replicas, name = placed.num_replicas, placed.train_devices_name
        name = "(num_devices - tracks.images.num_devices)" if self.drawing_devices else name
        name = name if replicas == placed.train_devices else f"{name} / (tp_size x sp_size)"
        parts = self.training.num_updates_per_batch * replicas
        if units % parts:
            product = f"prompts_per_step = {units} pairs"
            if not pairs:
                product = f"prompts_per_step x samples_per_prompt = {units} rows"
            raise ValueError(
                f"{product} do not divide into num_updates_per_batch x {name} = {parts} equal parts"
            )
        if self.training.prompts_per_step % replicas:
            raise ValueError(
                f"prompts_per_step = {self.training.prompts_per_step} must be a multiple of "
                f"{name} = {replicas}, so that siblings stay on one rank"
            )
        return self

    @model_validator(mode="after")
    def _curriculum_draws_alone(self) -> "Recipe":
        if self.data.curriculum is None:
            return self
        if self.data.blend is not None:
            raise ValueError(
                "data.curriculum draws prompts by their pass rate, data.blend by their source: "
                "keep one"
            )
        if self.has_pairs:
            raise ValueError(
                f"data.curriculum: pairs of the domain {self.domain} have no pass rate; leave it "
                "out"
            )
        return self

    @model_validator(mode="after")
    def _engine_has_devices_and_weights(self) -> "Recipe":
        owns_model, sync = self.rollout.engine.owns_model, self.rollout.sync
        shares = self.rollout.engine is EngineKind.VLLM and self.placement.workers_per_device > 1
        if owns_model != bool(self.placement.rollout_devices) and not shares:
            wanted = "1 or more" if owns_model else "0"
            raise ValueError(
                f"placement.rollout_devices is {self.placement.rollout_devices}; with "
                f"rollout.engine: {self.rollout.engine} it must be {wanted}"
                + (
                    ", or workers_per_device 2 or more"
                    if self.rollout.engine is EngineKind.VLLM
                    else ""
                )
            )
        if sync.mode is SyncMode.ADAPTER and self.lora is None:
            raise ValueError(
                "rollout.sync.mode: adapter sends adapters: set lora, or use mode: full"
            )
        if sync.dtype is not DType.BFLOAT16 and sync.dtype is not self.fsdp.param_dtype:
            raise ValueError(
                f"rollout.sync.dtype: {sync.dtype} is finer than fsdp.param_dtype: "
                f"{self.fsdp.param_dtype}, which both sides compute in; use bfloat16"
            )
        return self

    @model_validator(mode="after")
    def _offloaded_weights_are_not_needed(self) -> "Recipe":
        engine = self.rollout.engine
        if self.placement.offload is True:
            check_offload(engine, engine.owns_model, self.rollout.steps_ahead)
        return self

    @model_validator(mode="after")
    def _ahead_is_beside_training(self) -> "Recipe":
        check_ahead(self.rollout, self.placement, self.domain, self.training)
        return self

    @model_validator(mode="after")
    def _packed_weights_are_not_trained(self) -> "Recipe":
        check_quantized(self.model, self.lora, self.rollout, self.placement, self.domain)
        return self

    @model_validator(mode="after")
    def _experts_can_be_dealt_out(self) -> "Recipe":
        compiles, is_exact = self.fsdp.torch_compile, self.model.exact
        check_experts(self.placement.ep_size, compiles=compiles, is_exact=is_exact)
        check_router_replay(self.rollout, self.placement, self.domain, compiles=compiles)
        check_extra_prompts(self.rollout, self.placement, self.domain, self.training)
        check_continuous(self.rollout, self.placement)
        return self

    @model_validator(mode="after")
    def _vllm_can_do_it(self) -> "Recipe":
        check_server(self.rollout, self.placement)
        check_vllm(self.rollout, self.placement, self.domain)
        return self

    @model_validator(mode="after")
    def _tokens_are_drawn_where_they_are_chosen(self) -> "Recipe":
        sp_size, has_plans = self.placement.sp_size, self.unified is not None
        check_sampling(
            self.rollout, self.evaluation, self.domain, sp_size=sp_size, has_plans=has_plans
        )
        return self

    @model_validator(mode="after")
    def _pairs_are_not_sampled(self) -> "Recipe":
        if self.has_pairs and self.rollout != RolloutConfig():
            raise ValueError(
                f"rollout: nothing is sampled in the domain {self.domain}; leave the block out"
            )
        if self.has_pairs and self.data.map is not None:
            raise ValueError(
                "data.map: not for pairs; write them with rl-train data convert ROWS PAIRS.jsonl "
                "--to preference --map ..."
            )
        if self.has_pairs and self.data_source.get("name") == "default":
            raise ValueError("data.source: there are no built-in pairs; name files in data.train")
        return self

    @model_validator(mode="after")
    def _answers_are_given(self) -> "Recipe":
        check_sft(self.sft, self.rollout, self.data, teaches=self.has_answers)
        return self

    @model_validator(mode="after")
    def _tracks_are_those_of_the_domain(self) -> "Recipe":
        for name, block in (("tracks", self.tracks), ("unified", self.unified)):
            if (self.domain.traits.block == name) is (block is None):
                if block is None:
                    needed = f"needs the block {name}"
                else:
                    needed = f"has no {name}; leave the block out"
                raise ValueError(f"{name}: the domain {self.domain} {needed}")
        if self.tracks is None and self.unified is None:
            return self
        for name, value, fitting in (
            ("rollout.engine", self.rollout.engine, EngineKind.IN_PROCESS),
            ("placement.tp_size", self.placement.tp_size, 1),
            ("placement.sp_size", self.placement.sp_size, 1),
            ("placement.ep_size", self.placement.ep_size, 1),
            ("data.curriculum", self.data.curriculum, None),
            ("ema_lora / ema_full", self.ema, None),
        ):
            if value != fitting:
                said = "leave it out" if fitting is None else f"set {fitting}"
                raise ValueError(
                    f"{name}: not in the domain {self.domain}, which writes and draws; {said}"
                )
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
        if (
            self.retraining.start is Start.CHAMPION
            and self.lora
            and self.lora.export is ExportKind.ADAPTER
        ):
            raise ValueError(
                "retraining.start: champion needs whole models to start from: set lora.export: "
                "merged"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_decide(self) -> "Recipe":
        check_evaluation(self.evaluation, self.registration, self.domain)
        return self

    @model_validator(mode="after")
    def _best_metric_exists(self) -> "Recipe":
        metric = self.training.best_metric
        if metric.startswith("eval/"):
            known = ("eval/accuracy", "eval/mean_reward")
            others = self.domain.traits.has_scores or self.evaluation.scorers
            of_set = metric.split("/")[1] in self.evaluation.sets
            if not (others or of_set) and metric not in known:
                raise ValueError(
                    f"training.best_metric {metric!r}: evaluations give eval/accuracy and "
                    "eval/mean_reward"
                )
            if self.training.keep_best and not self.evaluation.eval_every:
                raise ValueError(
                    f"training.best_metric {metric!r} needs evaluation.eval_every of 1 or more"
                )
        return self

    @property
    def ema(self) -> EmaLoraConfig | EmaFullConfig | None:
        """The moving average of the weights, of either kind, or None."""
        return self.ema_lora or self.ema_full

    @property
    def images(self) -> "Recipe":
        """The recipe of the drawing model alone: this recipe, or that of the track or stage
        `images`."""
        if self.tracks is not None:
            track, kept = self.tracks.images, ("model", "lora", "fsdp", "optimizer", "scheduler")
            job = self._painting(track.samples_per_rewrite, track.micro_batch_size, track.algorithm)
            if track.num_devices:
                job["placement"] = job["placement"].model_copy(
                    update={"num_devices": track.num_devices}
                )
            return self.model_copy(update={name: getattr(track, name) for name in kept} | job)
        if self.unified is not None:
            stage = self.unified.images
            return self.model_copy(
                update=self._painting(
                    stage.samples_per_plan, stage.micro_batch_size, stage.algorithm
                )
            )
        return self

    @property
    def writing(self) -> "Recipe":
        """The recipe of the writing model alone: this recipe, on the devices that the track
        `images` leaves to it."""
        left = self.placement.num_devices - self.drawing_devices
        return self.model_copy(
            update={"placement": self.placement.model_copy(update={"num_devices": left})}
        )

    @property
    def drawing_devices(self) -> int:
        """Number of devices reserved for the track `images`."""
        if self.tracks:
            return self.tracks.images.num_devices
        return 0

    @property
    def joined_devices(self) -> list[int]:
        """Number of devices that each worker of the engine uses as one; empty if those have one
        each."""
        size = self.rollout.vllm.devices_per_server
        return [size] * (self.placement.rollout_devices // size) if size > 1 else []

    def _painting(
        self, num_samples: int, micro_batch_size: int, algorithm: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the fields that the recipe of a track or stage `images` overrides."""
        return {
            **dict.fromkeys(PARTS),
            "domain": Domain.DIFFUSION,
            "tracks": None,
            "unified": None,
            "algorithm": algorithm,
            "rollout": self.rollout.model_copy(update={"samples_per_prompt": num_samples}),
            "placement": self.placement.model_copy(update={"micro_batch_size": micro_batch_size}),
        }

    @property
    def offloads(self) -> bool:
        """True if the trainer's memory is freed while an engine samples."""
        return self.placement.offloads(owns_model=self.rollout.engine.owns_model)

    @property
    def data_source(self) -> dict[str, Any]:
        """The block `data.source`, or that of the domain's own source."""
        return self.data.source or {"name": self.domain.traits.source}

    @property
    def draws(self) -> bool:
        """True if rows are prompts for images or videos."""
        return self.domain.traits.rows is SchemaName.MEDIA

    @property
    def has_pairs(self) -> bool:
        """True if each row holds a better and a worse answer."""
        return self.domain.traits.rows is SchemaName.PREFERENCE

    @property
    def has_answers(self) -> bool:
        """True if each row holds the answers to learn."""
        return self.domain.traits.rows is SchemaName.CONVERSATION

    @property
    def rows_per_prompt(self) -> int:
        """Rows of a step that belong to one prompt: the samples of a group, the two answers of a
        pair, or the one row that holds the answers to learn."""
        if self.has_answers:
            return 1
        if self.has_pairs:
            return 2
        return self.rollout.samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Number of optimizer steps in one training step."""
        return self.training.num_updates_per_batch * self.training.num_epochs

    @property
    def registered_name(self) -> str:
        return self.registration.model_name or f"rl-train-{self.name}"

    def evaluates_after(self, iteration: int) -> bool:
        """Return True if an evaluation of the live weights follows this iteration. The last
        iteration has one only where it is compared with earlier ones; its export has its own."""
        every, last = self.evaluation.eval_every, iteration == self.training.num_iterations
        if last and self.registration.from_ is Weights.BEST:
            return True
        return bool(every) and iteration % every == 0 and iteration < self.training.num_iterations
