"""How far two computations of one model may differ."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.models.checks.comparison import EXACT, SAFETY, explained
from rl_core.models.decoding.router_replay import IN_PARTS


def test_a_choice_that_only_some_roundings_flip_is_explained_by_rounding() -> None:
    scores = nn.Linear(1, 8, bias=False, dtype=torch.bfloat16)
    vars(scores)[IN_PARTS] = False  # as a stack of experts has it
    # The first draw sends the token to one of the first two experts, which give the same; later
    # ones do not.
    experts_E = torch.tensor([0.0, 0.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0])

    def say() -> Tensor:
        return experts_E[scores(torch.ones(1, dtype=torch.bfloat16)).argmax()][None]

    with torch.no_grad():
        # Neighbours in bfloat16, so that an error of rounding decides between them.
        scores.weight.fill_(1.0)[0] = 0.99609375
    assert say() == 0.0
    assert explained(say(), say, scores, torch.bfloat16) == EXACT + SAFETY * 5.0
    with torch.no_grad():
        scores.weight[0] = 2.0
    assert explained(say(), say, scores, torch.bfloat16) == EXACT
