"""The recipe's `placement` block: devices, workers and micro-batches; usually taken whole from a
profile."""

from typing import Literal

from pydantic import Field, model_validator

from schemas.sections.checks.numbers import Seconds
from schemas.sections.section import Section

ROWS_OF_A_PASS = 8
"""Default number of rows in one forward and backward pass."""
TOKENS_IN_BFLOAT16 = 4096
"""Tokens per pass beyond which a CPU with bfloat16 instructions gets no faster."""
TOKENS_IN_TILES = 8192
"""Tokens per pass beyond which a CPU with matrix tiles (AMX), which small products do not fill,
gets no faster."""
TOKENS_ON_GPU = 8192
"""Tokens per pass beyond which a GPU, on which small products take as long as medium ones, gets no
faster."""


class PlacementConfig(Section):
    """Devices and workers of a run; usually taken whole from a profile."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Kind of device that each worker uses."""
    num_devices: int = Field(default=1, ge=1)
    """Number of workers, one per device; workers not used for tensor or sequence parallelism are
    data-parallel replicas."""
    rollout_devices: int = Field(default=0, ge=0)
    """Devices out of `num_devices` that are reserved for an engine with its own model; the others
    train."""
    tp_size: int = Field(default=1, ge=1)
    """Adjacent workers that share each weight matrix (tensor parallelism); must divide the model's
    attention heads and key-value heads."""
    sp_size: int = Field(default=1, ge=1)
    """Workers that share each sequence while training (sequence parallelism); `sp_size * tp_size`
    must divide the model's attention heads."""
    ep_size: int = Field(default=1, ge=1)
    """Adjacent workers that each hold a part of a mixture's experts and exchange tokens while
    training (expert parallelism); must divide the model's experts, and `shard_size`."""
    shard_size: int | None = Field(default=None, ge=1)
    """Training workers over which FSDP shards one copy of the weights, such as those of a node;
    each further group of as many has another copy (HSDP), and only gradients pass between the
    groups. Unset: all workers, a single copy."""
    offload: bool | Literal["auto"] = False
    """Free the memory of the trainer's weights, gradients and optimizer while an engine with its
    own model samples: on a GPU they go to main memory, on the CPU to a file. `auto`: where engine
    and trainer share a GPU."""
    threads_per_device: int = Field(default=0, ge=0)
    """CPU threads per worker; 0 divides the machine's cores evenly."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Rows in one forward and backward pass. Unset: 8; with prefix sharing, as many as keep the
    device busy: about 8192 tokens on a GPU, 4096 on a CPU with bfloat16 instructions, 8192 on a CPU
    with tiles (AMX)."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Pack rows without padding into passes of at most this many tokens, instead of
    `micro_batch_size` padded rows. A prompt that siblings share counts once, plus an eighth of its
    length for each further sibling."""
    share_prompts: bool = True
    """Prefix sharing: compute the prompt of siblings once per pass instead of once per row, for
    language models that support it; the result is the same. Off if attention is not `sdpa`, with
    dropout, or with sequence parallelism."""
    devices_per_node: int | None = Field(default=None, ge=1)
    """Consecutive devices that are placed on one node; unset packs them as Ray finds room."""
    workers_per_device: int = Field(default=1, ge=1)
    """Processes that may share a device; more than 1 if components run next to each other on it."""
    collective_timeout_s: Seconds = Field(default=600.0, gt=0)
    """Seconds that a rank waits for the others before the step fails as hung, naming the missing
    rank."""
    ray_address: str | None = None
    """Address of a running Ray cluster; unset starts a private one that ends with the run."""
    min_devices: int | None = Field(default=None, ge=1)
    """Fewest devices that a run goes on with after nodes of its cluster were lost; unset waits for
    all of them."""
    wait_for_nodes_s: Seconds | None = Field(default=None, ge=0)
    """Seconds to wait for nodes that are missing, at the start and after a loss. Unset: 300 after a
    loss; a cluster that never had enough is refused at once."""
    storage: str | None = None
    """Place in which runs and checkpoints are kept if the nodes share no disk:
    `s3://BUCKET/FOLDER`, `gs://BUCKET/FOLDER`, or a folder that all nodes see; unset is the home
    folder."""

    @model_validator(mode="after")
    def _replicas_are_whole(self) -> "PlacementConfig":
        shared, training = self.tp_size * self.sp_size, self.train_devices
        if training < 1:
            raise ValueError(
                f"rollout_devices = {self.rollout_devices} of num_devices = {self.num_devices} "
                f"leaves none to train on; use 0 to {self.num_devices - 1}"
            )
        if training % shared:
            fitting = ", ".join(
                str(size) for size in range(1, training + 1) if training % size == 0
            )
            raise ValueError(
                f"tp_size x sp_size = {shared} does not divide {self.train_devices_name} = "
                f"{training}; products that fit: {fitting}"
            )
        holding = training // self.tp_size
        if self.shard_size is not None and holding % self.shard_size:
            fitting = ", ".join(str(size) for size in range(1, holding + 1) if holding % size == 0)
            raise ValueError(
                f"shard_size = {self.shard_size} does not divide {self.train_devices_name} / "
                f"tp_size = {holding}; sizes that fit: {fitting}"
            )
        return self

    @model_validator(mode="after")
    def _experts_are_dealt_out(self) -> "PlacementConfig":
        if self.ep_size == 1:
            return self
        if self.tp_size > 1:
            raise ValueError(
                f"ep_size = {self.ep_size} with tp_size = {self.tp_size}: the matrices of experts "
                "that are dealt out are not cut; set one of them to 1"
            )
        name = self.train_devices_name if self.shard_size is None else "shard_size"
        holding = self.shard_size or self.train_devices
        if holding % self.ep_size:
            fitting = ", ".join(str(size) for size in range(1, holding + 1) if holding % size == 0)
            raise ValueError(
                f"ep_size = {self.ep_size} does not divide {name} = {holding}; sizes that fit: "
                f"{fitting}"
            )
        return self

    @model_validator(mode="after")
    def _nodes_are_whole(self) -> "PlacementConfig":
        per_node = self.devices_per_node or self.num_devices
        if self.num_devices > per_node and self.num_devices % per_node:
            raise ValueError(
                f"num_devices = {self.num_devices} is no multiple of devices_per_node = {per_node}"
            )
        return self

    @model_validator(mode="after")
    def _goes_on_with_no_more(self) -> "PlacementConfig":
        if self.min_devices is not None and self.min_devices > self.num_devices:
            raise ValueError(
                f"min_devices = {self.min_devices} is more than num_devices = {self.num_devices}; "
                f"use 1 to {self.num_devices}"
            )
        return self

    @property
    def train_devices(self) -> int:
        """Number of workers that train."""
        return self.num_devices - self.rollout_devices

    @property
    def train_devices_name(self) -> str:
        """Name of `train_devices` in terms of the recipe keys that determine it, for error
        messages."""
        if self.rollout_devices:
            return "(num_devices - rollout_devices)"
        return "num_devices"

    @property
    def num_replicas(self) -> int:
        """Data-parallel size: number of training workers, or groups of them, that take different
        rows."""
        return self.train_devices // (self.tp_size * self.sp_size)

    @property
    def ranks_of_a_copy(self) -> int:
        """Number of training workers that together hold one copy of the weights."""
        if self.shard_size is None:
            return self.train_devices
        return self.shard_size * self.tp_size

    def offloads(self, *, owns_model: bool) -> bool:
        """Return True if the trainer's memory is freed while an engine samples. Args: owns_model:
        True if the engine has its own model."""
        if self.offload == "auto":
            return owns_model and not self.rollout_devices and self.device == "cuda"
        return self.offload


def check_offload(engine: str, owns_model: bool, steps_ahead: int) -> None:
    """Check that nothing needs the trained weights while they are offloaded.

    Raises: ValueError naming the keys that exclude each other.
    """
    frees = "placement.offload: true frees the trained weights while an engine samples, but"
    if not owns_model:
        raise ValueError(
            f"{frees} rollout.engine: {engine} samples with them; use dedicated or vllm, or leave "
            "offload out"
        )
    if steps_ahead:
        raise ValueError(
            f"{frees} with rollout.steps_ahead: {steps_ahead} they train meanwhile; leave out one "
            "of them"
        )


def check_experts(ep_size: int, *, compiles: bool, is_exact: bool) -> None:
    """Check that nothing needs a block's experts as they are on one rank.

    Raises: ValueError naming the keys that exclude each other.
    """
    if ep_size == 1:
        return
    for key, is_set, problem in (
        ("fsdp.torch_compile", compiles, "a compiled block exchanges no tokens"),
        ("model.exact", is_exact, "a token's experts are added up in another order"),
    ):
        if is_set:
            raise ValueError(
                f"{key}: true with placement.ep_size: {ep_size}: {problem}; leave out one of them"
            )
