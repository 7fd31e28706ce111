"""Reinforcement-learning algorithms: pure tensor maths over `[B, T]`, one algorithm per file."""

from rl_core.algorithms.base import StageAlgorithm, algorithms
from rl_core.algorithms.metrics import Metric, MetricKind, merge, merge_all, to_floats
from rl_core.algorithms.terms import Aggregation, Denominators, KlKind

__all__ = [
    "Aggregation",
    "Denominators",
    "KlKind",
    "Metric",
    "MetricKind",
    "StageAlgorithm",
    "algorithms",
    "merge",
    "merge_all",
    "to_floats",
]
