"""The recipe's `rollout` block: how the policy is sampled, and how a dedicated engine gets its weights."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.numbers import Seconds
from schemas.section import DType, Section


class EngineKind(StrEnum):
    """What samples the policy."""

    IN_PROCESS = "in_process"
    """The trained module itself, on the devices that train it."""
    DEDICATED = "dedicated"
    """A model of its own on devices of its own (`placement.rollout_devices`), which is sent the weights."""
    VLLM = "vllm"
    """As `dedicated`, sampled by vLLM, which runs in an environment of its own: one server a device. With
    `rollout_devices: 0` and `workers_per_device: 2` these are the devices that train."""

    @property
    def owns_model(self) -> bool:
        """Whether it holds a model of its own beside the trained one."""
        return self is not EngineKind.IN_PROCESS


class SyncTransport(StrEnum):
    """How weights reach a dedicated engine."""

    OBJECT_STORE = "object_store"
    """Ray's object store, through the host's memory: each machine fetches a bucket once."""
    BROADCAST = "broadcast"
    """A collective from the trainer's first rank to all engine ranks: NCCL between GPUs, gloo otherwise."""


class SyncMode(StrEnum):
    """Which tensors a dedicated engine is sent."""

    FULL = "full"
    """Every weight; adapters are merged into theirs first, so that the engine samples a plain model."""
    ADAPTER = "adapter"
    """The adapters alone, added to a base that the engine loads itself: little to send, and no rounding of the sum."""


class SyncConfig(Section):
    """How a dedicated engine gets the trainer's weights."""

    transport: SyncTransport = SyncTransport.OBJECT_STORE
    """The way they go."""
    mode: SyncMode | None = None
    """What goes; unset means `adapter` with `lora`, else `full`."""
    bucket_bytes: int = Field(default=2**26, ge=4)
    """Weights travel in buckets of this size; a large tensor spans several. A few buckets exist at once."""
    dtype: DType = DType.BFLOAT16
    """Format on the wire; `float32` only where `fsdp.param_dtype` is."""

    def mode_for(self, *, has_adapters: bool) -> SyncMode:
        """`mode`, or what it means when unset."""
        return self.mode or (SyncMode.ADAPTER if has_adapters else SyncMode.FULL)


class VllmConfig(Section):
    """The vLLM servers of `engine: vllm`; `max_context_length` and `max_batch_size` are theirs too."""

    python: str = ".venv-vllm/bin/python"
    """Interpreter of the environment that has vLLM; a relative path starts at the project's folder."""
    memory_share: float = Field(default=0.85, gt=0, le=1)
    """Of each GPU, for weights, keys and values together."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory for keys and values of each server; unset is what `memory_share` leaves, and 4 on a CPU."""
    sleep: bool = False
    """Give a GPU's memory back while the trainer trains; the weights of the next step wake the server. Where both
    share a GPU, what the trainer keeps there and `memory_share` must fit together."""


class EpisodeConfig(Section):
    """How environments are waited for."""

    step_timeout_s: Seconds = Field(default=300.0, gt=0)
    """Most time for one call of an environment (its start, a step, its end); a row that takes longer fails."""
    episode_timeout_s: Seconds = Field(default=1800.0, gt=0)
    """Most time for all calls of one episode together, without the policy's own."""
    patience_s: Seconds = Field(default=1.0, ge=0)
    """How long rows that are ready wait for the environments of others before they are decoded without them. Quicker
    environments make the same batches, and thereby the same samples, in every run."""
    at_once: int = Field(default=64, ge=1)
    """Most environments at work at the same time in one rank."""
    keep_earlier_turns: bool = False
    """Play several turns although the chat template changes turns that are over, as Qwen3's leaves out their reasoning:
    they stay as they were sampled, which is then not what the template writes. Otherwise such a run is refused."""


class RolloutConfig(Section):
    """How the policy is sampled."""

    engine: EngineKind = EngineKind.IN_PROCESS
    """What samples."""
    sync: SyncConfig = SyncConfig()
    """How a dedicated engine gets its weights."""
    vllm: VllmConfig = VllmConfig()
    """With `engine: vllm`, its servers."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Group size G: siblings that share a prompt."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Limit per turn."""
    max_context_length: int | None = Field(default=None, ge=2)
    """Limit of prompt, replies and observations together; a reply that reaches it is cut off and graded. Unset: 2048,
    or as many as the model has positions for if those are fewer. More than that is refused."""
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    """Softmax temperature of sampling; the log-probabilities are those of the tempered distribution."""
    max_delta_log_prob: float | None = Field(default=None, gt=0)
    """Most that the trainer's log-probabilities of a step's tokens may differ from the engine's in the mean; the run
    stops beyond it. Unset: 0.01 where both compute in float32, 0.1 in process in bfloat16, 0.2 with an engine of its
    own, and no limit for rollouts that are a step old."""
    keep_special_tokens: list[str] | None = None
    """Special tokens that stay in the text of a reply as environments read it, such as `<search>` or `[TOOL_CALLS]`.
    Unset keeps all but the control tokens of the chat template (of a model that sees pictures: none). Those in the
    `tags` of a row's environment stay in any case; what ends a reply, begins a text or pads it never does."""
    max_batch_size: int = Field(default=256, ge=1)
    """Most rows decoded at once."""
    cuda_graphs: bool = True
    """Record the decoding steps of usual models as CUDA graphs on a GPU, several times quicker; off where a model's
    layers do what cannot be recorded. The in-process and the dedicated engine read it."""
    steps_ahead: Literal[0, 1] = 0
    """1: an engine on devices of its own samples a step while the step before it trains, with weights that are one step
    old; `algorithm.correction` weighs that distance. No rollout is started ahead of a checkpoint."""
    episodes: EpisodeConfig = EpisodeConfig()
    """How environments are waited for."""

    def sync_for(self, *, has_adapters: bool) -> SyncConfig:
        """`sync` with its mode said. vLLM is sent whole weights, adapters merged."""
        full = self.engine is EngineKind.VLLM and self.sync.mode is None
        mode = SyncMode.FULL if full else self.sync.mode_for(has_adapters=has_adapters)
        return self.sync.model_copy(update={"mode": mode})
