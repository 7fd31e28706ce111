"""Detection of trainings without a learning signal, from the metrics of their steps.

If the rewards of siblings are equal, every advantage is 0. A run in which no group ever differed
ends like a successful one, with a registered model; so it has to be reported. Where rewards are
only logged, the gradient alone says whether something was learnt.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from rl_core.algorithms.requirements.group_size import LearningTrack, learning_tracks
from schemas.recipe import Recipe

FLAT = "no group of siblings ever differed in reward"
NO_ADVANTAGE = "every advantage was 0"
NOTHING = "nothing was learnt"
_log = logging.getLogger(__name__)


def what_taught_nothing(recipe: Recipe, steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a sentence for each trained track that had no learning signal from its rewards; empty
    if all had one.

    Args: steps: metrics of each step.
    """
    if not steps:
        return []
    found = {track.prefix: _verdict(track, steps) for track in learning_tracks(recipe)}
    return [prefix.replace("/", ": ") + said for prefix, said in found.items() if said]


def warn_of_nothing_learnt(recipe: Recipe, steps: Sequence[Mapping[str, float]], what: str) -> None:
    """Log `what_taught_nothing` as a warning, which appears in the flow run's log.

    Args: what: name of the thing that the steps belong to.
    """
    for said in what_taught_nothing(recipe, steps):
        _log.warning("%s: %s", what, said)


def _verdict(track: LearningTrack, steps: Sequence[Mapping[str, float]]) -> str:
    own: list[dict[str, float]] = []
    for step in steps:
        mine = (key for key in step if key.startswith(track.prefix))
        own.append({key.removeprefix(track.prefix): step[key] for key in mine})
    # A step without a row to train on has a norm of NaN.
    norms = [step["grad_norm"] for step in own if "grad_norm" in step]
    moved = any(math.isfinite(norm) and norm > 0 for norm in norms)
    silent = all(step.get("zero_advantage_share") == 1.0 for step in own)
    if not (silent and track.algorithm.learns_from_advantages):
        if norms and not moved:
            return f"every step's gradient was 0 or not finite: {NOTHING}"
        return ""
    flat = [step.get("zero_std_groups", 0.0) == step.get("num_groups") for step in own]
    if moved:
        taught = "the rewards taught nothing, and other terms of the loss moved the weights"
    else:
        taught = NOTHING
    return f"{FLAT if track.algorithm.needs_siblings and all(flat) else NO_ADVANTAGE}: {taught}"
