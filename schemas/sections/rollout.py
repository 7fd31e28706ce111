"""The recipe's `rollout` block: sampling of the policy, and weight sync to a dedicated engine."""

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator, model_validator

from schemas.sections.checks.numbers import Seconds
from schemas.sections.sampling import SamplingConfig
from schemas.sections.section import DType, Section

MOST_AHEAD = 64
"""Largest number of steps that may be sampled ahead: weights of that age teach nothing more."""


class EngineKind(StrEnum):
    """Engine that samples the policy."""

    IN_PROCESS = "in_process"
    """The trained module itself, on the devices that train it."""
    DEDICATED = "dedicated"
    """A separate model on its own devices (`placement.rollout_devices`), which receives the
    weights."""
    VLLM = "vllm"
    """Like `dedicated`, but sampled by vLLM in its own Python environment, one server per device.
    With `rollout_devices: 0` and `workers_per_device: 2` the servers share the training devices."""

    SERVER = "server"
    """Like `vllm`, but the servers, of vLLM or SGLang, are there already (`rollout.server`), one or
    several for each of `placement.rollout_devices`."""

    @property
    def is_vllm(self) -> bool:
        """True if a server of vLLM or SGLang samples."""
        return self in (EngineKind.VLLM, EngineKind.SERVER)

    @property
    def owns_model(self) -> bool:
        """True if the engine holds its own copy of the model."""
        return self is not EngineKind.IN_PROCESS


class SyncTransport(StrEnum):
    """Transport of weights to a dedicated engine."""

    OBJECT_STORE = "object_store"
    """Ray's object store, through host memory: each machine fetches a bucket once."""
    BROADCAST = "broadcast"
    """A collective from the trainer's first rank to all engine ranks: NCCL between GPUs, gloo
    otherwise."""
    SHARDS = "shards"
    """Collectives from each of the trainer's ranks to all engine ranks, at once: each sends the
    rows that it holds, and nothing is gathered but what is cut otherwise (`tp_size`, `ep_size`), or
    merged with adapters."""

    @property
    def is_collective(self) -> bool:
        """True if engine and trainer take part at the same time."""
        return self is not SyncTransport.OBJECT_STORE


class SyncMode(StrEnum):
    """Set of tensors that a dedicated engine receives."""

    FULL = "full"
    """All weights; adapters are merged first, so that the engine samples a plain model."""
    ADAPTER = "adapter"
    """The adapters alone, added to a base that the engine loads itself: little to send, and no
    rounding of the sum."""


class SyncContent(StrEnum):
    """Part of each tensor that is sent."""

    ALL = "all"
    """Every number."""
    CHANGES = "changes"
    """The numbers that changed in the format in which they are sent: at the learning rates of RL a
    few percent. The rank that sends keeps a copy of what was sent in its machine's memory, and
    compares on its CPU."""


class SyncConfig(Section):
    """Weight sync from the trainer to a dedicated engine."""

    transport: SyncTransport = SyncTransport.OBJECT_STORE
    """Transport of the weights."""
    mode: SyncMode | None = None
    """Set of tensors to send; unset means `adapter` with `lora`, else `full`, and always `full` to
    vLLM. With `adapter` a server of `engine: vllm` loads the adapters beside their base."""
    content: SyncContent = SyncContent.ALL
    """Part of each tensor that is sent; the first sync sends all of it."""
    bucket_bytes: int = Field(default=2**26, ge=4)
    """Size of the buckets in which weights are sent; a large tensor spans several. A few buckets
    exist at once."""
    dtype: DType = DType.BFLOAT16
    """Data type of the sent weights; `float32` needs `fsdp.param_dtype: float32`."""

    @model_validator(mode="after")
    def _changes_are_found_by_one_rank(self) -> "SyncConfig":
        if self.transport is SyncTransport.SHARDS and self.content is SyncContent.CHANGES:
            raise ValueError(
                "rollout.sync.content: changes: with transport: shards no rank knows all that was "
                "sent; use content: all, or transport: broadcast"
            )
        return self

    def mode_for(self, *, has_adapters: bool) -> SyncMode:
        """Return `mode`, or its default if unset."""
        return self.mode or (SyncMode.ADAPTER if has_adapters else SyncMode.FULL)


