"""The recipe's `placement` block: on what it runs; usually taken whole from a profile."""

from typing import Literal

from pydantic import Field, model_validator

from schemas.numbers import Seconds
from schemas.section import Section

ROWS_OF_A_PASS = 8
"""Rows in one forward and backward pass, where nothing is said."""
TOKENS_IN_BFLOAT16 = 4096
"""Tokens up to which a pass makes a processor that multiplies in bfloat16 quicker,"""
TOKENS_IN_TILES = 8192
"""and one that does so in tiles, which small products do not fill."""
TOKENS_ON_GPU = 8192
"""Tokens up to which a pass makes a GPU quicker, which starts small products no faster than it computes large ones."""


class PlacementConfig(Section):
    """Where it runs; usually taken whole from a profile."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Kind of device each worker holds."""
    num_devices: int = Field(default=1, ge=1)
    """Workers, one per device; those that tensor and sequence parallelism leave are data-parallel replicas."""
    rollout_devices: int = Field(default=0, ge=0)
    """Those of `num_devices` that an engine with a model of its own has to itself; the others train."""
    tp_size: int = Field(default=1, ge=1)
    """Neighbouring workers that share each weight matrix; divides the model's attention and key-value heads."""
    sp_size: int = Field(default=1, ge=1)
    """Workers that share each sequence while training; times `tp_size` it divides the model's attention heads."""
    threads_per_device: int = Field(default=0, ge=0)
    """CPU threads per worker; 0 shares the machine's cores out evenly."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Rows in one forward and backward pass. Unset: 8, and where prompts are shared as many as keep the device busy:
    about 8192 tokens on a GPU, 4096 on a processor that multiplies in bfloat16, with tiles (AMX) 8192."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Pack rows without padding into passes of at most so many tokens, instead of `micro_batch_size` padded rows. A
    prompt that siblings share counts once, and an eighth of it for each further sibling."""
    share_prompts: bool = True
    """Compute the prompt of siblings once in a pass instead of once per row, where a language model can; the result is
    the same. Off where attention is not `sdpa`, something is dropped out, or sequences are shared."""
    devices_per_node: int | None = Field(default=None, ge=1)
    """So many consecutive devices lie on one node; unset packs them as Ray finds room."""
    workers_per_device: int = Field(default=1, ge=1)
    """Processes that may share a device; more than 1 where components run beside each other on it."""
    collective_timeout_s: Seconds = Field(default=600.0, gt=0)
    """How long ranks may wait for a sibling before the step ends as hung, naming it."""
    ray_address: str | None = None
    """A running cluster; unset starts a private one that ends with the run."""

    @model_validator(mode="after")
    def _replicas_are_whole(self) -> "PlacementConfig":
        shared, training = self.tp_size * self.sp_size, self.train_devices
        if training < 1:
            raise ValueError(
                f"rollout_devices = {self.rollout_devices} of num_devices = {self.num_devices} leaves none to train "
                f"on; use 0 to {self.num_devices - 1}"
            )
        if training % shared:
            fitting = ", ".join(str(size) for size in range(1, training + 1) if training % size == 0)
            raise ValueError(
                f"tp_size x sp_size = {shared} does not divide {self.train_devices_name} = {training}; products that "
                f"fit: {fitting}"
            )
        return self

    @property
    def train_devices(self) -> int:
        """Workers that train."""
        return self.num_devices - self.rollout_devices

    @property
    def train_devices_name(self) -> str:
        """`train_devices` in terms of the keys that give it."""
        return "(num_devices - rollout_devices)" if self.rollout_devices else "num_devices"

    @property
    def num_replicas(self) -> int:
        """Training workers, or groups of them, that take different rows: the data-parallel size."""
        return self.train_devices // (self.tp_size * self.sp_size)
