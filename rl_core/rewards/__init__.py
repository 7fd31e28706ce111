"""Rewards: scorers (one file each in `scorers/`) and the service (`service.py`) that runs several
on a rollout."""

from rl_core.rewards.base import ImageScorer, Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.resolve import resolve_scorers

__all__ = [
    "ImageScorer",
    "Modality",
    "Sample",
    "Scorer",
    "Unscored",
    "resolve_scorers",
    "reward_scorers",
]
