"""Process groups of one rank: the ranks with which it shares weights, sequences and replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rl_core.train.sharding.expert_parallel import ExpertParallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from rl_core.ranks.rank_info import RankInfo


SHARD_DIMENSION = "shard"
"""Name of the mesh dimension that FSDP shards over."""
COPIES = "copies"
"""Name of the mesh dimension along which the same shards repeat."""


class Meshes:
    """The ranks of a block along each parallel dimension, in the order of
    `rl_core.ranks.rank_info`.

    Parameters are on a mesh of two dimensions. Ranks that share a sequence have gradients of the
    same weights from different positions, as replicas do from different rows, so FSDP shards over
    both together. With `shard_size` (HSDP) it shards over groups of so many of them, and a third
    dimension has the groups: weights are gathered within a group, which may be a machine with quick
    links, and only gradients are summed between groups. Experts that are dealt out over adjacent
    ranks of a group are on a mesh of their own, of the same ranks.
    """

    def __init__(self, rank_info: RankInfo) -> None:
        """Create the groups. Collective. Raises: RecipeError on a dimension that is not
        implemented."""
        from torch.distributed.device_mesh import init_device_mesh

        rank_info.topology.check_trainable()
        dp_size, sp_size, tp_size = rank_info.dp_size, rank_info.sp_size, rank_info.tp_size
        kind = rank_info.device_kind
        self.num_ranks: int = dp_size * sp_size
        """Ranks over which FSDP averages gradients."""
        self.num_shards: int = rank_info.topology.shard_size or self.num_ranks
        """Ranks over which one copy of the weights is sharded."""
        num_copies = self.num_ranks // self.num_shards
        parameters = init_device_mesh(
            kind,
            (num_copies, self.num_shards, tp_size),
            mesh_dim_names=(COPIES, SHARD_DIMENSION, "tp"),
        )
        ranks = init_device_mesh(
            kind, (dp_size, sp_size, tp_size), mesh_dim_names=("dp", "sp", "tp_siblings")
        )
        along = (SHARD_DIMENSION,) if num_copies == 1 else (COPIES, SHARD_DIMENSION)
        self.shard: DeviceMesh = parameters[along]
        """Mesh over which FSDP shards, and averages gradients."""
        whole = self.shard if num_copies == 1 else self.shard._flatten()
        self.gradient_group: ProcessGroup = whole.get_group()
        """Ranks whose gradients are averaged."""
        self.tp: DeviceMesh = parameters["tp"]
        """Mesh over which weight matrices are cut."""
        self.dp_group: ProcessGroup = ranks["dp"].get_group()
        """Ranks with different rows."""
        self.sp_group: ProcessGroup = ranks["sp"].get_group()
        """Ranks that share each sequence."""
        self.tp_group: ProcessGroup = parameters["tp"].get_group()
        """Ranks that share each weight matrix."""
        self.experts: ExpertParallel | None = None
        """Ranks over which experts are dealt out, where there are several."""
        if rank_info.ep_size > 1:
            num_holders = self.num_shards // rank_info.ep_size
            experts = init_device_mesh(
                kind,
                (num_copies, num_holders, rank_info.ep_size),
                mesh_dim_names=(COPIES, SHARD_DIMENSION, "ep"),
            )
            # Norms are then summed over all ranks at once, and come out alike on each.
            experts[(*along, "ep")]._flatten()
            self.experts = ExpertParallel(experts["ep"], experts[along])
        self._device = rank_info.device

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Return sums over replicas, in float64."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Return maxima over replicas."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def _all_reduce(self, values: list[float], op: Any) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(total, op=op, group=self.dp_group)
        return total.tolist()
