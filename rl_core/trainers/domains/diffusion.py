"""The domain of diffusion models: one track of denoising steps, whose samples are scored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rl_core.algorithms import algorithms
from rl_core.algorithms.flow_sft import FlowSft
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.rollout.dedicated import DedicatedDiffusionEngine
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.rollout.diffusion.given_pictures import GivenPictures
from rl_core.train.stacks.diffusion_stack import StepStack
from rl_core.train.stacks.flow_stack import FlowStack
from rl_core.train.stacks.nft_stack import NftStack
from rl_core.trainers.base import Trainer
from rl_core.trainers.handles import BackendHandle
from rl_core.trainers.metrics.describe import describe_samples
from rl_core.trainers.rewards import ServiceScorer, score_column
from rl_core.trainers.track import Engine, FromPrompts, Learner, Track, Wiring
from rl_core.trainers.wiring import (
    PolicyKind,
    place_policy,
    wire_algorithm,
    wire_backend,
    wire_bundle,
    wire_stack,
)
from schemas.recipe import Recipe
from schemas.sections.rollout import EngineKind
from schemas.sections.sampling import EvaluationSampling

TRACK = "images"
"""Name of the only track, also if the samples are videos."""


class DiffusionTrainer(Trainer):
    """RL on a flow-matching model with the recipe's scorers."""

    def wire(self) -> Wiring:
        """Place model, engine and scorers in the same processes, or the engine on its own
        devices."""
        learns_given = _learns_given(self.recipe)
        kind = GIVEN if learns_given else STEPS
        policy, reward_service = place_policy(kind, self.pool, self.recipe, self.source_model)
        scorer = ServiceScorer.of(self.recipe, reward_service, max_length=None)
        track = Track(
            TRACK,
            sampler=FromPrompts(policy.engine),
            scorer=None if learns_given else scorer,
            learner=policy.learner,
            describe=describe_samples,
        )
        backend = policy.learner.backend
        return Wiring(
            tracks=(track,),
            held_out=ScoredSamples(policy.engine, scorer),
            policies={"policy": backend},
            exported={"": backend},
            with_notes=[backend],
        )


@dataclass
class ScoredSamples:
    """Evaluation with one scored sample per held-out prompt, always from the same noise."""

    engine: Engine
    scorer: ServiceScorer

    @property
    def scores(self) -> tuple[str, ...]:
        """Keys of all scorers, including those that are only measured (`weight: 0`)."""
        return tuple(self.scorer.weights)

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Draw and score one sample per prompt; each scorer's scores are in the column of its
        key."""
        played = self.engine.evaluate(prompts)
        self.scorer.add_rewards(played, {TRACK: played})
        scores = {key: played.tensor(score_column(key)) for key in self.scores}
        return played.replace(DataProto.from_dict(scores))


def step_learner(
    recipe: Recipe, source_model: str, backend: BackendHandle | None = None
) -> Learner:
    """Place model, backend, algorithm and stack in the open block.

    Args: backend: of a model that is already loaded.
    """
    algorithm, copies = wire_algorithm(recipe)
    if backend is None:
        bundle = wire_bundle(recipe, DiffusionBundle, source_model)
        backend = wire_backend(recipe, bundle, with_reference=algorithm.needs_reference)
    sde = getattr(algorithm.config, "sde", None)
    if sde is None:
        stack_class = FlowStack if _learns_given(recipe) else NftStack
        stack = wire_stack(recipe, stack_class, backend, copies, recipe.diffusion)
    else:
        stack = wire_stack(recipe, StepStack, backend, copies, recipe.diffusion, sde)
    return Learner(backend, algorithm, copies, stack)


def engine_options(recipe: Recipe) -> tuple[object, ...]:
    """Return the arguments of `DiffusionEngine` after its backend."""
    _, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    return (
        recipe.diffusion,
        recipe.rollout,
        getattr(settings, "sde", None),
        recipe.seed,
        recipe.evaluation.batch_size,
    )


STEPS = PolicyKind(
    learner=step_learner,
    engine_class=DiffusionEngine,
    own_engines={EngineKind.DEDICATED: DedicatedDiffusionEngine},
    engine_options=engine_options,
)
"""The kind of policy whose actions are denoising steps."""
GIVEN = replace(STEPS, engine_class=GivenPictures, own_engines={})
"""The kind of policy that learns given pictures."""


def _learns_given(recipe: Recipe) -> bool:
    """Return True if the recipe's algorithm learns from the pictures in its rows."""
    return issubclass(algorithms.resolve(recipe.algorithm, "algorithm")[0], FlowSft)
