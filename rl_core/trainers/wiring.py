"""Wiring that domains share: policies, their learners and their engines, placed on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.distributed import DevicePool, placement, remote
from rl_core.distributed.blocks import renewed
from rl_core.distributed.handles import world_size_of
from rl_core.distributed.offer_board import OfferBoard
from rl_core.distributed.weight_sync import WeightSync
from rl_core.errors import RecipeError
from rl_core.models.bundle import ModelBundle
from rl_core.parts import backends, bundles, engines, stacks, syncs
from rl_core.parts.attributes import HasAttributes
from rl_core.ranks.rank_info import TrainTopology
from rl_core.rewards.service import RewardService
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.trainers.handles import (
    AlgorithmHandle,
    BackendHandle,
    EngineHandle,
    ParkedHandle,
    ScorersHandle,
    StackHandle,
)
from rl_core.trainers.own_engine import OwnEngine
from rl_core.trainers.track import Engine, Learner
from schemas.recipe import Recipe
from schemas.sections.placement import PlacementConfig
from schemas.sections.rollout import EngineKind

B = TypeVar("B")


@dataclass(frozen=True)
class PolicyKind:
    """Wiring of all policies with one kind of action, such as `text.TOKENS` or
    `diffusion.STEPS`."""

    learner: Callable[[Recipe, str, BackendHandle | None], Learner]
    """Function that places the learner in the open block, from a recipe, a located model, and the
    backend of the model if it is already loaded."""
    engine_class: type
    """Engine that samples with the trained module, in the same processes."""
    own_engines: Mapping[EngineKind, type]
    """Engines that sample with their own copy of the model; they take the options of
    `engine_class`."""
    engine_options: Callable[[Recipe], tuple[object, ...]]
    """Function that returns an engine's arguments after its backend."""


@dataclass(frozen=True)
class Policy:
    """The learner of a model, and the engine that samples from it."""

    learner: Learner
    engine: Engine


def topology_of(placed: PlacementConfig) -> TrainTopology:
    """Return the parallel dimensions of the training workers of a recipe."""
    return TrainTopology(
        tp_size=placed.tp_size,
        sp_size=placed.sp_size,
        ep_size=placed.ep_size,
        shard_size=placed.shard_size,
    )


def place_policy(
    kind: PolicyKind, pool: DevicePool, recipe: Recipe, source_model: str
) -> tuple[Policy, ScorersHandle | None]:
    """Place the learner in one block with a process per device, and a dedicated engine in another
    block.

    An in-process engine shares the learner's processes. A dedicated engine gets its weights from
    the backend by a WeightSync; its block has its own devices or (vLLM) additional processes on the
    training devices. Returns: also the recipe's scorers, in the learner's block.
    """
    placed = recipe.placement
    topology = topology_of(placed)
    training = placed.train_devices / len(pool.devices)
    if not recipe.rollout.engine.owns_model:
        with placement(pool, fraction=training, topology=topology):
            return side_by_side(kind, recipe, source_model), wire_scorers(recipe)
    sampling = len(recipe.joined_devices) or placed.rollout_devices or placed.num_devices
    with placement(pool, fraction=sampling / len(pool.devices)) as block:
        handle = _dedicated_engine(kind, recipe, source_model)

    def revive() -> EngineHandle:
        with renewed(block):
            return _dedicated_engine(kind, recipe, source_model)

    def open_board(engine: EngineHandle) -> OfferBoard:
        board = OfferBoard(world_size_of(engine))
        engine.watch(board.reader())
        return board

    shared = None if placed.rollout_devices else block
    with placement(pool, fraction=training, topology=topology, beside=shared):
        learner = kind.learner(recipe, source_model, None)
        config = recipe.rollout.sync_for(has_adapters=recipe.lora is not None)
        sync_class, chosen = syncs.chosen(recipe.sync, WeightSync)
        sync = remote(sync_class, backend=learner.backend, rollout=handle, config=config, **chosen)
        service = wire_scorers(recipe)
    sleeps = recipe.rollout.engine is EngineKind.VLLM and recipe.rollout.vllm.sleep
    parked: list[ParkedHandle] = [learner.backend]
    parked += [learner.critic.backend] if learner.critic else []
    parked += learner.teaching.handles if learner.teaching else ()
    # A sync or an engine of the user's may lack what the usual ones have.
    can_offer = all(hasattr(sync, name) for name in ("offer", "kept_checksums", "reconnect"))
    can_offer = can_offer and hasattr(handle, "take")
    if recipe.rollout.steps_ahead > 1 and not can_offer:
        raise RecipeError(
            f"rollout.steps_ahead: {recipe.rollout.steps_ahead} puts weights down for the engine: "
            "derive the classes of `sync` and `engine` from WeightSync and Receiver, or use 1"
        )
    if recipe.rollout.in_flight and not (can_offer and hasattr(handle, "watch")):
        raise RecipeError(
            "rollout.in_flight: the engine takes weights while it samples: derive the classes of "
            "`sync` and `engine` from WeightSync and DedicatedEngine, or leave it out"
        )
    streams = recipe.rollout.sync.transport.is_collective
    engine = OwnEngine(
        handle,
        sync,
        sleeps,
        tuple(parked) if recipe.offloads else (),
        revive=revive if can_offer else None,
        restarts=recipe.rollout.engine_restarts,
        is_offered=can_offer and recipe.rollout.steps_ahead > 0 and not streams,
        open_board=open_board if recipe.rollout.in_flight else None,
        carries_over=recipe.rollout.carry_over > 0,
    )
    return Policy(learner, engine), service


