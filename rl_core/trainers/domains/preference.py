"""The domain of preference pairs: nothing is sampled, since the rows contain the answers."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.algorithms import algorithms
from rl_core.algorithms.preference import Preference
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, placement, remote
from rl_core.errors import RecipeError
from rl_core.models.bundle import ModelBundle
from rl_core.parts import engines
from rl_core.rollout.pairs import SCORES, PairEngine
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.pair_references import PairReferences
from rl_core.trainers.domains.text import token_learner
from rl_core.trainers.metrics.describe import describe_pairs
from rl_core.trainers.track import Engine, Rollouts, Track, Wiring, prompt_batch
from rl_core.trainers.wiring import topology_of
from schemas.recipe import Recipe
from schemas.sections.placement import ROWS_OF_A_PASS
from schemas.sections.preference import ReferenceMode
from schemas.sections.sampling import EvaluationSampling

TRACK = "pairs"


class PreferenceTrainer(Trainer):
    """Preference training (MPO, DPO and others) of a language model, with the chosen and the
    rejected answer in one forward pass."""

    def wire(self) -> Wiring:
        """Place all components in one block, in which they share a process per device.

        Raises: RecipeError when the algorithm does not learn from pairs.
        """
        recipe, placed = self.recipe, self.recipe.placement
        settings = pair_algorithm(recipe)
        is_precomputed = recipe.preference.reference is ReferenceMode.PRECOMPUTED
        with placement(self.pool, topology=topology_of(placed)):
            learner = token_learner(
                recipe,
                self.source_model,
                bundle_class=ModelBundle,
                # Answers that nobody sampled are judged by the model's own distribution.
                temperature=1.0,
                keeps_reference=settings.needs_reference and not is_precomputed,
            )
            engine_class, chosen = engines.chosen(recipe.engine, PairEngine)
            engine = remote(
                engine_class,
                learner.backend,
                recipe.preference,
                recipe.model.chat_template_kwargs,
                beta=settings.config.beta,
                micro_batch_size=placed.micro_batch_size or ROWS_OF_A_PASS,
                **chosen,
            )
        references = PairReferences(
            recipe, self.source_model, engine, settings.needs_reference, self._phase
        )
        pairs = GivenPairs(Engine(engine), references)
        track = Track(TRACK, sampler=pairs, scorer=None, learner=learner, describe=describe_pairs)
        return Wiring(
            tracks=(track,),
            held_out=Margins(pairs),
            policies={"policy": learner.backend},
            exported={"": learner.backend},
            with_notes=[learner.backend, engine],
            references=references,
        )


def pair_algorithm(recipe: Recipe) -> Preference:
    """Return the recipe's algorithm. Raises: RecipeError when it does not learn from pairs."""
    algorithm_cls, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    if not issubclass(algorithm_cls, Preference):
        raise RecipeError(
            f"algorithm {algorithm_cls.__name__} does not learn from pairs; use mpo, dpo, ipo, "
            "simpo, orpo or kto"
        )
    return algorithm_cls(settings)


@dataclass
class GivenPairs:
    """Sampler that returns both answers of each pair as they are in the data."""

    engine: Engine
    references: PairReferences

    def sample(
        self, prompts: DataProto, rollouts: Rollouts, step: int, attempt: int
    ) -> DataProtoRef:
        """Return the answers' tokens, two rows per pair."""
        return self.engine.handle.rollout(self.known(prompts))

    def known(self, prompts: DataProto) -> DataProto:
        """Return the pairs, with their `reference` if it is in the cache."""
        return prompt_batch(self.references.from_cache(list(prompts.non_tensor_batch["item"])))


@dataclass
class Margins:
    """Evaluation of the model's preference between the two answers of each held-out pair."""

    pairs: GivenPairs

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the margins; without a reference only the first can be computed."""
        if self.pairs.references.needed:
            return SCORES
        return SCORES[:1]

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Return the preferred answer and the margins, one row per pair."""
        return self.pairs.engine.handle.evaluate(
            self.pairs.known(prompts), self.pairs.references.needed
        )
