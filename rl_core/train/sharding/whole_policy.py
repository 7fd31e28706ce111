"""Sharding of a whole policy over the ranks of its block, trained or frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from rl_core.models.decoding.router_replay import stacks_of_experts
from rl_core.models.loading.together import loaded_together
from rl_core.models.policy import Policy
from rl_core.train.bundle import Bundle
from rl_core.train.sharding import fsdp_wrap
from rl_core.train.sharding.chosen_modules import FSDPOptions, chosen_blocks
from rl_core.train.sharding.expert_parallel import check_expert_parallel
from rl_core.train.sharding.sequence_parallel import SequenceParallel, check_sequence_parallel
from rl_core.train.sharding.tensor_parallel import apply_tensor_parallel
from schemas.recipe import FSDPConfig

if TYPE_CHECKING:
    from rl_core.models.causal_lm import CausalLMPolicy, SharedSequences
    from rl_core.ranks.rank_info import RankInfo
    from rl_core.train.sharding.meshes import Meshes

P = TypeVar("P", bound=Policy)


def shard_policy(
    policy: Policy, settings: FSDPOptions, config: FSDPConfig, rank_info: RankInfo, meshes: Meshes
) -> None:
    """Cut a complete policy over the ranks, in place: its matrices, its sequences, its
    experts, its parameters."""
    # Recipes of other domains have one rank a copy in both.
    tokens = cast("CausalLMPolicy", policy)
    if rank_info.tp_size > 1:
        apply_tensor_parallel(tokens.language_model, meshes.tp)
    if rank_info.sp_size > 1:
        check_sequence_parallel(tokens.language_model, rank_info.sp_size, rank_info.tp_size)
        # A policy asks for two numbers an action, and gets as many.
        shared = cast("SharedSequences", SequenceParallel(meshes.sp_group))
        tokens.sequence_parallel = shared
    # A teacher beside the policy may have no experts.
    learns = any(parameter.requires_grad for parameter in policy.parameters())
    if rank_info.ep_size > 1 and (learns or stacks_of_experts(policy)):
        check_expert_parallel(policy.model, rank_info.ep_size)
    chosen = chosen_blocks(policy, settings)
    fsdp_wrap.shard(policy, chosen, config, meshes.shard, meshes.num_shards, meshes.experts)


def frozen_copy(
    bundle: Bundle, settings: FSDPOptions, config: FSDPConfig, rank_info: RankInfo, meshes: Meshes
) -> Policy:
    """Return a bundle's policy before training, loaded as the bundle was, `frozen`. Collective."""
    with loaded_together(getattr(bundle, "in_shards", False)):
        policy = bundle.load_policy()
    return frozen(policy, settings, config, rank_info, meshes)


def frozen(
    policy: P, settings: FSDPOptions, config: FSDPConfig, rank_info: RankInfo, meshes: Meshes
) -> P:
    """Return a policy that is never updated, sharded, in its compute format."""
    policy.requires_grad_(False)
    fsdp_wrap.cast_parameters(policy, config.param_dtype)
    shard_policy(policy, settings, config, rank_info, meshes)
    return policy.eval()
