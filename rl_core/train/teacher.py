"""Teachers on a rank: models that are read and never trained, beside the policy that learns from
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from rl_core.algorithms.teacher import OwnWeights
from rl_core.errors import ModelError, RLTrainError
from rl_core.models.adapters.lora import AVERAGED, adapter_in_use
from rl_core.models.bundle import ModelBundle
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.checks.paths import Path
from rl_core.models.loading.together import loaded_together
from rl_core.models.modes import evaluation_mode
from rl_core.train.sharding import fsdp_wrap
from rl_core.train.sharding.chosen_modules import FSDPOptions
from rl_core.train.sharding.meshes import Meshes
from rl_core.train.sharding.offload import Parked
from rl_core.train.sharding.whole_policy import frozen
from schemas.recipe import FSDPConfig, ModelConfig

if TYPE_CHECKING:
    from rl_core.ranks.rank_info import RankInfo
    from rl_core.train.fsdp import FSDPBackend


class Teacher(Protocol):
    """A model whose distributions a stack reads."""

    is_own: bool
    """True if it shares parameters with the trained policy, so that it cannot be read between a
    forward pass and its backward pass."""

    def prepare(self, *, packs: bool, shares_prompts: bool) -> bool:
        """Get ready for the stack's kind of passes. Returns: True if passes may share prompts.
        Raises: ModelError when the model cannot be packed or padded as the student is."""
        ...

    def policy(self) -> AbstractContextManager[nn.Module]:
        """Return a context manager that yields the model, without gradients. Collective."""
        ...


class FrozenTeacher:
    """A model of its own, sharded like the policy. It is loaded when it is first needed, so that
    evaluations do without it.

    Args: bundle_class: function that loads the bundle of a located model. name: name in messages.
    """

    needs_rank_info = True
    is_own = False

    def __init__(
        self,
        bundle_class: Callable[[str, ModelConfig], ModelBundle],
        source: str,
        config: ModelConfig,
        fsdp_cfg: FSDPConfig,
        *,
        name: str,
        rank_info: RankInfo,
    ) -> None:
        self.bundle_class, self.source, self.config = bundle_class, source, config
        self.fsdp_cfg, self.rank_info, self.name = fsdp_cfg, rank_info, name
        self._parked: Parked | None = None

    @cached_property
    def model(self) -> CausalLMPolicy:
        """The sharded model."""
        # tensor parallelism cuts whole matrices.
        with loaded_together(self.rank_info.tp_size == 1):
            loaded = self.bundle_class(self.source, self.config).policy
        meshes = Meshes(self.rank_info)
        return frozen(loaded, FSDPOptions(), self.fsdp_cfg, self.rank_info, meshes)

    def prepare(self, *, packs: bool, shares_prompts: bool) -> bool:
        """Load the model, and enable the stack's kind of passes."""
        if packs:
            self.model.enable_packing()
        shares = shares_prompts and self.model.enable_prompt_sharing()
        paths = self.model.paths
        pads = paths is None or paths.why_not(Path.PADDED) is None
        if not (packs or shares or pads):
            raise ModelError(
                f"teacher {self.name}: with padding this model gives something else, so that rows "
                "of different lengths cannot be read together; choose another teacher"
            )
        return shares

    @contextmanager
    def policy(self) -> Iterator[nn.Module]:
        """Yield the model, and free its gathered parameters afterwards."""
        if self._parked is not None:
            raise RLTrainError(f"teacher {self.name} is offloaded; call onload() first")
        with torch.no_grad():
            try:
                yield self.model
            finally:
                fsdp_wrap.reshard(self.model)

    def offload(self) -> int:
        """Release the memory of the parameters until `onload`; return the released bytes."""
        if self._parked is not None or "model" not in vars(self):
            return 0
        fsdp_wrap.reshard(self.model)
        parameters = []
        for parameter in self.model.parameters():
            parameters.append(getattr(parameter, "_local_tensor", parameter))
        self._parked = Parked(parameters, self.rank_info.device)
        return self._parked.num_bytes

    def onload(self) -> None:
        """Restore what `offload` released, bit for bit."""
        if self._parked is not None:
            self._parked.restore()
            self._parked = None


class OwnTeacher:
    """The policy's own weights, before training or averaged."""

    is_own = True

    def __init__(self, backend: FSDPBackend, weights: OwnWeights) -> None:
        self.backend, self.weights = backend, weights

    def prepare(self, *, packs: bool, shares_prompts: bool) -> bool:
        """Do nothing: the backend has done it for all its models."""
        return shares_prompts

    @contextmanager
    def policy(self) -> Iterator[nn.Module]:
        """Yield the policy with those weights."""
        backend = self.backend
        if self.weights is OwnWeights.BASE:
            with backend.reference_policy() as reference:
                yield reference
            return
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if backend.mirror is not None:
                stack.callback(fsdp_wrap.reshard, backend.mirror)
                yield backend.mirror
                return
            stack.enter_context(evaluation_mode(backend.policy))
            fsdp_wrap.reshard(backend.policy)
            stack.enter_context(adapter_in_use(backend.policy, AVERAGED))
            stack.callback(fsdp_wrap.reshard, backend.policy)
            yield backend.policy
