"""FSDPBackend: owns the trainable model, its sharding, its optimiser and its checkpoint (FSDP2, arXiv 2304.11277)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rl_core.dispatch import Dispatch, dispatch
from rl_core.models.bundle import ModelBundle
from rl_core.models.causal_lm import blocks, inject_lora, load_policy
from rl_core.rank_info import RankInfo
from rl_core.train import checkpoint
from rl_core.train.optimizer import make_optimizer, make_scheduler
from schemas.recipe import DType, FSDPConfig, FSDPMode, LoraConfig, LrSchedulerConfig, OptimizerConfig


class FSDPBackend:
    """The sharded policy of one rank, with optimiser and scheduler."""

    needs_rank_info = True

    def __init__(
        self,
        bundle: ModelBundle,
        fsdp_cfg: FSDPConfig,
        optimizer_cfg: OptimizerConfig,
        scheduler_cfg: LrSchedulerConfig,
        lora_cfg: LoraConfig | None,
        *,
        total_steps: int,
        seed: int,
        with_reference: bool,
        rank_info: RankInfo,
    ) -> None:
        self.bundle, self.lora_cfg, self.rank_info = bundle, lora_cfg, rank_info
        self.device = rank_info.device
        self._reshard_after_forward = fsdp_cfg.fsdp_mode is FSDPMode.FULL
        self._seed_rank(seed)
        self.policy = bundle.policy
        if lora_cfg is not None:
            inject_lora(self.policy, lora_cfg, seed)
        if fsdp_cfg.activation_checkpointing:
            self.policy.language_model.gradient_checkpointing_enable({"use_reentrant": False})
        self._shard(self.policy, fsdp_cfg)
        self.reference = None
        if with_reference and lora_cfg is None:
            self.reference = load_policy(bundle.source, bundle.config).requires_grad_(False)
            self._shard(self.reference, fsdp_cfg)
        self.optimizer = make_optimizer(self.policy.parameters(), optimizer_cfg)
        self.scheduler = make_scheduler(self.optimizer, scheduler_cfg, total_steps)
        self.num_skipped_steps = 0

    def _shard(self, policy: nn.Module, config: FSDPConfig) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(self.device.type, (self.rank_info.world_size,), mesh_dim_names=("dp",))
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": self._reshard_after_forward}
        if config.param_dtype is DType.BFLOAT16:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy.to(self.device)
        for block in blocks(policy):  # type: ignore[arg-type]
            fully_shard(block, **options)
        fully_shard(policy, **options)
        policy.train()
        _units(policy)[0]._get_fsdp_state()._lazy_init()

    def _seed_rank(self, seed: int) -> None:
        random.seed(seed + self.rank_info.rank)
        np.random.seed(seed + self.rank_info.rank)
        torch.manual_seed(seed + self.rank_info.rank)

    @contextmanager
    def gathered(self) -> Iterator[Any]:
        """The whole policy in computation format on this rank, for sampling; no collective runs inside.

        Ranks may therefore decode different numbers of tokens.
        """
        units = _units(self.policy)
        for unit in units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        self.policy.eval()
        try:
            with torch.no_grad():
                yield self.policy
        finally:
            self.policy.train()
            for unit in units:
                unit.set_reshard_after_forward(self._reshard_after_forward, recurse=False)
                unit.reshard()

    @contextmanager
    def reference_policy(self) -> Iterator[nn.Module]:
        """The policy before training: adapters disabled, or a frozen copy."""
        model: Any = self.policy.model
        context = nullcontext() if self.reference is not None else model.disable_adapter()
        with context, torch.no_grad():
            yield self.reference if self.reference is not None else self.policy

    def optimizer_step(self, max_grad_norm: float) -> dict[str, float]:
        """Clip, step, schedule. A non-finite gradient skips the step on every rank and is counted."""
        trainable = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        norm: Any = nn.utils.clip_grad_norm_(trainable, max_grad_norm)
        grad_norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        lr = self.optimizer.param_groups[0]["lr"]
        finite = bool(np.isfinite(grad_norm))
        if finite:
            self.optimizer.step()
            self.scheduler.step()
        else:
            self.num_skipped_steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": grad_norm, "lr": lr, "skipped_steps": float(not finite)}

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Sums over ranks, in float64."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    @dispatch(Dispatch.ALL)
    def save(self, folder: str) -> None:
        """Write model, optimiser, scheduler and this rank's random state into `folder`. Raises: StorageError."""
        checkpoint.save(self, Path(folder))

    @dispatch(Dispatch.ALL)
    def load(self, folder: str) -> None:
        """Restore what `save` wrote, on this or another number of ranks. Raises: StorageError."""
        checkpoint.load(self, Path(folder))

    @dispatch(Dispatch.ALL)
    def export(self, folder: str) -> None:
        """Write the trained policy as a Hugging Face folder; rank 0 writes."""
        from rl_core.models.export import export_policy

        state = self.full_state()
        if self.rank_info.rank == 0:
            export_policy(self.bundle, state, self.lora_cfg, Path(folder))

    @dispatch(Dispatch.ALL)
    def full_state(self) -> dict[str, Tensor]:
        """Trainable parameters, unsharded on the CPU of rank 0 (empty elsewhere)."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
        # torch types the values of a state dict as anything; those of a model's are tensors.
        return cast("dict[str, Tensor]", get_model_state_dict(self.policy, options=options))

    @dispatch(Dispatch.ALL)
    def offload(self) -> None:
        """Move parameters and optimiser state to the CPU, leaving the device to others."""
        self._move("cpu")

    @dispatch(Dispatch.ALL)
    def onload(self) -> None:
        """Bring parameters and optimiser state back to the device."""
        self._move(self.device)

    def _move(self, device: str | torch.device) -> None:
        self.policy.to(device)
        for state in self.optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[key] = value.to(device)


def _units(policy: nn.Module) -> list[Any]:
    """The FSDP-wrapped modules, the root first."""
    return [module for module in policy.modules() if isinstance(module, FSDPModule)]
