"""Who learns from a comparison with siblings, the rows of the same prompt, and whether a recipe gives it any."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.algorithms.base import StageAlgorithm, algorithms
from rl_core.algorithms.requirements import named
from rl_core.errors import RecipeError
from schemas.recipe import Recipe
from schemas.unified import Compared

WITHOUT_SIBLINGS = "reinforce_plus_plus"
"""An algorithm for tokens that one sample of a prompt is enough for."""


@dataclass(frozen=True)
class LearningTrack:
    """A sequence of actions that a recipe trains."""

    prefix: str
    """Of its metrics; empty where a recipe has one track."""
    algorithm: StageAlgorithm
    group_size: int
    """Rows that its advantages are taken among."""
    size_key: str
    """What of the recipe sets the group's size."""


def learning_tracks(recipe: Recipe) -> list[LearningTrack]:
    """What a recipe trains; one track but where something is both written and drawn."""
    own = _algorithm(recipe)
    samples, key = recipe.rows_per_prompt, "rollout.samples_per_prompt"
    stages = recipe.tracks or recipe.unified
    if stages is None:
        return [LearningTrack("", own, samples, key)]
    found = [LearningTrack("text/", own, samples, key)] if stages.text.train else []
    if not stages.images.train:
        return found
    drawn = recipe.images.rollout.samples_per_prompt
    drawn_key = "tracks.images.samples_per_rewrite" if recipe.tracks else "unified.images.samples_per_plan"
    if recipe.unified is not None and recipe.unified.images.compared is Compared.PROMPT:
        drawn, drawn_key = drawn * samples, f"{key} x {drawn_key}"
    return [*found, LearningTrack("images/", _algorithm(recipe.images), drawn, drawn_key)]


def check_siblings(recipe: Recipe) -> None:
    """Raises: RecipeError where rows would be compared with siblings that they do not have: all advantages are 0."""
    if recipe.has_pairs:
        return
    for track in learning_tracks(recipe):
        if track.group_size > 1 or not track.algorithm.needs_siblings:
            continue
        draws = track.prefix == "images/" or not recipe.domain.traits.samples_tokens
        other = "" if draws else f", or use one that does not, such as {WITHOUT_SIBLINGS}"
        raise RecipeError(
            f"{track.size_key} is 1: algorithm {named(recipe.images if draws else recipe)} compares each sample with "
            f"others of its prompt, and one alone teaches nothing; set 2 or more{other}"
        )


def _algorithm(recipe: Recipe) -> StageAlgorithm:
    algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(config)
