"""The tokens that may be drawn are those of transformers' processors, ties included, and a packed
support gives them back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rl_core.models.decoding.token_choice import (
    LEFT_OUT,
    PositionSupport,
    StepSupport,
    Support,
    kept_tokens,
    penalised,
    steps_of,
    support_of,
)
from schemas.sections.sampling import SamplingConfig

CHOICES = [
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_p": 1e-3},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 50, "min_p": 0.1},
]


def theirs(scores_RV: Tensor, choice: SamplingConfig) -> Tensor:
    """Scores after the processors that `generate` would apply, in its order."""
    processors: Any = LogitsProcessorList()
    if choice.top_k is not None:
        processors.append(TopKLogitsWarper(choice.top_k))
    if choice.top_p < 1:
        processors.append(TopPLogitsWarper(choice.top_p))
    if choice.min_p:
        processors.append(MinPLogitsWarper(choice.min_p))
    return processors(torch.empty(len(scores_RV), 0, dtype=torch.long), scores_RV.clone())


@pytest.mark.parametrize("changes", CHOICES, ids=str)
@pytest.mark.parametrize("rounded", ["not", "peaked", "bfloat16", "to_integers"])
def test_the_kept_tokens_are_those_of_transformers(changes: dict[str, float], rounded: str):
    choice = SamplingConfig.model_validate(changes)
    for num_tokens in (7, 300, 5000):
        generator = torch.Generator().manual_seed(num_tokens)
        scores_RV = 2 * torch.randn(16, num_tokens, generator=generator)
        scores_RV = 3 * scores_RV if rounded == "peaked" else scores_RV
        # Rounded scores have ties, also where the kept tokens end.
        scores_RV = scores_RV.bfloat16().float() if rounded == "bfloat16" else scores_RV
        scores_RV = scores_RV.round() if rounded == "to_integers" else scores_RV
        kept_RV = kept_tokens(scores_RV, choice)
        assert torch.equal(kept_RV, theirs(scores_RV, choice) > LEFT_OUT)
        assert bool(kept_RV.any(-1).all())


def test_a_token_that_is_left_out_already_stays_out():
    scores = torch.tensor([[LEFT_OUT, 1.0, 0.5, LEFT_OUT]])
    for changes in ({"top_k": 4}, {"top_p": 0.999}, {"min_p": 0.01}):
        kept = kept_tokens(scores, SamplingConfig.model_validate(changes))
        assert kept.tolist() == [[False, True, True, False]]


def test_the_repetition_penalty_is_that_of_transformers():
    generator = torch.Generator().manual_seed(0)
    logits_RV = torch.randn(4, 50, generator=generator)
    context_RL = torch.randint(0, 50, (4, 9), generator=generator)
    seen_RV = torch.zeros_like(logits_RV, dtype=torch.bool).scatter_(1, context_RL, True)
    penalise: Any = RepetitionPenaltyLogitsProcessor(1.3)
    expected_RV = penalise(context_RL, logits_RV.clone())
    assert torch.equal(penalised(logits_RV, seen_RV, 1.3), expected_RV)


def test_a_packed_support_gives_back_the_kept_tokens_of_trained_positions():
    kept_RV = torch.rand(5, 20, generator=torch.Generator().manual_seed(0)) < 0.3
    kept_RV[:, 4] = True
    left_out = StepSupport(np.array([2, 19], np.int32), is_kept=False)
    reply = support_of([*steps_of(kept_RV), None, left_out])
    row = Support.joined([reply, Support.whole(2)])
    assert len(row) == 9
    # The first row trains its tokens 1, 4 and 6, the second one 0 and 8; the rest is padding.
    trained = np.zeros((2, 12), bool)
    trained[0, [1, 4, 6]] = trained[1, [0, 8]] = True
    found = PositionSupport([row, row], trained)
    but_two = torch.ones(20, dtype=torch.bool)
    but_two[[2, 19]] = False
    expected = torch.stack([kept_RV[1], kept_RV[4], but_two, kept_RV[0], torch.ones(20).bool()])
    device = torch.device("cpu")
    assert torch.equal(found.mask(0, 5, 20, device), expected)
    assert torch.equal(found.mask(2, 4, 20, device), expected[2:4])


def test_a_pass_without_a_trained_position_has_no_support():
    one = support_of([StepSupport(np.array([1], np.int32), is_kept=True)] * 3)
    found = PositionSupport([one], np.zeros((1, 1), bool))
    assert found.mask(0, 0, 20, torch.device("cpu")).shape == (0, 20)
