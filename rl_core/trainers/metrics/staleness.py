"""Age of the weights that sampled the rows of a step, counted in changes of the weights since."""

from __future__ import annotations

from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.handles import Batch

VERSION = "weight_version"
"""Column of a rollout: number of the weights that sampled a row, [B]."""


def staleness_metrics(batch: Batch, trained: WeightVersion) -> dict[str, float]:
    """Return the mean and the largest staleness of the rows of a step. Args: trained: version of
    the weights that are trained on them."""
    ages_B = (trained.number - batch.tensor(VERSION)).float()
    return {"staleness_mean": float(ages_B.mean()), "staleness_max": float(ages_B.max())}
