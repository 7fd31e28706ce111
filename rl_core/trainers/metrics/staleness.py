"""Age of the weights that sampled the rows of a step, counted in changes of the weights since."""

from __future__ import annotations

from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.order import TOKEN_VERSIONS
from rl_core.trainers.handles import Batch
from rl_core.trainers.step_record import column_names

VERSION = "weight_version"
"""Column of a rollout: number of the weights that sampled a row, [B]."""


def staleness_metrics(batch: Batch, trained: WeightVersion) -> dict[str, float]:
    """Return the mean and the largest staleness of the rows of a step; of their tokens, where
    replies are of several versions. Args: trained: version of the weights that are trained on
    them."""
    if TOKEN_VERSIONS in column_names(batch):
        versions = batch.tensor(TOKEN_VERSIONS)[batch.tensor("response_mask").bool()]
    else:
        versions = batch.tensor(VERSION)
    if not len(versions):  # all rows failed
        return {}
    ages = (trained.number - versions).float()
    return {"staleness_mean": float(ages.mean()), "staleness_max": float(ages.max())}