OWN_ARGUMENTS = {
    "block_size": "nothing: the run chooses it",
    "data_parallel_size": "placement.rollout_devices",
    "distributed_executor_backend": "nothing: the run chooses it",
    "dtype": "fsdp.param_dtype",
    "enable_lora": "rollout.sync.mode",
    "enable_prefix_caching": "nothing: siblings share a prefill",
    "enable_sleep_mode": "rollout.vllm.sleep",
    "generation_config": "rollout",
    "gpu_memory_utilization": "rollout.vllm.memory_share",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_gib",
    "logits_processors": "rollout",
    "logprobs_mode": "nothing: the trainer needs those of what was sampled",
    "max_cpu_loras": "nothing: the run chooses it",
    "max_lora_rank": "lora.rank",
    "max_loras": "nothing: the run chooses it",
    "max_model_len": "rollout.max_context_length",
    "max_num_seqs": "rollout.max_batch_size",
    "model": "model.path",
    "pipeline_parallel_size": "rollout.vllm.pipeline_parallel_size",
    "seed": "seed",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel_size",
    "tokenizer": "model.path",
    "worker_extension_cls": "nothing: the run chooses it",
}
"""Arguments of vLLM's engine that the run sets, and what sets them in a recipe."""


class VllmConfig(Section):
    """The vLLM servers of `engine: vllm`, which also use `max_context_length` and
    `max_batch_size`."""

    python: str = ".venv-vllm/bin/python"
    """Python interpreter of the environment with vLLM; a relative path starts at the project's
    folder."""
    memory_share: float = Field(default=0.85, gt=0, le=1)
    """Share of each GPU's memory for weights and KV cache together."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory in GiB for the KV cache of each server; unset uses what `memory_share` leaves, and 4
    on a CPU."""
    sleep: bool = False
    """Release a GPU's memory while the trainer trains; the weights of the next step wake the
    server. If both share a GPU, the memory that the trainer keeps and `memory_share` must fit
    together."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Devices of one server that share each weight matrix; must divide the model's attention heads.
    `placement.rollout_devices` are divided among servers of `tensor_parallel_size` x
    `pipeline_parallel_size` devices, which are the replicas."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Groups of devices of one server that hold a part of the layers each."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's engine, `{enable_chunked_prefill: false, quantization: fp8}`,
    compared with those of the installed version."""

    @property
    def devices_per_server(self) -> int:
        """Number of devices that one server computes on."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @field_validator("arguments", mode="after")
    @classmethod
    def _run_sets_the_rest(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name in OWN_ARGUMENTS:
                raise ValueError(f"the run sets {name} itself; change {OWN_ARGUMENTS[name]}")
        return arguments


class ServerKind(StrEnum):
    """Software of servers that somebody else started."""

    VLLM = "vllm"
    """vLLM, started with VLLM_SERVER_DEV_MODE=1, `--logprobs-mode processed_logprobs` and
    `--generation-config vllm`."""
    SGLANG = "sglang"
    """SGLang, which heeds the seeds of a run with `--enable-deterministic-inference`."""


class ServerConfig(Section):
    """The servers of `engine: server`."""

    kind: ServerKind = ServerKind.VLLM
    """Software of all of them."""
    urls: list[str] = Field(min_length=1)
    """Addresses of the servers, such as `http://10.0.0.7:8000`; each belongs to this run alone. A
    rank of the engine with several gives each request to the one with the fewest tokens before
    it."""
    folder: str
    """Folder that the engine's ranks and the servers see under the same path; weights pass through
    it."""
    reload: str | None = None
    """Method of vLLM's workers that loads the weights of a folder; unset takes `reload_weights`. On
    CPUs `reload_on_cpu`, of `--worker-extension-cls
    rl_core.rollout.vllm_process.worker_extension.CpuReload`."""


class EpisodeConfig(Section):
    """Timeouts and concurrency of environment calls."""

    step_timeout_s: Seconds = Field(default=300.0, gt=0)
    """Longest time for one environment call (start, step, end) in seconds; a row that takes longer
    fails."""
    episode_timeout_s: Seconds = Field(default=1800.0, gt=0)
    """Longest time for all environment calls of one episode in seconds, without the policy's own
    time."""
    patience_s: Seconds = Field(default=1.0, ge=0)
    """Seconds that ready rows wait for the environments of other rows before they are decoded
    without them. With environments faster than this, every run makes the same batches, and thereby
    the same samples."""
    continuous: bool = False
    """Answer each request of an agent as it comes: it joins the replies that are being sampled, and
    goes back as soon as it ends, so a slow episode holds up no other. Which rows are computed
    beside each other then depends on time, and with it the last bits of the log-probabilities,
    unless `model.exact`. Otherwise the requests of all episodes are gathered, and answered
    together. On a GPU the in-process and the dedicated engine join rows without `cuda_graphs`."""
    at_once: int = Field(default=64, ge=1)
    """Maximum number of environments that run concurrently in one rank."""
    keep_earlier_turns: bool = False
    """Keep earlier turns as sampled if the chat template would change them, as Qwen3's template
    drops their reasoning; the conversation then differs from what the template renders. Otherwise
    such a multi-turn run is refused."""


class RolloutConfig(SamplingConfig):
    """Sampling of the policy."""

    engine: EngineKind = EngineKind.IN_PROCESS
    """Engine that samples."""
    sync: SyncConfig = SyncConfig()
    """Weight sync to a dedicated engine."""
    vllm: VllmConfig = VllmConfig()
    """The vLLM servers of `engine: vllm`."""
    server: ServerConfig | None = None
    """The servers of `engine: server`, which somebody else started."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Group size G: siblings that share a prompt."""
    extra_prompts: int = Field(default=0, ge=0)
    """Prompts that a step samples beyond `training.prompts_per_step`: once that many groups have
    ended, the others are given up, so that the longest replies hold up no step. Groups of short
    replies are more likely to end in time. In environments of several turns the first decides."""
    carry_over: int = Field(default=0, ge=0, le=MOST_AHEAD)
    """Steps that such a group is carried over instead of being given up: its replies go on with the
    next step's weights, and a step waits for a group that was carried over this often. None is
    under way at a checkpoint."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest reply per turn in tokens."""
    max_context_length: int | None = Field(default=None, ge=2)
    """Longest sequence of prompt, replies and observations in tokens; a reply that reaches it is
    truncated and graded. Unset: 2048, or the number of positions of the model if that is smaller. A
    larger value is refused."""
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    """Softmax temperature of sampling; the log-probabilities are those of the tempered
    distribution."""
    max_delta_log_prob: float | None = Field(default=None, gt=0)
    """Largest allowed mean difference between the trainer's and the engine's log-probabilities of a
    step's tokens; the run stops where it is exceeded by more than chance (two standard errors over
    the step's rows). Unset: 0.01 if both compute in float32, 0.1 in process in bfloat16, 0.2 with a
    separate engine, and no limit for rollouts that are one step old."""
    keep_special_tokens: list[str] | None = None
    """Special tokens that are kept in the text of a reply as environments read it, such as
    `<search>` or `[TOOL_CALLS]`. Unset keeps all but the control tokens of the chat template (and
    none for vision-language models). The `tags` of a row's environment are always kept;
    end-of-reply, begin-of-text and padding tokens never are."""
    max_batch_size: int = Field(default=256, ge=1)
    """Maximum number of rows that are decoded at once."""
    cuda_graphs: bool = True
    """Record the decoding steps as CUDA graphs on a GPU, several times faster; off for models with
    layers that cannot be recorded. Used by the in-process and the dedicated engine."""
    router_replay: bool = False
    """Train each token of a mixture of experts with the experts that computed it in sampling (R3,
    arXiv 2510.11370), in the passes of the policy: the router still weighs them, and is trained.
    Otherwise a router that decides anew, with other roundings or newer weights, sends tokens to
    other experts. For `engine: in_process` and `dedicated`."""
    steps_ahead: int = Field(default=0, ge=0, le=MOST_AHEAD)
    """Number of steps that an engine on its own devices samples ahead of the one that trains. Their
    weights are as many steps old and never older; `algorithm.correction` corrects for that. Which
    weights sample which step does not depend on how long anything takes, and no rollout is started
    ahead of a checkpoint."""
    in_flight: bool = False
    """Let replies that are being sampled ahead go on with newer weights as soon as there are any
    (`steps_ahead`): rows are read again with them, and each token is of one version. Which weights
    drew which tokens then depends on time; it is noted, and followed when the run is resumed. A
    vLLM or SGLang server takes them between two requests (`tokens_per_request`)."""
    tokens_per_request: int = Field(default=64, ge=1)
    """Most tokens of one request to a vLLM or SGLang server with `in_flight` or `extra_prompts`: in
    between, newer weights are loaded, and replies given up. Fewer follow sooner; each request costs
    reading the last tokens of its context again."""
    orders: str | None = None
    """File of another run, `orders.jsonl`, that says when its engine took which weights in flight;
    this run's takes them likewise. `rl-train reproduce` sets it."""
    engine_restarts: int = Field(default=2, ge=0)
    """Number of times in a run's process that an engine with its own model which died or hung is
    started again, with the weights that it had; what it had not finished is sampled again. Beyond
    that, the iteration is repeated from its checkpoint."""
    episodes: EpisodeConfig = EpisodeConfig()
    """Timeouts and concurrency of environment calls."""

    def sync_for(self, *, has_adapters: bool) -> SyncConfig:
        """Return `sync` with its mode resolved. vLLM gets full weights, with adapters merged,
        unless it is asked to load adapters."""
        full = self.engine.is_vllm and self.sync.mode is None
        mode = SyncMode.FULL if full else self.sync.mode_for(has_adapters=has_adapters)
        return self.sync.model_copy(update={"mode": mode})
