"""The prompt enhancer: a language model rewrites a prompt, a diffusion model draws it, scorers look at the picture.

A rollout is a tree of two tracks (`rl_core.trainers.tracks`): x prompts, n rewrites of each, m pictures of each of
those. Pictures are scored against the prompt that was asked, and a rewrite earns what its pictures do. Either track, or
both, are trained, each by its own algorithm, with advantages among its own siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_core.algorithms.shaping import at_last_action
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement
from rl_core.errors import RecipeError, RewardError
from rl_core.models.locate import locate
from rl_core.rollout.diffusion.rewriting import drawing, drawn_prompt, question
from rl_core.runtime.home import Home
from rl_core.trainers.base import Trainer, prompt_batch
from rl_core.trainers.diffusion import DiffusionTrainer
from rl_core.trainers.rewards import score_column
from rl_core.trainers.text import TextTrainer
from rl_core.trainers.tracks import CHILDLESS, ID, PARENT, lineage, propagate
from schemas.recipe import Recipe
from schemas.tracks import IMAGES_FOLDER, TracksConfig

IMAGES, TEXT = "images", "text"
ORIGINAL = "original_"
"""Prefix of scores of what is drawn for the prompt as it was asked."""


class PromptEnhancerTrainer(Trainer):
    """RL on a language model and a diffusion model, wired as in their own domains.

    They share processes, or have devices of their own (`tracks.images.num_devices`).
    """

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[dict[str, Any]]) -> None:
        super().__init__(recipe, source_model, items)
        self.writer = TextTrainer(recipe.writing, source_model, items)
        painted = recipe.images
        self.painter = DiffusionTrainer(painted, locate(painted.model.path, Home.default().models), items)
        self._drawn: DataProtoRef | None = None

    @property
    def config(self) -> TracksConfig:
        """The recipe's block `tracks`. Raises: RecipeError when it has none."""
        if self.recipe.tracks is None:
            raise RecipeError(f"tracks: the domain {self.recipe.domain} needs this block")
        return self.recipe.tracks

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """What scorers said of the enhanced prompts' pictures, and with a prefix, of the original ones'."""
        keys = self.painter.held_out_scores
        return (*keys, ORIGINAL + "reward", *(ORIGINAL + key for key in keys))

    def build(self) -> None:
        """One block, or within it one of each model. Pictures are scored before rewrites, so their track is first."""
        with placement(self.pool) as whole:
            if self.recipe.drawing_devices:
                for trainer in (self.writer, self.painter):
                    share = trainer.recipe.placement.num_devices / self.recipe.placement.num_devices
                    with placement(self.pool, fraction=share):
                        trainer.wire()
            else:
                self.writer.wire()
                self.painter.wire()
        self.groups = [whole]
        text, images = self.writer.tracks[TEXT], self.painter.tracks[IMAGES]
        text.learns, images.learns = self.config.text.train, self.config.images.train
        text.siblings_share = images.siblings_share = PARENT
        self.tracks = {IMAGES: images, TEXT: text}

    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """The tree of each prompt. Rewrites that failed are not drawn."""
        items = {item["uid"]: item for item in prompts.non_tensor_batch["item"]}
        asked = prompt_batch([question(item, self.config.text) for item in items.values()])
        text = self.writer.engine.rollout(asked, self.step_count, None, attempt)
        text.union(lineage(text.non_tensor_batch["uid"].tolist()))
        drawings = self._drawings(items, text)
        if not drawings:
            raise RewardError(f"nothing that was written can be drawn; first: {text.non_tensor_batch['error'][0]}")
        images = self.painter.engine.rollout(prompt_batch(drawings), self.step_count, None, attempt)
        images.union(lineage(images.non_tensor_batch["uid"].tolist()))
        self._drawn = as_asked(images, drawings)
        return {IMAGES: images, TEXT: text}

    def _drawings(self, items: dict[str, dict[str, Any]], text: DataProtoRef) -> list[dict[str, Any]]:
        columns = text.non_tensor_batch
        rows = zip(columns["uid"], columns[ID], columns["response"], text.tensor("failed").tolist(), strict=True)
        track = self.config.images
        return [drawing(items[uid], row, drawn_prompt(said, track)) for uid, row, said, bad in rows if not bad]

    def add_rewards(self, rollout: DataProtoRef) -> dict[str, float]:
        """Of pictures what the scorers say; of rewrites what their pictures earned."""
        if IMAGES in rollout.keys:
            return self.painter.add_rewards(rollout)
        assert self._drawn is not None, "pictures are scored first"
        drawn, failed_B = self._drawn, rollout.tensor("failed")
        rewards_B, childless_B = propagate(
            rollout.non_tensor_batch[ID].tolist(),
            drawn.non_tensor_batch[PARENT].tolist(),
            drawn.tensor("rewards"),
            drawn.tensor("failed"),
            self.config.propagation,
        )
        mask_BT = rollout.tensor("response_mask").masked_fill(childless_B[:, None], 0)
        known = rollout.non_tensor_batch["error"]
        columns = {
            "rewards": rewards_B,
            "turn_rewards": at_last_action(rewards_B, mask_BT),
            "response_mask": mask_BT,
            "failed": failed_B | childless_B,
        }
        errors = [error or (CHILDLESS if bad else None) for error, bad in zip(known, childless_B, strict=True)]
        rollout.replace(DataProto.from_dict(columns, {"error": errors}))
        return {"childless_rows": float((childless_B & ~failed_B).sum())}

    def describe(self, rollout: DataProtoRef) -> dict[str, float]:
        """As each track's own domain does."""
        return (self.painter if IMAGES in rollout.keys else self.writer).describe(rollout)

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """A greedy rewrite of each prompt, with the scores of its picture and of one of the prompt itself, which starts
        from the same noise.
        """
        items = list(prompts.non_tensor_batch["item"])
        text = self.writer.engine.evaluate(
            prompt_batch([question(item, self.config.text) for item in items]), max_new_tokens
        )
        said = [drawn_prompt(rewrite, self.config.images) for rewrite in text.non_tensor_batch["response"]]
        enhanced, original = self._judged(items, said), self._judged(items, [item["prompt"] for item in items])
        keys = self.painter.held_out_scores
        columns = {"rewards": enhanced.tensor("rewards"), ORIGINAL + "reward": original.tensor("rewards")}
        columns |= {key: enhanced.tensor(score_column(key)) for key in keys}
        columns |= {ORIGINAL + key: original.tensor(score_column(key)) for key in keys}
        columns["failed"] = text.tensor("failed") | enhanced.tensor("failed") | original.tensor("failed")
        errors = [
            [one.non_tensor_batch["error"][row] for one in (text, enhanced, original)] for row in range(len(items))
        ]
        told = {
            "error": [next(filter(None, row), None) for row in errors],
            "prompt": [item["prompt"] for item in items],
            IMAGES: list(enhanced.non_tensor_batch[IMAGES]),
        }
        return text.replace(DataProto.from_dict(columns, told))

    def _judged(self, items: Sequence[dict[str, Any]], drawn: Sequence[str]) -> DataProtoRef:
        """One picture of each of `drawn`, scored against what its item asks."""
        drawings = [drawing(item, item["uid"], prompt) for item, prompt in zip(items, drawn, strict=True)]
        played = as_asked(self.painter.engine.evaluate(prompt_batch(drawings)), drawings)
        self.painter.add_rewards(played)
        return played

    def notes(self) -> list[str]:
        """What is computed otherwise than usual, and a limit of the writer that is the model's."""
        return [*super().notes(), *self.writer.engine.notes()]

    def backends(self) -> dict[str, Remote]:
        """Those that learn: `policy` rewrites, `images` draws."""
        named = {"policy": (TEXT, self.writer.backend), IMAGES: (IMAGES, self.painter.backend)}
        return {name: backend for name, (track, backend) in named.items() if self.tracks[track].learns}

    def write_model(self, folder: str) -> None:
        """The language model, and where it learnt, the diffusion model in the folder `images` inside."""
        self.writer.backend.export(folder)
        if self.tracks[IMAGES].learns:
            self.painter.backend.export(f"{folder}/{IMAGES_FOLDER}")


def as_asked(images: DataProtoRef, drawings: Sequence[dict[str, Any]]) -> DataProtoRef:
    """Put what was asked into `prompt`, which scorers read, and what was drawn into `response`, in place."""
    by_id = {drawn["uid"]: drawn for drawn in drawings}
    rows = [by_id[uid] for uid in images.non_tensor_batch["uid"]]
    columns = {"prompt": [row["asked"] for row in rows], "response": [row["prompt"] for row in rows]}
    return images.replace(DataProto.from_dict(non_tensors=columns))
