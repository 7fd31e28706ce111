"""sft: a mean over the tokens of the whole step by hand, whatever its parts."""

import pytest
import torch

from rl_core.algorithms import Denominators
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from tests.algorithms.batches import build

LOG_PROBS = torch.tensor([[-1.0, -2.0, -9.0], [-4.0, -9.0, -9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
ALL = Denominators(num_tokens=3.0, num_sequences=2.0, max_length=3)


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token-mean", 7 / 3), ("seq-mean-token-mean", 5.5 / 2)]
)
def test_the_loss_by_hand_is_the_sum_of_its_parts(aggregation: str, expected: float) -> None:
    algorithm = build("sft", aggregation=aggregation)
    log_probs = LOG_PROBS.clone().requires_grad_()

    def loss(rows: slice) -> torch.Tensor:
        ones = torch.ones_like(log_probs[rows])
        given = log_probs[rows], log_probs[rows].detach(), ones, MASK[rows], None, None, ALL
        return algorithm.loss(*given)[0]

    assert float(loss(slice(None)).detach()) == pytest.approx(expected)
    parts = loss(slice(0, 1)) + loss(slice(1, 2))
    assert float(parts.detach()) == pytest.approx(expected)
    parts.backward()
    assert log_probs.grad is not None
    assert bool(((log_probs.grad != 0) == (MASK != 0)).all())


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("smoke/text", "algorithm.name=sft", "algorithm sft learns given answers: set domain: sft"),
        ("smoke/sft", "algorithm.name=grpo", "domain sft has given answers; use sft"),
        ("smoke/text", "sft.turns=last", "sft: only in the domain sft"),
        ("smoke/sft", "rollout.samples_per_prompt=2", "nothing is sampled for training"),
        ("smoke/sft", "rollout.engine=dedicated", "rollout"),
    ],
)
def test_settings_without_an_effect_are_refused(recipe: str, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe, [override])
