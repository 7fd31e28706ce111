"""The Bradley-Terry loss: a case worked by hand, shares of micro-batches, and TRL's RewardTrainer
where it is installed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms.bradley_terry import BradleyTerry
from rl_core.algorithms.metrics import to_floats
from rl_core.algorithms.terms import Denominators

SCORES = torch.tensor([1.0, 0.5, -0.25, 0.75])
"""Chosen and rejected of two pairs."""
MARGINS = torch.tensor([0.5, 0.5, 0.0, 0.0])


def loss_of(
    scores_B: Tensor, margins_B: Tensor | None, center: float, num_rows: int | None = None
) -> tuple[Tensor, dict[str, float]]:
    algorithm = BradleyTerry(BradleyTerry.Config.model_validate({"center_coefficient": center}))
    mask_BT = torch.ones(len(scores_B), 1)
    rewards_B = torch.tensor([1.0, 0.0]).repeat(len(scores_B) // 2)
    advantages_BT, _ = algorithm.advantages(rewards_B, torch.zeros(len(scores_B)), mask_BT)
    num = float(num_rows or len(scores_B))
    loss, metrics = algorithm.loss(
        scores_B[:, None],
        scores_B[:, None].detach(),
        advantages_BT,
        mask_BT,
        None,
        None,
        Denominators(num, num, 1),
        margins_B=margins_B,
    )
    return loss, to_floats(metrics)


def test_a_case_worked_by_hand() -> None:
    loss, metrics = loss_of(SCORES, MARGINS, 0.1)
    # Leads 0.5 and -1, margins 0.5 and 0; sums of scores 1.5 and 0.5.
    ranking = (math.log(2) + math.log(1 + math.e)) / 2
    assert float(loss) == pytest.approx(ranking + 0.1 * (2.25 + 0.25) / 2)
    assert metrics["ranking_loss"] == pytest.approx(ranking)
    assert metrics["reward_accuracy"] == 0.5 and metrics["score_margin"] == -0.25
    assert float(loss_of(SCORES, None, 0.0)[0]) == pytest.approx(
        (math.log(1 + math.exp(-0.5)) + math.log(1 + math.e)) / 2
    )


def test_shares_of_micro_batches_add_up() -> None:
    whole, _ = loss_of(SCORES, MARGINS, 0.1)
    parts = [loss_of(SCORES[i : i + 2], MARGINS[i : i + 2], 0.1, 4)[0] for i in (0, 2)]
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_rows_that_are_no_pairs_are_refused() -> None:
    algorithm = BradleyTerry(BradleyTerry.Config())
    ones = torch.ones(2, 1)
    with pytest.raises(ValueError, match="adjacent pairs"):
        algorithm.loss(ones, ones, -ones, ones, None, None, Denominators(2.0, 2.0, 1))


@pytest.mark.parametrize("with_margin", [False, True])
def test_the_loss_is_that_of_trl(with_margin: bool) -> None:
    trainer = pytest.importorskip("trl.trainer.reward_trainer", reason="TRL is not installed")
    accelerator = SimpleNamespace(
        gather=lambda value: value, gather_for_metrics=lambda value: value
    )
    metrics: dict[str, list[Any]] = {
        name: [] for name in ("min_reward", "mean_reward", "max_reward", "accuracy", "margin")
    }
    # Its `compute_loss` alone, without the data set and the optimizer that its trainer wants.
    theirs = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(center_rewards_coefficient=0.01),
        accelerator=accelerator,
        _metrics={"eval": metrics},
        _total_train_tokens=0,
    )
    scores_B = torch.randn(32, generator=torch.Generator().manual_seed(0)) * 3
    margins_B = torch.rand(16, generator=torch.Generator().manual_seed(1)).repeat_interleave(2)
    logits = torch.cat([scores_B[::2], scores_B[1::2]])[:, None]
    inputs = {"margin": margins_B[::2]} if with_margin else {}
    wanted = trainer.RewardTrainer.compute_loss(
        theirs, lambda **_: SimpleNamespace(logits=logits), inputs
    )
    loss, _ = loss_of(scores_B, margins_B if with_margin else None, 0.01)
    assert float(loss) == pytest.approx(float(wanted), abs=1e-5)
