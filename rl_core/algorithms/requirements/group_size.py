"""Among how many rows the advantages of each track that a recipe trains are taken."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.algorithms.base import StageAlgorithm, algorithms
from schemas.recipe import Recipe
from schemas.sections.unified import Compared


@dataclass(frozen=True)
class LearningTrack:
    """A sequence of actions that a recipe trains."""

    prefix: str
    """Prefix of the track's metrics; empty in recipes with one track."""
    algorithm: StageAlgorithm
    group_size: int
    """Number of rows in a group of its advantages."""
    size_key: str
    """Recipe key that sets the group's size."""


def learning_tracks(recipe: Recipe) -> list[LearningTrack]:
    """Return the tracks that a recipe trains: one, except in domains that both write and draw."""
    own = _algorithm(recipe)
    samples, key = recipe.rows_per_prompt, "rollout.samples_per_prompt"
    stages = recipe.tracks or recipe.unified
    if stages is None:
        return [LearningTrack("", own, samples, key)]
    found = [LearningTrack("text/", own, samples, key)] if stages.text.train else []
    if not stages.images.train:
        return found
    drawn = recipe.images.rollout.samples_per_prompt
    if recipe.tracks:
        drawn_key = "tracks.images.samples_per_rewrite"
    else:
        drawn_key = "unified.images.samples_per_plan"
    if recipe.unified is not None and recipe.unified.images.compared is Compared.PROMPT:
        drawn, drawn_key = drawn * samples, f"{key} x {drawn_key}"
    return [*found, LearningTrack("images/", _algorithm(recipe.images), drawn, drawn_key)]


def _algorithm(recipe: Recipe) -> StageAlgorithm:
    algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(config)
