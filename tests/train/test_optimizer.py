"""The learning rate by hand, and the optimiser's settings."""

import math

import pytest
import torch
from pydantic import ValidationError

from rl_core.errors import RecipeError
from rl_core.runs.recipes import parse_recipe
from rl_core.train.muon import STEP
from rl_core.train.optimizer import (
    MOMENTS,
    add_moments,
    make_optimizer,
    make_scheduler,
    rate_factor,
)
from schemas.recipe import LrSchedulerConfig, OptimizerConfig
from schemas.sections.policy import LrSchedulerKind

QUARTERS = [math.cos(math.pi * share) / 2 + 0.5 for share in (0, 0.25, 0.5, 0.75, 1)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (LrSchedulerKind.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (LrSchedulerKind.LINEAR, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (LrSchedulerKind.COSINE, [0.5, 1.0, *[0.2 + 0.8 * share for share in QUARTERS], 0.2]),
    ],
)
def test_the_rate_of_every_step_by_hand(kind: LrSchedulerKind, expected: list[float]) -> None:
    config = LrSchedulerConfig(kind=kind, warmup_steps=2, min_ratio=0.2)
    # Six steps in all: two of warm-up, four from the peak to the minimum, where it stays.
    assert [rate_factor(config, step, 6) for step in range(8)] == pytest.approx(expected)


def test_a_warm_up_as_long_as_the_training_never_falls() -> None:
    config = LrSchedulerConfig(kind=LrSchedulerKind.COSINE, warmup_steps=4)
    assert [rate_factor(config, step, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_the_optimiser_follows_the_schedule() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = make_optimizer([weight], OptimizerConfig(learning_rate=0.5))
    scheduler = make_scheduler(
        optimizer, LrSchedulerConfig(kind=LrSchedulerKind.LINEAR, warmup_steps=1), 3
    )
    rates = []
    for _ in range(4):
        weight.grad = torch.ones(1)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.5, 0.5, 0.25, 0.0])


def test_frozen_parameters_are_not_optimised() -> None:
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    trained = torch.nn.Parameter(torch.ones(1))
    config = OptimizerConfig(learning_rate=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    (group,) = make_optimizer([frozen, trained], config).param_groups
    assert [parameter is trained for parameter in group["params"]] == [True]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (
        0.1,
        (0.8, 0.9),
        1e-3,
        0.2,
    )


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="'constant', 'linear' or 'cosine'"):
        LrSchedulerConfig.model_validate({"kind": "cosin"})
    values = {"name": "x", "model": {"path": "some/model"}, "data": {"train": ["t"], "eval": ["e"]}}
    with pytest.raises(
        RecipeError, match=r"scheduler\.kind: .*'constant', 'linear' or 'cosine', got 'cosin'"
    ):
        parse_recipe({**values, "scheduler": {"kind": "cosin"}})


def test_moments_that_are_added_are_those_of_the_first_gradient() -> None:
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 4)) for _ in range(4)]
    as_usual, added = (
        make_optimizer(pair, OptimizerConfig(learning_rate=0.5))
        for pair in (weights[:2], weights[2:])
    )
    add_moments(added)
    # The second of each pair is met by no gradient in the first step.
    for met in ([0, 2], [0, 1, 2, 3]):
        for index in met:
            weights[index].grad = torch.linspace(0, 3, 4)
        as_usual.step()
        add_moments(added)
        added.step()
    for usual, other in zip(weights[:2], weights[2:], strict=True):
        assert torch.equal(usual, other)
        assert as_usual.state[usual].keys() == added.state[other].keys() == {STEP, *MOMENTS}
        assert all(
            torch.equal(as_usual.state[usual][name], added.state[other][name])
            for name in (STEP, *MOMENTS)
        )
