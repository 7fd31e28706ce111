"""The unified model: one module writes a plan and draws it, and both stages' losses share every optimiser step.

It is a prompt enhancer whose two models are one: the same tree of two tracks, rewards and advantages, but a single
backend, conditions that are the model's own states, and one joint training in place of one per track.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement, remote
from rl_core.errors import RecipeError
from rl_core.models.diffusion.levels import size_of
from rl_core.models.unified.bundle import UnifiedBundle
from rl_core.rollout.diffusion.rewriting import question
from rl_core.rollout.diffusion.unified_plans import PlanPainter, PlanWriter, contexts, planned_drawing
from rl_core.train.stacks.unified_stack import StageWeight, UnifiedStack
from rl_core.trainers.base import prompt_batch
from rl_core.trainers.prompt_enhancer import IMAGES, TEXT, PromptEnhancerTrainer, as_asked
from rl_core.trainers.rewards import score_column
from rl_core.trainers.tracks import ID, PARENT
from rl_core.trainers.wiring import wire_backend
from schemas.recipe import Recipe
from schemas.unified import Compared, UnifiedConfig

ROOT = "root"
"""Column of a picture's prompt."""


class UnifiedTrainer(PromptEnhancerTrainer):
    """RL on a model with an autoregressive and a flow-matching stage."""

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[dict[str, Any]]) -> None:
        super().__init__(recipe, source_model, items)
        self.writer.engine_class, self.painter.engine_class = PlanWriter, PlanPainter

    @property
    def config(self) -> UnifiedConfig:  # type: ignore[override]
        """The recipe's block `unified`. Raises: RecipeError when it has none."""
        if self.recipe.unified is None:
            raise RecipeError(f"unified: the domain {self.recipe.domain} needs this block")
        return self.recipe.unified

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """What each scorer said of the pictures."""
        return self.painter.held_out_scores

    def build(self) -> None:
        """One block with one backend, and over it the stages' stacks and engines."""
        recipe, config = self.recipe, self.config
        with placement(self.pool) as whole:
            bundle = remote(UnifiedBundle, self.source_model, recipe.model, size_of(recipe.diffusion))
            backend = wire_backend(recipe, bundle, self.total_steps, with_reference=_needs_reference(recipe))
            self.writer.wire(backend)
            self.painter.wire(backend)
            text, images = self.writer.tracks[TEXT], self.painter.tracks[IMAGES]
            weights = {
                name: StageWeight(stage.weight, stage.max_grad_norm)
                for name, stage in ((TEXT, config.text), (IMAGES, config.images))
            }
            self.stack: Remote = remote(UnifiedStack, backend, text.stack, images.stack, weights)
        self.groups = [whole]
        text.learns, images.learns = config.text.train, config.images.train
        text.siblings_share = PARENT
        images.siblings_share = PARENT if config.images.compared is Compared.PLAN else ROOT
        self.tracks = {IMAGES: images, TEXT: text}

    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """The tree of each prompt. Plans that failed are not drawn."""
        rollouts = super().rollout(prompts, attempt)
        images, text = rollouts[IMAGES], rollouts[TEXT]
        asked = dict(zip(text.non_tensor_batch[ID], text.non_tensor_batch[PARENT], strict=True))
        roots = [asked[plan] for plan in images.non_tensor_batch[PARENT]]
        images.union(DataProto.from_dict(non_tensors={ROOT: roots}))
        return rollouts

    def train(self, batches: dict[str, DataProto | DataProtoRef]) -> dict[str, dict[str, float]]:
        """All stages in one joint step."""
        for name, batch in batches.items():
            self.stack.receive(batch, name)
        return self.stack.train().to_floats()

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """A greedy plan of each prompt, and one picture of it, always from the same noise, scored."""
        items = {item["uid"]: item for item in prompts.non_tensor_batch["item"]}
        asked = prompt_batch([question(item, self.config.text) for item in items.values()])
        text = self.writer.engine.evaluate(asked, max_new_tokens)
        said = zip(items.values(), text.non_tensor_batch["response"], contexts(text), strict=True)
        drawings = [planned_drawing(item, item["uid"], plan, context) for item, plan, context in said]
        images = as_asked(self.painter.engine.evaluate(prompt_batch(drawings)), drawings)
        self.painter.add_rewards(images)
        keys = self.held_out_scores
        columns = {"rewards": images.tensor("rewards"), "failed": text.tensor("failed") | images.tensor("failed")}
        columns |= {key: images.tensor(score_column(key)) for key in keys}
        errors = zip(text.non_tensor_batch["error"], images.non_tensor_batch["error"], strict=True)
        told = {
            "error": [one or other for one, other in errors],
            "prompt": [item["prompt"] for item in items.values()],
            IMAGES: list(images.non_tensor_batch[IMAGES]),
        }
        return text.replace(DataProto.from_dict(columns, told))

    def backends(self) -> dict[str, Remote]:
        """The one trained model."""
        return {"policy": self.writer.backend}

    def write_model(self, folder: str) -> None:
        """The whole model."""
        self.writer.backend.export(folder)

    def _drawings(self, items: dict[str, dict[str, Any]], text: DataProtoRef) -> list[dict[str, Any]]:
        columns, failed = text.non_tensor_batch, text.tensor("failed").tolist()
        rows = zip(columns["uid"], columns[ID], columns["response"], contexts(text), failed, strict=True)
        return [planned_drawing(items[uid], row, plan, context) for uid, row, plan, context, bad in rows if not bad]


def _needs_reference(recipe: Recipe) -> bool:
    """Whether the algorithm of either stage is measured against the model before training."""
    found = [algorithms.resolve(job.algorithm, "algorithm") for job in (recipe, recipe.images)]
    return any(algorithm_cls(settings).needs_reference for algorithm_cls, settings in found)
