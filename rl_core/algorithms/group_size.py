"""Check that rows have siblings (rows of the same prompt), for algorithms that compare with
them."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.algorithms.base import StageAlgorithm, algorithms
from rl_core.algorithms.requirements import named
from rl_core.errors import RecipeError
from schemas.recipe import Domain, Recipe
from schemas.unified import Compared

WITHOUT_SIBLINGS = "reinforce_plus_plus"
"""Token algorithm that works with one sample per prompt."""


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
    drawn_key = "tracks.images.samples_per_rewrite" if recipe.tracks else "unified.images.samples_per_plan"
    if recipe.unified is not None and recipe.unified.images.compared is Compared.PROMPT:
        drawn, drawn_key = drawn * samples, f"{key} x {drawn_key}"
    return [*found, LearningTrack("images/", _algorithm(recipe.images), drawn, drawn_key)]


def check_siblings(recipe: Recipe) -> None:
    """Refuse a recipe whose rows would be compared with siblings that they do not have: all
    advantages would be 0.

    Raises: RecipeError naming the key that sets the group's size.
    """
    if recipe.domain is Domain.PREFERENCE:
        return
    for track in learning_tracks(recipe):
        if track.group_size > 1 or not track.algorithm.needs_siblings:
            continue
        draws = recipe.domain is Domain.DIFFUSION or track.prefix == "images/"
        other = "" if draws else f", or use one that does not, such as {WITHOUT_SIBLINGS}"
        raise RecipeError(
            f"{track.size_key} is 1: algorithm {named(recipe.images if draws else recipe)} compares each sample with "
            f"others of its prompt, and one alone teaches nothing; set 2 or more{other}"
        )


def _algorithm(recipe: Recipe) -> StageAlgorithm:
    algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(config)
