"""The prompt enhancer: a language model rewrites prompts, and a diffusion model draws the rewrites.

The tree of its two tracks is in `writing_and_drawing`. This file has the two models, the input of
the second one, and the evaluation, which compares pictures of rewrites with pictures of the
original prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rl_core.data.prepare.items import MediaItem
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, placement
from rl_core.errors import RecipeError
from rl_core.models.locate import locate
from rl_core.rollout.diffusion.rewriting import drawing, drawn_prompt
from rl_core.runtime.home import Home
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.diffusion import STEPS
from rl_core.trainers.domains.text import TOKENS
from rl_core.trainers.domains.writing_and_drawing import (
    IMAGES,
    Items,
    as_asked,
    questions,
    written_and_drawn,
)
from rl_core.trainers.handles import ScorersHandle
from rl_core.trainers.rewards import ServiceScorer, score_column
from rl_core.trainers.track import Engine, Wiring, prompt_batch
from rl_core.trainers.tree import ID
from rl_core.trainers.wiring import Policy, side_by_side, wire_scorers
from schemas.sections.sampling import EvaluationSampling
from schemas.sections.tracks import IMAGES_FOLDER, ImagesTrack, TracksConfig

ORIGINAL = "original_"
"""Prefix of the scores of pictures of the original prompts."""


class PromptEnhancerTrainer(Trainer):
    """RL on a language model and a diffusion model, each wired as in its own domain.

    They share processes, or have their own devices (`tracks.images.num_devices`).
    """

    def wire(self) -> Wiring:
        """Place both models, and return their tracks and the evaluation of both."""
        recipe = self.recipe
        if recipe.tracks is None:
            raise RecipeError(f"tracks: the domain {recipe.domain} needs this block")
        config = recipe.tracks
        writer, painter, reward_service = self._place()
        scorer = ServiceScorer.of(recipe.images, reward_service, max_length=None)
        drawings = partial(_drawings, track=config.images)
        tracks = written_and_drawn(recipe, config, writer, painter, scorer, drawings=drawings)
        backends = {"policy": writer.learner.backend, IMAGES: painter.learner.backend}
        learning = {"policy": config.text.train, IMAGES: config.images.train}
        policies = {}
        for name, backend in backends.items():
            if learning[name]:
                policies[name] = backend
        exported = {"": backends["policy"]} | (
            {IMAGES_FOLDER: backends[IMAGES]} if config.images.train else {}
        )
        return Wiring(
            tracks=tracks,
            held_out=BesideOriginals(writer.engine, painter.engine, scorer, config),
            policies=policies,
            exported=exported,
            with_notes=[*policies.values(), writer.engine.handle],
        )

    def _place(self) -> tuple[Policy, Policy, ScorersHandle | None]:
        """Place writer, painter and scorers in the same processes, or in one block per model."""
        recipe, whole = self.recipe, self.recipe.placement.num_devices
        painting = recipe.images
        pipeline = locate(painting.model.path, Home.default().models)
        if not recipe.drawing_devices:
            writer = side_by_side(TOKENS, recipe.writing, self.source_model)
            return writer, side_by_side(STEPS, painting, pipeline), wire_scorers(painting)
        with placement(self.pool, fraction=recipe.writing.placement.num_devices / whole):
            writer = side_by_side(TOKENS, recipe.writing, self.source_model)
        with placement(self.pool, fraction=painting.placement.num_devices / whole):
            return writer, side_by_side(STEPS, painting, pipeline), wire_scorers(painting)


def _drawings(items: Items, texts: DataProtoRef, track: ImagesTrack) -> list[MediaItem]:
    """Return the rows to draw: the rewrites that did not fail."""
    columns = texts.non_tensor_batch
    rows = zip(
        columns["uid"],
        columns[ID],
        columns["response"],
        texts.tensor("failed").tolist(),
        strict=True,
    )
    drawings: list[MediaItem] = []
    for uid, row, said, failed in rows:
        if not failed:
            drawings.append(drawing(items[uid], row, drawn_prompt(said, track)))
    return drawings


@dataclass
class BesideOriginals:
    """Evaluation of a greedy rewrite of each held-out prompt: the scores of its picture, and of a
    picture of the original prompt from the same noise."""

    writer: Engine
    painter: Engine
    scorer: ServiceScorer
    config: TracksConfig

    @property
    def scores(self) -> tuple[str, ...]:
        """Score columns: of pictures of rewrites, and with a prefix, of pictures of the original
        prompts."""
        keys = tuple(self.scorer.weights)
        return (*keys, ORIGINAL + "reward", *(ORIGINAL + key for key in keys))

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProtoRef:
        """Rewrite, draw and score each prompt, one row per prompt, in order."""
        items = list(prompts.non_tensor_batch["item"])
        asked = questions(items, self.config.text)
        text = self.writer.handle.evaluate(asked, max_new_tokens, choice=choice)
        said = []
        for rewrite in text.non_tensor_batch["response"]:
            said.append(drawn_prompt(rewrite, self.config.images))
        enhanced, original = (
            self._judged(items, said),
            self._judged(items, [item["prompt"] for item in items]),
        )
        columns = {
            "rewards": enhanced.tensor("rewards"),
            ORIGINAL + "reward": original.tensor("rewards"),
        }
        columns |= {key: enhanced.tensor(score_column(key)) for key in self.scorer.weights}
        columns |= {
            ORIGINAL + key: original.tensor(score_column(key)) for key in self.scorer.weights
        }
        columns["failed"] = (
            text.tensor("failed") | enhanced.tensor("failed") | original.tensor("failed")
        )
        errors = zip(
            *(one.non_tensor_batch["error"] for one in (text, enhanced, original)), strict=True
        )
        told = {
            "error": [next(filter(None, row), None) for row in errors],
            "prompt": [item["prompt"] for item in items],
            IMAGES: list(enhanced.non_tensor_batch[IMAGES]),
        }
        return text.replace(DataProto.from_dict(columns, told))

    def _judged(self, items: Sequence[MediaItem], drawn: Sequence[str]) -> DataProtoRef:
        """Draw one picture of each text in `drawn`, and score it against its item's prompt."""
        drawings = []
        for item, prompt in zip(items, drawn, strict=True):
            drawings.append(drawing(item, item["uid"], prompt))
        played = as_asked(self.painter.handle.evaluate(prompt_batch(drawings)), drawings)
        self.scorer.add_rewards(played, {IMAGES: played})
        return played
