"""Batches the tests of this folder share, and the way to the reference's rows and back."""

from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms import StageAlgorithm, algorithms
from tests.algorithms.reference import Rows

B, T = 7, 11


def build(name: str = "grpo", **block: Any) -> StageAlgorithm:
    cls, config = algorithms.resolve({"name": name, **block}, "algorithm")
    return cls(config)


def batch(seed: int = 0) -> dict[str, Tensor]:
    """[B, T] in float64: one row without actions, one with a single one, holes elsewhere."""
    random = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(B, T, generator=random, dtype=torch.float64)

    old_BT = -0.05 - 2 * torch.rand(B, T, generator=random, dtype=torch.float64)
    mask_BT = (torch.rand(B, T, generator=random) < 0.7).double()
    mask_BT[2], mask_BT[4, 1:] = 0, 0
    mask_BT[4, 0] = 1
    return {
        "log_probs_BT": (old_BT + 0.4 * normal()).clamp(max=-0.01),
        "old_log_probs_BT": old_BT,
        "advantages_BT": normal() * mask_BT,
        "mask_BT": mask_BT,
        "ref_log_probs_BT": old_BT + 0.5 * normal(),
        "entropy_BT": old_BT.abs(),
        "rollout_log_probs_BT": old_BT + 0.3 * normal(),
        "old_kl_BT": 0.1 * normal().abs(),
        "ref_kl_BT": 0.1 * normal().abs(),
    }


NAMES = {
    "log_probs_BT": "log_prob",
    "old_log_probs_BT": "old",
    "advantages_BT": "advantage",
    "ref_log_probs_BT": "ref",
    "entropy_BT": "entropy",
    "rollout_log_probs_BT": "rollout",
    "old_kl_BT": "old_kl",
    "ref_kl_BT": "ref_kl",
}


def rows_of(data: dict[str, Tensor]) -> Rows:
    """The actions of each row."""
    kept = data["mask_BT"] != 0
    rows = []
    for b in range(len(kept)):
        places = kept[b].nonzero()[:, 0].tolist()
        named = {short: data[name][b].tolist() for name, short in NAMES.items() if name in data}
        rows.append(
            [
                {short: row[t] for short, row in named.items()} | {"fixed": named["log_prob"][t]}
                for t in places
            ]
        )
    return rows


def gradient_by_differences(value, data: dict[str, Tensor], step: float = 1e-6) -> Tensor:
    """d value(rows) / d log_prob by central differences, [B, T]; `fixed` stays where it is."""
    gradient_BT = torch.zeros_like(data["log_probs_BT"])
    rows = rows_of(data)
    for b, row in enumerate(rows):
        for t, action in zip((data["mask_BT"][b] != 0).nonzero()[:, 0].tolist(), row, strict=True):
            start = action["log_prob"]
            action["log_prob"] = start + step
            above = value(rows)
            action["log_prob"] = start - step
            below = value(rows)
            action["log_prob"] = start
            gradient_BT[b, t] = (above - below) / (2 * step)
    return gradient_BT
