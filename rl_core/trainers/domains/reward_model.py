"""The domain of reward models: pairs of conversations, of which the chosen one is to get the higher
score."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, placement, remote
from rl_core.models.heads.reward_model import RewardBundle
from rl_core.parts import engines
from rl_core.rollout.reward_pairs import SCORES, RewardPairEngine
from rl_core.train.stacks.score_stack import ScoreStack
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.text import token_learner
from rl_core.trainers.metrics.describe import describe_pairs
from rl_core.trainers.track import Engine, Rollouts, Track, Wiring
from rl_core.trainers.wiring import topology_of
from schemas.sections.placement import ROWS_OF_A_PASS
from schemas.sections.sampling import EvaluationSampling

TRACK = "pairs"


class RewardModelTrainer(Trainer):
    """Training of a reward model by the Bradley-Terry loss, with both conversations of a pair in
    one forward pass."""

    def wire(self) -> Wiring:
        """Place all components in one block, in which they share a process per device."""
        recipe, placed = self.recipe, self.recipe.placement
        with placement(self.pool, topology=topology_of(placed)):
            learner = token_learner(
                recipe,
                self.source_model,
                bundle_class=RewardBundle,
                temperature=1.0,
                keeps_reference=False,
                stack_class=ScoreStack,
            )
            engine_class, chosen = engines.chosen(recipe.engine, RewardPairEngine)
            engine = remote(
                engine_class,
                learner.backend,
                recipe.preference,
                recipe.model.chat_template_kwargs,
                micro_batch_size=placed.micro_batch_size or ROWS_OF_A_PASS,
                **chosen,
            )
        pairs = ScoredPairs(Engine(engine))
        track = Track(TRACK, sampler=pairs, scorer=None, learner=learner, describe=describe_pairs)
        return Wiring(
            tracks=(track,),
            held_out=pairs,
            policies={"policy": learner.backend},
            exported={"": learner.backend},
            with_notes=[learner.backend, engine],
        )


@dataclass
class ScoredPairs:
    """Sampler that returns both conversations of each pair as they are in the data, and evaluation
    of the model's scores of held-out ones."""

    engine: Engine

    @property
    def scores(self) -> tuple[str, ...]:
        """Columns of a held-out pair besides whether it was told apart."""
        return SCORES

    def sample(
        self, prompts: DataProto, rollouts: Rollouts, step: int, attempt: int
    ) -> DataProtoRef:
        """Return the conversations' tokens, two rows per pair."""
        return self.engine.handle.rollout(prompts)

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Return the preferred answer and the scores, one row per pair."""
        return self.engine.handle.evaluate(prompts)
