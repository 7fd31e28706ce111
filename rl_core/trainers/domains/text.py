"""The domain of language models: one track of tokens, sampled in episodes with environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import cast

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, remote
from rl_core.distributed.servers.server_engine import ServerEngine
from rl_core.distributed.servers.vllm_engine import VllmEngine
from rl_core.envs.registration import portable_options
from rl_core.envs.seats import with_models
from rl_core.models.adapters.exported import start_of
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.models.locate import locate
from rl_core.parts import backends
from rl_core.rollout.dedicated import DedicatedTextEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from rl_core.train.critic import CriticBundle, CriticStack
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.distill_stack import DistillStack
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.trainers.base import Trainer
from rl_core.trainers.dealing import DealingStack
from rl_core.trainers.distillation.teaching import taught_by_base, wire_teachers
from rl_core.trainers.handles import (
    AlgorithmHandle,
    BackendHandle,
    CriticStackHandle,
    ScorersHandle,
)
from rl_core.trainers.metrics.describe import describe_replies
from rl_core.trainers.metrics.drift import delta_limit
from rl_core.trainers.rewards import ServiceScorer, score_column
from rl_core.trainers.track import Critic, Engine, FromPrompts, Learner, Track, Wiring
from rl_core.trainers.wiring import (
    Policy,
    PolicyKind,
    maker,
    place_policy,
    stack_options,
    total_steps,
    wire_algorithm,
    wire_backend,
    wire_bundle,
    wire_stack,
)
from schemas.recipe import Recipe
from schemas.sections.rollout import EngineKind
from schemas.sections.sampling import EvaluationSampling

TRACK = "text"
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


class TextTrainer(Trainer):
    """RL on a causal language model with its environments."""

    def wire(self) -> Wiring:
        """Place model, engine and scorers in the same processes, or the engine on its own
        devices."""
        placed = place_policy(TOKENS, self.pool, self.recipe, self.source_model)
        return wire_replies(TRACK, self.recipe, *placed)


def wire_replies(
    name: str, recipe: Recipe, policy: Policy, reward_service: ScorersHandle | None
) -> Wiring:
    """Return the wiring of one track whose actions are tokens, rewarded by environments and
    scorers."""
    scorer = ServiceScorer.of(recipe, reward_service, recipe.rollout.max_new_tokens)
    track = Track(
        name,
        sampler=FromPrompts(policy.engine),
        scorer=scorer,
        learner=policy.learner,
        describe=partial(describe_replies, environments=recipe.environments),
    )
    backend = policy.learner.backend
    return Wiring(
        tracks=(track,),
        held_out=HeldOutReplies(policy.engine, scorer if recipe.evaluation.scorers else None),
        policies={"policy": backend},
        exported={"": backend},
        with_notes=[backend, policy.engine.handle],
    )


@dataclass
class HeldOutReplies:
    """Evaluation with one reply to each held-out row, or several, rewarded by its environment
    alone, or by the recipe's scorers too."""

    engine: Engine
    scorer: ServiceScorer | None = None
    """The recipe's scorers, with `evaluation.scorers`."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Keys of the scorers."""
        if self.scorer is None:
            return ()
        return tuple(self.scorer.weights)

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Return the replies to each prompt, one greedy reply without a `choice`."""
        # An engine of the user's may know greedy replies alone.
        chosen = {} if choice is None else {"choice": choice}
        played = self.engine.evaluate(prompts, max_new_tokens, **chosen)
        if self.scorer is None:
            return played
        self.scorer.add_rewards(played, {TRACK: played})
        scores = {key: played.tensor(score_column(key)) for key in self.scores}
        if scores:
            return played.replace(DataProto.from_dict(scores))
        return played


def token_learner(
    recipe: Recipe,
    source_model: str,
    backend: BackendHandle | None = None,
    *,
    bundle_class: type[ModelBundle],
    temperature: float | None = None,
    keeps_reference: bool | None = None,
    stack_class: type[TrainStack] = TrainStack,
    stack_extras: Mapping[str, object] = NO_OPTIONS,
) -> Learner:
    """Place model, backend, algorithm and stack, and a critic if the algorithm needs one, in the
    open block.

    Args: backend: of a model that is already loaded. temperature: of the distribution whose
    log-probabilities are trained; None means the rollout's. keeps_reference: True if the workers
    keep the model before training; None means if the algorithm needs it. stack_class,
    stack_extras: stack that trains, and its arguments besides those of every stack of tokens.
    """
    algorithm, copies = wire_algorithm(recipe)
    if backend is None:
        bundle = wire_bundle(recipe, bundle_class, source_model)
        with_reference = algorithm.needs_reference or taught_by_base(recipe)
        with_reference = with_reference if keeps_reference is None else keeps_reference
        backend = wire_backend(recipe, bundle, with_reference=with_reference)
    taught, teaching = {}, None
    if algorithm.needs_teacher:
        teaching = wire_teachers(recipe, source_model, backend, bundle_class)
        stack_class, taught = DistillStack, {"teachers": teaching.on_ranks}
    stack = wire_stack(
        recipe,
        stack_class,
        backend,
        copies,
        max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
        share_prompts=recipe.placement.share_prompts,
        temperature=recipe.rollout.temperature if temperature is None else temperature,
        # Rows with a temperature of their own were not drawn by the rollout.
        sampling=recipe.rollout if temperature is None else None,
        max_length=recipe.rollout.max_new_tokens,
        # A stack of the user's may know no replay.
        **({"router_replay": True} if recipe.rollout.router_replay else {}),
        **taught,
        **stack_extras,
    )
    # Mini-batches are made of a rank's rows in order: another order would change them.
    are_split = recipe.training.num_updates_per_batch > 1
    if recipe.domain.traits.deals_rows and recipe.placement.num_replicas > 1 and not are_split:
        stack = DealingStack(stack, recipe.placement.num_replicas)
    critic = None
    if algorithm.needs_critic:
        critic = _critic(recipe, source_model, copies, text_alone=bundle_class is TextBundle)
    return Learner(backend, algorithm, copies, stack, critic, teaching, delta_limit(recipe))


def _critic(
    recipe: Recipe, source_model: str, algorithm: AlgorithmHandle, *, text_alone: bool
) -> Critic:
    """Place the critic's value model in the same processes as the policy."""
    model = recipe.value_model
    if start_of(recipe.model.path, source_model) is not None:
        # The policy goes on from adapters over this base; the critic's own start anew.
        source_model = locate(recipe.model.path, Home.default().models)
    backend_class, chosen = backends.chosen(recipe.backend, FSDPBackend)
    backend = remote(
        backend_class,
        remote(maker(recipe, CriticBundle), source_model, recipe.model, text_alone=text_alone),
        recipe.fsdp,
        model.optimizer,
        model.scheduler,
        model.lora,
        total_steps=total_steps(recipe) * recipe.updates_per_step,
        seed=recipe.seed,
        with_reference=False,
        ema_cfg=None,
        **chosen,
    )
    stack = remote(
        CriticStack,
        backend,
        algorithm,
        max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
        share_prompts=recipe.placement.share_prompts,
        **stack_options(recipe) | {"max_grad_norm": model.max_grad_norm},
    )
    return Critic(cast(CriticStackHandle, stack), backend)


def engine_options(recipe: Recipe) -> tuple[object, ...]:
    """Return the arguments of `RolloutEngine` after its backend."""
    return (
        recipe.rollout,
        with_models(portable_options(recipe.environments), recipe.model.path),
        recipe.model.chat_template_kwargs,
        recipe.seed,
    )


TOKENS = PolicyKind(
    learner=partial(token_learner, bundle_class=TextBundle),
    engine_class=RolloutEngine,
    own_engines={
        EngineKind.DEDICATED: DedicatedTextEngine,
        EngineKind.VLLM: VllmEngine,
        EngineKind.SERVER: ServerEngine,
    },
    engine_options=engine_options,
)
"""The kind of policy whose actions are tokens."""