def side_by_side(
    kind: PolicyKind, recipe: Recipe, source_model: str, backend: BackendHandle | None = None
) -> Policy:
    """Place a learner and an engine over the same module in the open block.

    Args: backend: of a model that is already loaded; None loads the recipe's.
    """
    learner = kind.learner(recipe, source_model, backend)
    engine_class, chosen = _chosen_engine(recipe, kind.engine_class)
    options = kind.engine_options(recipe)
    handle = remote(engine_class, learner.backend, *options, **chosen)
    return Policy(learner, Engine(handle, carries_over=recipe.rollout.carry_over > 0))


def _dedicated_engine(kind: PolicyKind, recipe: Recipe, source_model: str) -> EngineHandle:
    sync = recipe.rollout.sync_for(has_adapters=recipe.lora is not None)
    mode = sync.mode_for(has_adapters=recipe.lora is not None)
    model = source_model, recipe.model, recipe.lora, mode, recipe.fsdp.param_dtype
    usual = kind.own_engines[recipe.rollout.engine]
    engine_class, chosen = _chosen_engine(recipe, usual)
    if recipe.bundle is not None:
        bundle_class, options = bundles.chosen(recipe.bundle, usual.bundle_class)
        chosen |= {"bundle_class": partial(bundle_class, **options)}
    return remote(engine_class, *model, *kind.engine_options(recipe), **chosen)


def _chosen_engine(recipe: Recipe, usual: type) -> tuple[type, dict[str, Any]]:
    """Return the class of the engine and its own options. Raises: RecipeError when it would train
    on all of `rollout.extra_prompts`."""
    engine_class, chosen = engines.chosen(recipe.engine, usual)
    if recipe.rollout.extra_prompts and not issubclass(engine_class, RolloutEngine):
        raise RecipeError(
            f"rollout.extra_prompts: engine {engine_class.__name__} gives up no groups; derive it "
            "from RolloutEngine, or leave extra_prompts out"
        )
    return engine_class, chosen


def wire_scorers(recipe: Recipe) -> ScorersHandle | None:
    """Place the recipe's scorers; return None if it has none."""
    if not recipe.rewards:
        return None
    return cast(ScorersHandle, remote(RewardService, recipe.rewards, recipe.reward_service))


def wire_algorithm(recipe: Recipe) -> tuple[StageAlgorithm, AlgorithmHandle]:
    """Create the driver's algorithm and its copies on the ranks."""
    algorithm_cls, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(settings), remote(algorithm_cls, settings)


def wire_bundle(recipe: Recipe, usual: type, source_model: str, *options: object) -> object:
    """Place the model. Args: usual: class of the domain. options: arguments after those of every
    bundle."""
    bundle_class, chosen = bundles.chosen(recipe.bundle, usual)
    make = bundle_class if recipe.bundle is not None else maker(recipe, bundle_class)
    bundle = remote(make, source_model, recipe.model, *options, **chosen)
    if recipe.bundle is not None:
        remote(HasAttributes, bundle, bundles.contract, "bundle")
    return bundle


def maker(recipe: Recipe, bundle_class: type[B]) -> Callable[..., B]:
    """Return what makes a bundle on each rank: of weights that are read when they are sharded,
    where the project's own backend shards them and nothing computes with whole ones before."""
    placed = recipe.placement
    is_cut = recipe.backend is None and placed.tp_size == 1 and recipe.model.quantize is None
    if is_cut and issubclass(bundle_class, ModelBundle):
        return bundle_class.in_shards_of
    return bundle_class


def wire_backend(recipe: Recipe, bundle: object, *, with_reference: bool) -> BackendHandle:
    """Place the policy's backend."""
    backend_class, chosen = backends.chosen(recipe.backend, FSDPBackend)
    backend = remote(
        backend_class,
        bundle,
        recipe.fsdp,
        recipe.optimizer,
        recipe.scheduler,
        recipe.lora,
        total_steps=total_steps(recipe) * recipe.updates_per_step,
        seed=recipe.seed,
        with_reference=with_reference,
        ema_cfg=recipe.ema,
        **chosen,
    )
    if recipe.training.checkpoints_in_background and not hasattr(backend, "save_in_background"):
        raise RecipeError(
            "training.checkpoints_in_background: the class of `backend` has no save_in_background; "
            "derive it from FSDPBackend, or leave it out"
        )
    if recipe.backend is not None:
        remote(HasAttributes, backend, backends.contract, "backend")
    return backend


def wire_stack(
    recipe: Recipe,
    usual: type,
    backend: BackendHandle,
    algorithm: AlgorithmHandle,
    *given: object,
    **named: object,
) -> StackHandle:
    """Place the stack that trains the policy. Args: usual: class of the domain. given, named:
    arguments besides those of every stack."""
    stack_class, chosen = stacks.chosen(recipe.stack, usual)
    options = stack_options(recipe) | named | chosen
    return remote(stack_class, backend, algorithm, *given, **options)


def total_steps(recipe: Recipe) -> int:
    """Return the number of steps in the whole run."""
    return recipe.training.num_iterations * recipe.training.steps_per_iteration


def stack_options(recipe: Recipe) -> dict[str, object]:
    """Return the keyword arguments that every stack takes."""
    return {
        "micro_batch_size": recipe.placement.micro_batch_size,
        "num_updates_per_batch": recipe.training.num_updates_per_batch,
        "num_epochs": recipe.training.num_epochs,
        "max_grad_norm": recipe.training.max_grad_norm,
        "skip_zero_advantages": recipe.training.skip_zero_advantages,
    }
