"""Rollout engine of language models that samples with servers of vLLM or SGLang which somebody else
started.

Each rank of the engine has one of the servers, or several, and keeps the received weights in shared
memory until it passes them on; the rows of a rollout are distributed over the ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.distributed.servers.vllm_engine import VllmEngine
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.servers.balancer import BalancedServers
from rl_core.rollout.servers.served import Served
from rl_core.rollout.servers.sglang import ServedSglang
from rl_core.rollout.servers.vllm import ServedVllm
from rl_core.runtime.user_paths import user_path
from schemas.sections.rollout import ServerKind


class ServerEngine(VllmEngine):
    """Rollout engine whose replies come from servers by HTTP. Raises: RecipeError, or Unreachable,
    when none can be used."""

    def start_server(self, config: dict[str, Any], rank_info: RankInfo) -> BalancedServers:
        """Connect with this rank's servers."""
        server = self.config.server
        assert server is not None  # the recipe was checked
        folder = Path(user_path(server.folder)) / f"rank-{rank_info.rank}"
        timeout_s = dist.distributed_c10d.default_pg_timeout.total_seconds()
        weights = self.replica.shared.path
        members: list[Served] = []
        for url in server.urls[rank_info.rank :: rank_info.world_size]:
            given = url, folder, config, weights, self.max_context_length, timeout_s
            match server.kind:
                case ServerKind.VLLM:
                    members.append(ServedVllm(*given, server.reload))
                case ServerKind.SGLANG:
                    members.append(ServedSglang(*given))
        return BalancedServers(members)

    def own_metrics(self) -> dict[str, Metric]:
        """Return the number of servers that sampled nothing, or not to the end."""
        return {"servers_left_out": Metric(MetricKind.SUM, self.server.call("num_left_out"), 1)}
