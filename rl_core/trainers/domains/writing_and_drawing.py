"""The two tracks of jobs that write and draw: `text` from prompts, and `images` from texts.

A rollout has several texts per prompt and several pictures per text (see `tree`). Pictures are
scored against the original prompt, and a text earns the rewards of its pictures. Either or both
tracks are trained, each by its own algorithm, with advantages among its own siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rl_core.data.prepare.items import MediaItem
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.errors import RewardError
from rl_core.rollout.diffusion.rewriting import question
from rl_core.rollout.sample_ids import named_error
from rl_core.trainers.masking import earn_at_the_end, leave_out
from rl_core.trainers.metrics.describe import describe_replies, describe_samples
from rl_core.trainers.rewards import ServiceScorer
from rl_core.trainers.track import Engine, Rollouts, Track, prompt_batch
from rl_core.trainers.tree import CHILDLESS, ID, PARENT, lineage, propagate
from rl_core.trainers.wiring import Policy
from schemas.recipe import Recipe
from schemas.sections.tracks import Asking, Propagation, TracksConfig
from schemas.sections.unified import UnifiedConfig

IMAGES, TEXT = "images", "text"
ROOT = "root"
"""Column with the id of a picture's prompt."""

Items = dict[str, MediaItem]
"""Prompts by their uid."""
Drawings = Callable[[Items, DataProtoRef], list[MediaItem]]
"""Function that returns the rows to draw, from the prompts and the rollout of texts."""


def items_of(prompts: DataProto) -> Items:
    """Return the prompts of a batch by uid."""
    return {item["uid"]: item for item in prompts.non_tensor_batch["item"]}


def questions(items: Sequence[MediaItem], asking: Asking) -> DataProto:
    """Return the prompts as requests to the language model for texts."""
    return prompt_batch([question(item, asking) for item in items])


def written_and_drawn(
    recipe: Recipe,
    config: TracksConfig | UnifiedConfig,
    writer: Policy,
    painter: Policy,
    scorer: ServiceScorer,
    *,
    drawings: Drawings,
    pictures_share: str = PARENT,
) -> tuple[Track, Track]:
    """Return the tracks `text` and `images`.

    Args: config: the domain's block. drawings: returns the rows to draw, from the prompts and the
    rollout of texts. pictures_share: column that is equal for pictures that are compared.
    """
    text = Track(
        TEXT,
        sampler=TextsOfPrompts(writer.engine, config.text),
        scorer=EarnedByPictures(config.propagation),
        learner=writer.learner,
        describe=partial(describe_replies, environments=recipe.environments),
        siblings_share=PARENT,
        learns=config.text.train,
    )
    images = Track(
        IMAGES,
        sampler=PicturesOfTexts(painter.engine, drawings),
        scorer=scorer,
        learner=painter.learner,
        describe=describe_samples,
        siblings_share=pictures_share,
        learns=config.images.train,
    )
    return text, images


@dataclass
class TextsOfPrompts:
    """Sampler that asks the writer for texts of each prompt."""

    engine: Engine
    asking: Asking

    def sample(
        self, prompts: DataProto, rollouts: Rollouts, step: int, attempt: int
    ) -> DataProtoRef:
        """Sample the texts of each prompt."""
        asked = questions(list(items_of(prompts).values()), self.asking)
        texts = self.engine.rollout(asked, step, attempt)
        return texts.union(lineage(texts.non_tensor_batch["uid"].tolist()))


@dataclass
class PicturesOfTexts:
    """Sampler that lets the painter draw each text that did not fail."""

    engine: Engine
    drawings: Drawings

    def sample(
        self, prompts: DataProto, rollouts: Rollouts, step: int, attempt: int
    ) -> DataProtoRef:
        """Sample the pictures of each text. Raises: RewardError when no text can be drawn."""
        texts = rollouts[TEXT]
        drawings = self.drawings(items_of(prompts), texts)
        if not drawings:
            raise RewardError(
                f"nothing that was written can be drawn; first: {named_error(texts, 0)}"
            )
        images = self.engine.rollout(prompt_batch(drawings), step, attempt)
        images.union(lineage(images.non_tensor_batch["uid"].tolist()))
        asked = dict(zip(texts.non_tensor_batch[ID], texts.non_tensor_batch[PARENT], strict=True))
        roots = [asked[text] for text in images.non_tensor_batch[PARENT]]
        return as_asked(images, drawings).union(DataProto.from_dict(non_tensors={ROOT: roots}))


def as_asked(images: DataProtoRef, drawings: Sequence[MediaItem]) -> DataProtoRef:
    """Put the original prompts into `prompt`, for scorers, and the drawn prompts into
    `response`."""
    by_id = {drawn["uid"]: drawn for drawn in drawings}
    rows = [by_id[uid] for uid in images.non_tensor_batch["uid"]]
    columns = {
        "prompt": [row.get("asked") for row in rows],
        "response": [row["prompt"] for row in rows],
    }
    return images.replace(DataProto.from_dict(non_tensors=columns))


@dataclass
class EarnedByPictures:
    """Scorer that gives each text the rewards of its pictures."""

    propagation: Propagation

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """Set the rewards of texts; those without a scored picture are excluded from the step.

        Args: rollouts: the pictures' has its rewards.
        """
        drawn, failed_B = rollouts[IMAGES], rollout.tensor("failed")
        rewards_B, childless_B = propagate(
            rollout.non_tensor_batch[ID].tolist(),
            drawn.non_tensor_batch[PARENT].tolist(),
            drawn.tensor("rewards"),
            drawn.tensor("failed"),
            self.propagation,
        )
        leave_out(rollout, childless_B)
        earn_at_the_end(rollout, rewards_B)
        known = rollout.non_tensor_batch["error"]
        columns = {"rewards": rewards_B, "failed": failed_B | childless_B}
        errors = []
        for error, bad in zip(known, childless_B, strict=True):
            errors.append(error or (CHILDLESS if bad else None))
        rollout.replace(DataProto.from_dict(columns, {"error": errors}))
        return {"childless_rows": float((childless_B & ~failed_B).sum())}
