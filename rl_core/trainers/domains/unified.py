"""The unified model: one module writes a plan and draws it, and both stages learn in one optimizer
step.

The tree of two tracks is that of `writing_and_drawing`, over a single backend: the conditions of a
drawing are the model's own hidden states, and one joint stack trains both tracks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from rl_core.algorithms import algorithms
from rl_core.data.prepare.items import MediaItem
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, remote
from rl_core.errors import RecipeError
from rl_core.models.diffusion.levels import size_of
from rl_core.models.unified.bundle import UnifiedBundle
from rl_core.rollout.diffusion.unified_plans import (
    PlanPainter,
    PlanWriter,
    contexts,
    planned_drawing,
)
from rl_core.train.stacks.unified_stack import StageWeight, UnifiedStack
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.diffusion import STEPS
from rl_core.trainers.domains.text import TOKENS
from rl_core.trainers.domains.writing_and_drawing import (
    IMAGES,
    ROOT,
    Items,
    as_asked,
    items_of,
    questions,
    written_and_drawn,
)
from rl_core.trainers.handles import BackendHandle, JointStackHandle
from rl_core.trainers.rewards import ServiceScorer, score_column
from rl_core.trainers.track import Engine, Track, Wiring, prompt_batch
from rl_core.trainers.tree import ID, PARENT
from rl_core.trainers.wiring import side_by_side, wire_backend, wire_bundle, wire_scorers
from schemas.recipe import Recipe
from schemas.sections.sampling import EvaluationSampling
from schemas.sections.unified import Compared, TextStage, UnifiedConfig

WRITING = replace(TOKENS, engine_class=PlanWriter)
DRAWING = replace(STEPS, engine_class=PlanPainter)
"""Kinds of policy of the two stages, with engines that ask and draw as a unified model does."""


class UnifiedTrainer(Trainer):
    """RL on a model with an autoregressive and a flow-matching stage."""

    def wire(self) -> Wiring:
        """Place one backend, and the stacks and engines of both stages on it."""
        recipe = self.recipe
        if recipe.unified is None:
            raise RecipeError(f"unified: the domain {recipe.domain} needs this block")
        config = recipe.unified
        size = size_of(recipe.diffusion)
        bundle = wire_bundle(recipe, UnifiedBundle, self.source_model, size)
        backend = wire_backend(recipe, bundle, with_reference=_needs_reference(recipe))
        writer = side_by_side(WRITING, recipe.writing, self.source_model, backend)
        painter = side_by_side(DRAWING, recipe.images, self.source_model, backend)
        scorer = ServiceScorer.of(recipe.images, wire_scorers(recipe.images), max_length=None)
        text, images = written_and_drawn(
            recipe,
            config,
            writer,
            painter,
            scorer,
            drawings=_drawings,
            pictures_share=PARENT if config.images.compared is Compared.PLAN else ROOT,
        )
        return Wiring(
            tracks=(text, images),
            held_out=GreedyPlans(writer.engine, painter.engine, scorer, config.text),
            policies={"policy": backend},
            exported={"": backend},
            with_notes=[backend, writer.engine.handle],
            joint_stack=_joint_stack(backend, text, images, config),
        )


def _joint_stack(
    backend: BackendHandle, text: Track, images: Track, config: UnifiedConfig
) -> JointStackHandle:
    """Return the stack that takes one optimizer step for both stages."""
    stages = ((text.name, config.text), (images.name, config.images))
    weights = {}
    for name, stage in stages:
        weights[name] = StageWeight(stage.weight, stage.max_grad_norm)
    stack = remote(UnifiedStack, backend, text.learner.stack, images.learner.stack, weights)
    return cast(JointStackHandle, stack)


def _needs_reference(recipe: Recipe) -> bool:
    """Return True if the algorithm of either stage needs the reference model."""
    found = []
    for job in (recipe, recipe.images):
        found.append(algorithms.resolve(job.algorithm, "algorithm"))
    return any(algorithm_cls(settings).needs_reference for algorithm_cls, settings in found)


def _drawings(items: Items, texts: DataProtoRef) -> list[MediaItem]:
    """Return the rows to draw: the tokens of the plans that did not fail."""
    columns, failed = texts.non_tensor_batch, texts.tensor("failed").tolist()
    rows = zip(
        columns["uid"], columns[ID], columns["response"], contexts(texts), failed, strict=True
    )
    drawings: list[MediaItem] = []
    for uid, row, plan, context, bad in rows:
        if not bad:
            drawings.append(planned_drawing(items[uid], row, plan, context))
    return drawings


@dataclass
class GreedyPlans:
    """Evaluation of a greedy plan for each held-out prompt, with a scored picture of it from fixed
    noise."""

    writer: Engine
    painter: Engine
    scorer: ServiceScorer
    asking: TextStage

    @property
    def scores(self) -> tuple[str, ...]:
        """Keys of the scorers of the pictures."""
        return tuple(self.scorer.weights)

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Plan, draw and score each prompt, one row per prompt, in order."""
        items = items_of(prompts)
        text = self.writer.handle.evaluate(
            questions(list(items.values()), self.asking), max_new_tokens, choice=choice
        )
        said = zip(items.values(), text.non_tensor_batch["response"], contexts(text), strict=True)
        drawings = []
        for item, plan, context in said:
            drawings.append(planned_drawing(item, item["uid"], plan, context))
        images = as_asked(self.painter.handle.evaluate(prompt_batch(drawings)), drawings)
        self.scorer.add_rewards(images, {IMAGES: images})
        columns = {
            "rewards": images.tensor("rewards"),
            "failed": text.tensor("failed") | images.tensor("failed"),
        }
        columns |= {key: images.tensor(score_column(key)) for key in self.scores}
        errors = zip(text.non_tensor_batch["error"], images.non_tensor_batch["error"], strict=True)
        told = {
            "error": [one or other for one, other in errors],
            "prompt": [item["prompt"] for item in items.values()],
            IMAGES: list(images.non_tensor_batch[IMAGES]),
        }
        return text.replace(DataProto.from_dict(columns, told))
