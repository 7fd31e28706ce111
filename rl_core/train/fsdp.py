"""FSDPBackend: the trainable model, its sharding, optimizer and checkpoint (arXiv 2304.11277)."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl_core.data.store.atomic import disk_errors
from rl_core.errors import ModelError, RLTrainError
from rl_core.kernels import freed_memory_given_back
from rl_core.models.adapters.lora import (
    AVERAGED,
    adapter_in_use,
    inject_lora,
    is_averaged,
    trained_name,
)
from rl_core.models.checks.comparison import Live, explained
from rl_core.models.checks.paths import Path as Way
from rl_core.models.checks.paths import Paths
from rl_core.models.heads.value_head import train_value_head
from rl_core.models.modes import evaluation_mode
from rl_core.models.policy import Policy
from rl_core.models.quantized import is_quantized
from rl_core.ranks.dispatch import Execute, distributed
from rl_core.ranks.rank_info import RankInfo
from rl_core.runtime.peak_memory import peak_bytes
from rl_core.runtime.storage import landing
from rl_core.train import checkpoint
from rl_core.train.background_save import SavesInBackground
from rl_core.train.bundle import Bundle
from rl_core.train.checks.fixed_inputs import asking
from rl_core.train.checks.same_policy import settle_wrapped
from rl_core.train.gradients import clip_gradients
from rl_core.train.muon import hidden_matrices
from rl_core.train.optimizer import make_optimizer, make_scheduler
from rl_core.train.sharding import fsdp_wrap, single_rank
from rl_core.train.sharding.chosen_modules import FSDPOptions, chosen_blocks, freeze_the_rest
from rl_core.train.sharding.meshes import Meshes
from rl_core.train.sharding.offload import Parked
from rl_core.train.sharding.whole_policy import frozen_copy, shard_policy
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.ema import EmaShadow, local_part
from schemas.recipe import (
    EmaFullConfig,
    EmaLoraConfig,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    OptimizerConfig,
)
from schemas.sections.optimizer import OptimizerKind


class FSDPBackend(SavesInBackground):
    """The sharded policy of one rank, with optimizer, scheduler and moving average."""

    needs_rank_info = True
    Config = FSDPOptions

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
        rank_info: RankInfo,
        ema_cfg: EmaLoraConfig | EmaFullConfig | None = None,
        settings: FSDPOptions | None = None,
    ) -> None:
        # Any: of the class of the domain's bundle, which its stacks and engines know.
        self.bundle: Any = bundle
        self.settings = settings or FSDPOptions()
        self.fsdp_cfg, self.lora_cfg, self.ema_cfg = fsdp_cfg, lora_cfg, ema_cfg
        self.rank_info, self.device = rank_info, rank_info.device
        self._seed_rank(seed)
        self.policy: Any = bundle.policy
        self.meshes = Meshes(rank_info)
        self.mirror: Policy | None = None
        self._parked: Parked | None = None
        self._alone = rank_info.world_size == 1 and not fsdp_cfg.cpu_offload
        with nullcontext() if self._alone else freed_memory_given_back():
            self._place(seed, with_reference=with_reference)

        def refuse_offloaded(module: nn.Module, inputs: object) -> None:
            self.check_onloaded("a forward pass")

        for model in self.models:
            # Before FSDP's own hook, which would read the parameters.
            model.register_forward_pre_hook(refuse_offloaded, prepend=True)
        muon = optimizer_cfg.name is OptimizerKind.MUON
        hidden = hidden_matrices(self.policy) if muon else ()
        matrices = [value for name, value in self.trainable.items() if name in hidden]
        self.optimizer = make_optimizer(self.trainable.values(), optimizer_cfg, matrices)
        self.scheduler = make_scheduler(self.optimizer, scheduler_cfg, total_steps)
        self.num_skipped_steps = self._num_changes = 0

    def _place(self, seed: int, *, with_reference: bool) -> None:
        """Shard the model, and what is kept beside it."""
        self._inject(seed)
        self._shard(self.policy)
        if self._alone:
            dtype = fsdp_wrap.DTYPES[self.fsdp_cfg.reduce_dtype]
            single_rank.add_gradients_in_place(self.policy, dtype)
        self.reference = self._frozen_copy() if with_reference and self.lora_cfg is None else None
        self.trainable = {
            name: value for name, value in self.policy.named_parameters() if value.requires_grad
        }
        outside = fsdp_wrap.unsharded_parameters(self.policy)
        self._unsharded = [value for value in outside if value.requires_grad]
        self.ema = self._make_ema()
        settle_wrapped(self)

    def _inject(self, seed: int) -> None:
        """Make all changes of the model's structure before the wrap."""
        averaged = isinstance(self.ema_cfg, EmaLoraConfig)
        if averaged and self.lora_cfg is None:
            raise RLTrainError(
                "EmaLoraConfig follows an adapter: give a LoraConfig, or use EmaFullConfig"
            )
        if self.lora_cfg is None and is_quantized(self.policy):
            raise ModelError(
                "model.quantize: weights of 4 bits cannot be trained: set lora, or leave it out"
            )
        if self.lora_cfg is not None:
            start = getattr(self.bundle, "initial_adapters", None)
            inject_lora(self.policy, self.lora_cfg, seed, averaged=averaged, start=start)
        freeze_the_rest(self.policy, self.settings)
        train_value_head(self.policy)
        if isinstance(self.ema_cfg, EmaFullConfig) and self.ema_cfg.mirror:
            self.mirror = copy.deepcopy(self.policy)
        wrapped = chosen_blocks(self.policy, self.settings)
        fsdp_wrap.cast_to_stored(self.policy, wrapped, self.fsdp_cfg, keep=is_averaged)
        if self.fsdp_cfg.activation_checkpointing:
            self.policy.enable_activation_checkpointing()

    def _shard(self, policy: Policy) -> None:
        shard_policy(policy, self.settings, self.fsdp_cfg, self.rank_info, self.meshes)

    def _frozen_copy(self) -> Policy:
        """Return the policy before training, in its compute format, since it is never updated."""
        return frozen_copy(self.bundle, self.settings, self.fsdp_cfg, self.rank_info, self.meshes)

    def _make_ema(self) -> EmaShadow | None:
        if self.ema_cfg is None:
            return None
        if isinstance(self.ema_cfg, EmaLoraConfig):
            tensors = self.policy.named_parameters()
            shadow = {trained_name(name): value for name, value in tensors if is_averaged(name)}
            return EmaShadow(self.ema_cfg, {name: self.trainable[name] for name in shadow}, shadow)
        if self.mirror is None:
            return EmaShadow(self.ema_cfg, self.trainable)
        self._shard(self.mirror.requires_grad_(False))
        self.mirror.eval()
        tensors = dict(self.mirror.named_parameters())
        return EmaShadow(
            self.ema_cfg, self.trainable, {name: tensors[name] for name in self.trainable}
        )

    def _seed_rank(self, seed: int) -> None:
        # Ranks that share weight matrices compute the same activations, so they must drop out the
        # same ones.
        own_seed = seed + self.rank_info.rank // self.rank_info.tp_size
        random.seed(own_seed)
        np.random.seed(own_seed)
        torch.manual_seed(own_seed)

    @property
    def models(self) -> list[Any]:
        """All wrapped models: the trained one, the reference, the average."""
        return [model for model in (self.policy, self.reference, self.mirror) if model is not None]

    def enable_packing(self) -> None:
        """Enable packed rows in every model. Raises: ModelError when that is not supported."""
        for model in self.models:
            model.enable_packing()

    def enable_prompt_sharing(self) -> bool:
        """Enable prefix sharing in every model. Returns: True if all support it."""
        return all([model.enable_prompt_sharing() for model in self.models])

    @distributed(execute=Execute.RANK_ZERO)
    def notes(self) -> list[str]:
        """Return a line, with the reason, for everything that is computed in an unusual way."""
        if self._paths is None:
            return []
        return self._paths.notes(type(self.policy.language_model).__name__)

    @property
    def pads(self) -> bool:
        """True if rows of different lengths may be computed in one batch."""
        return self._paths is None or self._paths.why_not(Way.PADDED) is None

    @property
    def _paths(self) -> Paths | None:
        return getattr(self.policy, "paths", None)

    @property
    def rolls_out_average(self) -> bool:
        """True if sampling uses the moving average, which is then the old policy of updates."""
        return self.ema_cfg is not None and self.ema_cfg.rollout

    @distributed(execute=Execute.RANK_ZERO)
    def weight_version(self, *, evaluation: bool = False) -> WeightVersion:
        """Return the version of the weights for sampling or evaluation, new after every change."""
        return WeightVersion(self._num_changes, self.rolls_out_average and not evaluation)

    @contextmanager
    def rollout_policy(self) -> Iterator[Any]:
        """Yield the policy `gathered` with the weights for sampling: its own, or their moving
        average."""
        self.check_onloaded("sampling")
        if not self.rolls_out_average:
            with self.gathered() as policy:
                yield policy
        elif self.mirror is not None:
            with fsdp_wrap.gathered(self.mirror, self.fsdp_cfg, self.meshes.num_shards) as policy:
                yield policy
        else:
            with self.gathered() as policy, adapter_in_use(policy, AVERAGED):
                yield policy

    @contextmanager
    def gathered(self) -> Iterator[Any]:
        """Yield the policy in compute format, gathered from all ranks that FSDP shards over, for
        sampling.

        The only collectives inside are those of tensor parallelism: ranks that share weight
        matrices must decode the same rows with the same random numbers, all others may decode
        different numbers of tokens.
        """
        self.check_onloaded("sampling")
        with fsdp_wrap.gathered(self.policy, self.fsdp_cfg, self.meshes.num_shards) as policy:
            yield policy

    @contextmanager
    def reference_policy(self) -> Iterator[nn.Module]:
        """Yield the policy before training: a frozen copy, or the adapters disabled."""
        model: Any = self.policy.model
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(evaluation_mode(self.policy))
            if self.reference is None:
                # peft sets requires_grad as a side effect, and on gathered copies that would be
                # lost with them.
                fsdp_wrap.reshard(self.policy)
                stack.enter_context(model.disable_adapter())
            stack.callback(
                fsdp_wrap.reshard, self.policy if self.reference is None else self.reference
            )
            yield self.policy if self.reference is None else self.reference

    @contextmanager
    def anchor_policy(self) -> Iterator[nn.Module]:
        """Yield the policy that sampled: the trained one, or its moving average."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(evaluation_mode(self.policy))
            if self.rolls_out_average and self.mirror is None:
                stack.enter_context(adapter_in_use(self.policy, AVERAGED))
            yield self.mirror if self.rolls_out_average and self.mirror is not None else self.policy

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this rank's share of a loss. Args: last: the step's last share."""
        if self.fsdp_cfg.defer_grad_sync:
            for unit in fsdp_wrap.units(self.policy):
                unit.set_requires_gradient_sync(last, recurse=False)
        if self._alone and not fsdp_wrap.reshards_after_forward(self.fsdp_cfg, 1):
            single_rank.keep_gathered(self.policy, not last)
        # FSDP averages gradients over ranks; the loss is already a share of the global one.
        (loss * self.meshes.num_ranks).backward()

    def optimizer_step(self, max_grad_norm: float) -> dict[str, float]:
        """Clip, step, average, schedule. A non-finite gradient skips the step on every rank and is
        counted.

        Returns: `grad_norm` before clipping, the `lr` of this step, and `skipped` (0 or 1).
        """
        self.check_onloaded("optimizer_step")
        for parameter in self._unsharded:
            if parameter.grad is not None:
                gradient = local_part(parameter.grad).div_(self.meshes.num_ranks)
                dist.all_reduce(gradient, group=self.meshes.gradient_group)
        grad_norm = clip_gradients(self.trainable.values(), max_grad_norm, self.device)
        lr = self.optimizer.param_groups[0]["lr"]
        finite = bool(np.isfinite(grad_norm))
        self.reshard()
        if finite:
            self.optimizer.step()
            self.scheduler.step()
            self._num_changes += 1
            if self.ema is not None:
                self.ema.update()
        self.zero_grad()
        self.num_skipped_steps += not finite
        return {"grad_norm": grad_norm, "lr": lr, "skipped": float(not finite)}

    def zero_grad(self) -> None:
        """Reset the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Return sums over replicas, in float64."""
        return self.meshes.all_reduce_sum(values)

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Return maxima over replicas."""
        return self.meshes.all_reduce_max(values)

    def apply_eval_ema(self) -> None:
        """Put the moving average in place of the weights. Raises: RLTrainError when there is none,
        or it already is."""
        self.reshard()
        self.moving_average().apply()
        self._num_changes += 1

    def restore_from_eval(self) -> None:
        """Put the weights back, bit for bit. Raises: RLTrainError when they were not replaced."""
        self.reshard()
        self.moving_average().restore()
        self._num_changes += 1

    def moving_average(self) -> EmaShadow:
        """The average of the weights. Raises: RLTrainError when there is none, or while
        offloaded."""
        self.check_onloaded("the moving average")
        if self.ema is None:
            raise RLTrainError(
                "there is no moving average: give the backend an EmaLoraConfig or an EmaFullConfig"
            )
        return self.ema

    def reshard(self) -> None:
        """Drop gathered copies of the weights, of every model."""
        # Gathered copies may outlive a forward pass; after a write to the shards they would be
        # stale.
        for model in self.models:
            fsdp_wrap.reshard(model)

    def save(self, folder: str) -> None:
        """Write model, optimizer, scheduler, average and this rank's random state into `folder`.

        Raises: StorageError when a write fails; RLTrainError while offloaded, or while the average
        is applied.
        """
        self.check_onloaded("save")
        if self.ema is not None:
            self.ema.check_not_applied("save")
        checkpoint.save(self, folder)

    def load(self, folder: str) -> None:
        """Restore the state that `save` wrote, on this or another number of ranks.

        Raises: StorageError, RLTrainError while offloaded, or while the average is applied.
        """
        self.check_onloaded("load")
        self.reshard()
        if self.ema is not None:
            self.ema.check_not_applied("load")
        checkpoint.load(self, folder)
        self._num_changes += 1

    def export(self, folder: str) -> None:
        """Write the trained policy as its bundle does, by `LoraConfig.export`; rank 0 writes.

        The evaluated weights are exported: with `evaluate: true` in the EMA's config, the average.
        Raises: ExportMismatch when the export computes other results than the policy; StorageError
        when it cannot be written.
        """
        averaged = self.ema is not None and self.ema.config.evaluate
        with asking(self, averaged=averaged) as say:
            live = Live(say(), fsdp_wrap.DTYPES[self.fsdp_cfg.param_dtype])
        state = self.moving_average().full() if averaged else self.full_state()
        if self.rank_info.rank == 0:
            with disk_errors(folder), landing(folder) as out:
                self.bundle.export(state, self.lora_cfg, out, live)

    def probe(self, dtype: torch.dtype, *, averaged: bool) -> tuple[Tensor, float]:
        """Return the results of the policy, or its average, on the probe inputs, and the tolerance
        for another copy.

        Collective. Args: dtype: the coarsest format of computation or transport of either copy.
        """
        with asking(self, averaged=averaged) as say:
            said_N = say()
            return said_N, explained(said_N, say, self.policy, dtype)

    def full_state(self) -> dict[str, Tensor]:
        """Return the trainable parameters, whole on the CPU of rank 0 (empty elsewhere)."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        self.check_onloaded("full_state")
        options = StateDictOptions(
            full_state_dict=True, cpu_offload=True, ignore_frozen_params=True
        )
        # torch types the values of a state dict as anything; those of a model's are tensors.
        state = cast("dict[str, Tensor]", get_model_state_dict(self.policy, options=options))
        # The state dict also has entries under a second name, such as a tied head, even if frozen.
        state = {name: state[name] for name in self.trainable} if state else {}
        # Tensors that are unsharded on this CPU are returned without a copy, and would change with
        # the next step.
        own = {local_part(value).data_ptr() for value in self.trainable.values()}
        return {
            name: value.clone() if value.data_ptr() in own else value
            for name, value in state.items()
        }

    def peak_memory(self) -> int:
        """Return the peak bytes of this rank: of tensors on a GPU, else of the process."""
        return peak_bytes(self.device)

    def offload(self) -> int:
        """Release the memory of parameters, gradients, average and optimizer state, until `onload`.

        From an accelerator they go to main memory, on the CPU to a file. Raises: StorageError when
        a write fails. Returns: released bytes; 0 if they were released before.
        """
        if self._parked is not None:
            return 0
        self.reshard()
        parameters = [parameter for model in self.models for parameter in model.parameters()]
        tensors: list[object] = [
            *parameters,
            *(one.grad for one in parameters if one.grad is not None),
        ]
        tensors += [] if self.ema is None else self.ema.shadow.values()
        tensors += [value for state in self.optimizer.state.values() for value in state.values()]
        parts = [
            local_part(tensor)
            for tensor in tensors
            if isinstance(tensor, Tensor) and tensor.dim() > 0
        ]
        self._parked = Parked(parts, self.device)
        return self._parked.num_bytes

    def onload(self) -> None:
        """Restore what `offload` released, bit for bit."""
        if self._parked is not None:
            self._parked.restore()
            self._parked = None

    def check_onloaded(self, what: str) -> None:
        """Raises: RLTrainError naming `what` while the model is offloaded."""
        # An empty storage under a full shape is memory that is not there: torch would read it all
        # the same.
        if self._parked is not None:
            raise RLTrainError(f"{what}: the model is offloaded; call onload() first")
