"""Contract of a training backend: the trainable model of one rank, with its optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol

from rl_core.ranks.dispatch import Execute, distributed

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from rl_core.models.policy import Policy
    from rl_core.ranks.rank_info import RankInfo
    from rl_core.train.bundle import Bundle
    from rl_core.train.sharding.meshes import Meshes
    from rl_core.train.weights.buckets import WeightVersion
    from schemas.sections.policy import (
        EmaFullConfig,
        EmaLoraConfig,
        FSDPConfig,
        LoraConfig,
        LrSchedulerConfig,
        OptimizerConfig,
    )


class Backend(Protocol):
    """The trainable model of one rank, with optimizer, schedule and checkpoint.

    `rl_core.train.fsdp.FSDPBackend` is the usual one. Stacks and engines share its process and call
    it directly; the trainer calls it by a handle, as `@distributed` says.
    """

    needs_rank_info: ClassVar[bool] = True
    """The backend is given this rank's place among the others."""
    bundle: Bundle
    """The bundle it was built with."""
    policy: Policy
    """The module that is trained; stacks call it for log-probabilities."""
    trainable: dict[str, nn.Parameter]
    """Parameters that learn, by name."""
    optimizer: Optimizer
    """A torch optimizer; `param_groups[0]["lr"]` is the present rate."""
    rank_info: RankInfo
    device: torch.device
    meshes: Meshes
    """Groups of ranks; `Meshes(rank_info)` makes them."""
    fsdp_cfg: FSDPConfig
    """The recipe's block `fsdp`; stacks read `param_dtype`, the format of computation."""
    lora_cfg: LoraConfig | None
    ema_cfg: EmaLoraConfig | EmaFullConfig | None
    ema: object
    """Moving average of the weights; None without one."""
    rolls_out_average: bool
    """True if sampling uses a moving average of the weights."""
    pads: bool
    """True if rows of different lengths may be computed in one batch."""

    def __init__(
        self,
        bundle: Bundle,
        fsdp_cfg: FSDPConfig,
        optimizer_cfg: OptimizerConfig,
        scheduler_cfg: LrSchedulerConfig,
        lora_cfg: LoraConfig | None,
        *,
        total_steps: int,
        seed: int,
        with_reference: bool,
        ema_cfg: EmaLoraConfig | EmaFullConfig | None,
    ) -> None: ...

    @distributed(execute=Execute.RANK_ZERO)
    def notes(self) -> list[str]:
        """Return a line for everything that is computed in an unusual way."""
        ...

    @distributed(execute=Execute.RANK_ZERO)
    def weight_version(self, *, evaluation: bool) -> WeightVersion:
        """Return the version of the weights for sampling or evaluation, new after every change."""
        ...

    def rollout_policy(self) -> AbstractContextManager[nn.Module]:
        """Yield the policy for sampling, in evaluation mode and without gradients."""
        ...

    def gathered(self) -> AbstractContextManager[nn.Module]:
        """Yield the policy for evaluations, in evaluation mode and without gradients."""
        ...

    def anchor_policy(self) -> AbstractContextManager[nn.Module]:
        """Yield the policy that sampled, without gradients."""
        ...

    def reference_policy(self) -> AbstractContextManager[nn.Module]:
        """Yield the policy before training, without gradients; used if `with_reference` is set."""
        ...

    def enable_packing(self) -> None:
        """Enable packed rows. Raises: ModelError when that is not supported."""
        ...

    def enable_prompt_sharing(self) -> bool:
        """Enable prefix sharing. Returns: True if it is supported."""
        ...

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this rank's share of a loss. Args: last: the step's last share."""
        ...

    def optimizer_step(self, max_grad_norm: float) -> dict[str, float]:
        """Clip, step, schedule. Returns: `grad_norm` before clipping, `lr`, and `skipped` (0 or
        1)."""
        ...

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Return sums over replicas."""
        ...

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Return maxima over replicas."""
        ...

    def save(self, folder: str) -> None:
        """Write the state of this rank into a folder, which may not exist yet."""
        ...

    def load(self, folder: str) -> None:
        """Restore the state that `save` wrote. Raises: StorageError when it cannot be read."""
        ...

    def export(self, folder: str) -> None:
        """Write the trained policy as an ordinary model folder, by `bundle.export` on rank 0."""
        ...

    def peak_memory(self) -> int:
        """Return the peak bytes of this rank."""
        ...


class Averages(Protocol):
    """A backend with a moving average of the weights, which `ema_lora` and `ema_full` need."""

    def apply_eval_ema(self) -> None:
        """Put the moving average in place of the weights."""
        ...

    def restore_from_eval(self) -> None:
        """Put the weights back, bit for bit."""
        ...


class Probes(Protocol):
    """A backend whose policy can be compared with another copy, which `WeightSync` does."""

    def probe(self, dtype: torch.dtype, *, averaged: bool) -> tuple[Tensor, float]:
        """Return the policy's results on the probe inputs, and the tolerance for another copy."""
        ...
