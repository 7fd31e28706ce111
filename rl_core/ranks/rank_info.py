"""Layout of ranks, and the place of a worker in it.

Ranks count like digits, the last one fastest: `rank = ((dp_rank * pp_size + pp_rank) * sp_size +
sp_rank) * tp_size + tp_rank`. Tensor-parallel siblings, which communicate most, are therefore
adjacent on one node, then sequence-parallel ones, then pipeline stages; data-parallel replicas are
farthest apart. Experts are spread over adjacent ranks of those that hold different parts of a
weight, so expert parallelism needs no additional ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl_core.errors import RecipeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainTopology:
    """The sizes of the parallel dimensions of one placement block."""

    dp_size: int | None = None
    """Number of data-parallel replicas; None means the world size divided by the other sizes."""
    tp_size: int = 1
    """Ranks that share each weight matrix."""
    pp_size: int = 1
    """Number of pipeline stages."""
    sp_size: int = 1
    """Ranks that share each sequence."""
    ep_size: int = 1
    """Ranks of the data- and sequence-parallel dimensions that share one set of experts; a divisor
    of `shard_size`."""
    shard_size: int | None = None
    """Ranks of the data- and sequence-parallel dimensions over which FSDP shards one copy of the
    weights; each further group of as many holds another copy (HSDP). None is all of them."""

    def __post_init__(self) -> None:
        for name in ("dp_size", "tp_size", "pp_size", "sp_size", "ep_size", "shard_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise RecipeError(f"{name} is {size}; it must be 1 or more")

    @property
    def model_size(self) -> int:
        """Number of ranks that together hold one replica and see the same rows: tp x sp x pp."""
        return self.tp_size * self.sp_size * self.pp_size

    @property
    def replicas(self) -> int:
        """The data-parallel size. Raises: RecipeError before `resolve` has set it."""
        if self.dp_size is None:
            raise RecipeError(f"dp_size of {self} is open; resolve it for a world size first")
        return self.dp_size

    @property
    def world_size(self) -> int:
        """Number of all ranks: dp x pp x sp x tp."""
        return self.replicas * self.model_size

    def resolve(self, world_size: int) -> TrainTopology:
        """Return this topology with `dp_size` set. Raises: RecipeError when the sizes do not
        multiply to `world_size`."""
        sizes = f"tp_size={self.tp_size} x sp_size={self.sp_size} x pp_size={self.pp_size}"
        if self.dp_size is None and world_size % self.model_size:
            raise RecipeError(
                f"{sizes} = {self.model_size} does not divide the world size of {world_size} ranks"
            )
        dp_size = self.dp_size or world_size // self.model_size
        if dp_size * self.model_size != world_size:
            raise RecipeError(
                f"dp_size={dp_size} x {sizes} = {dp_size * self.model_size}, but the world size "
                f"is {world_size} ranks"
            )
        sharing = dp_size * self.sp_size
        if self.shard_size is not None and sharing % self.shard_size:
            raise RecipeError(
                f"shard_size={self.shard_size} does not divide the {sharing} ranks that hold "
                "different parts of a weight (dp_size x sp_size)"
            )
        holding = self.shard_size or sharing
        if holding % self.ep_size:
            raise RecipeError(
                f"ep_size={self.ep_size} does not divide the {holding} ranks that together hold a "
                "copy of the weights"
            )
        return replace(self, dp_size=dp_size)

    def check_trainable(self) -> None:
        """Refuse settings that no backend implements. Raises: RecipeError naming the setting."""
        if self.pp_size > 1:
            raise RecipeError(
                f"pp_size={self.pp_size}: pipeline parallelism is not implemented; set pp_size to 1"
            )
        if self.ep_size > 1 and self.tp_size > 1:
            raise RecipeError(
                f"ep_size={self.ep_size} with tp_size={self.tp_size}: experts with cut matrices "
                "are not implemented; set one of them to 1"
            )

    def head_ranks(self) -> list[int]:
        """Return the first rank of each replica (tp, sp and pp rank 0), in dp order."""
        return [replica * self.model_size for replica in range(self.replicas)]


@dataclass(frozen=True)
class RankInfo:
    """Place of one worker process in its placement block."""

    rank: int
    world_size: int
    device_kind: str
    """Kind of the worker's device, `cpu` or `cuda`."""
    num_threads: int
    master_address: str = "127.0.0.1"
    master_port: int = 0
    topology: TrainTopology = TrainTopology()
    """Topology of the block, resolved for `world_size` on construction."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is outside a world of {self.world_size}")
        object.__setattr__(self, "topology", self.topology.resolve(self.world_size))

    @property
    def tp_rank(self) -> int:
        return self.rank % self.topology.tp_size

    @property
    def sp_rank(self) -> int:
        return self.rank // self.topology.tp_size % self.topology.sp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.topology.tp_size * self.topology.sp_size) % self.topology.pp_size

    @property
    def dp_rank(self) -> int:
        return self.rank // self.topology.model_size

    @property
    def ep_rank(self) -> int:
        return self.rank // self.topology.tp_size % self.topology.ep_size

    @property
    def tp_size(self) -> int:
        return self.topology.tp_size

    @property
    def sp_size(self) -> int:
        return self.topology.sp_size

    @property
    def pp_size(self) -> int:
        return self.topology.pp_size

    @property
    def dp_size(self) -> int:
        return self.topology.replicas

    @property
    def ep_size(self) -> int:
        return self.topology.ep_size

    @property
    def is_head(self) -> bool:
        """True if this rank answers for its replica: tp, sp and pp rank 0."""
        return self.rank % self.topology.model_size == 0

    @property
    def device(self) -> torch.device:
        """Device that this worker computes on; Ray shows each worker only its own GPUs, so it is
        always the first."""
        import torch

        if self.device_kind == "cuda":
            return torch.device("cuda", 0)
        return torch.device("cpu")

    @property
    def collective_backend(self) -> str:
        if self.device_kind == "cuda":
            return "nccl"
        return "gloo"
