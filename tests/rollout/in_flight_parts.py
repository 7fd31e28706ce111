"""A job whose engine takes newer weights within replies, and the check that each token is of the
weights that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rl_core.runs.rollouts.orders import follow_orders, note_order, orders_of
from rl_core.train.weights.order import TOKEN_VERSIONS, Order, Taken
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.test_ahead import CORRECTED
from tests.rollout.test_dedicated import ITEMS
from tests.rollout.vllm_parts import TOLERANCE

STEPS = 4
ORDERS = {2: (Taken(2, 1),), 3: (Taken(1, 2),), 4: (Taken(1, 3),)}
"""What is taken after how many rounds of requests: each rollout goes on with the weights of the
step before it."""
CHANGES: dict[str, Any] = {
    "algorithm": CORRECTED,
    "training": {"steps_per_iteration": STEPS, "prompts_per_step": len(ITEMS)},
}
ROLLOUT: dict[str, Any] = {
    "steps_ahead": 2,
    "in_flight": True,
    "tokens_per_request": 4,
    "max_new_tokens": 12,
}
COLUMNS = ["input_ids", "attention_mask", "response_mask", "rollout_log_probs", TOKEN_VERSIONS]


def check_in_flight(trainer_class: type[TextTrainer], settings: Recipe, folder: Path) -> None:
    """Check each token's log-probability against the weights that drew it."""
    for step, taken in ORDERS.items():
        note_order(folder, step, Order({0: taken}))
    with built(trainer_class(settings, settings.model.path, ITEMS)) as trainer:
        follow_orders(trainer, folder)
        weights, rollouts = [trainer.backends()["policy"].full_state()[0]], []
        for _ in range(STEPS):
            _, rollout = trainer.step()
            rollouts.append(rollout.fetch(COLUMNS))
            weights.append(trainer.backends()["policy"].full_state()[0])
    assert set(orders_of(folder)) == set(ORDERS)
    seen = []
    for rollout in rollouts:
        columns = [rollout.tensor(column) for column in COLUMNS]
        ids_BL, attention_BL, response_BT, said_BT, versions_BT = columns
        is_drawn_BT = response_BT.bool()
        seen.append(versions_BT[is_drawn_BT].unique().tolist())
        for version in seen[-1]:
            expected_BT = log_probs(
                settings.model.path, weights[version], ids_BL, attention_BL, said_BT.shape[1]
            )
            of_version_BT = is_drawn_BT & (versions_BT == version)
            apart = (expected_BT - said_BT)[of_version_BT].abs()
            assert float(apart.max()) < TOLERANCE, (version, apart)
            other = weights[version + 1] if version + 1 < len(weights) else weights[0]
            other_BT = log_probs(settings.model.path, other, ids_BL, attention_BL, said_BT.shape[1])
            assert float((other_BT - said_BT)[of_version_BT].abs().max()) > TOLERANCE
    assert seen == [[0], [0, 1], [1, 2], [2, 3]]


@torch.no_grad()
def log_probs(
    path: str,
    weights: dict[str, torch.Tensor],
    ids_BL: torch.Tensor,
    attention_BL: torch.Tensor,
    num_response: int,
) -> torch.Tensor:
    """What transformers' own forward gives the response, [B, T]."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    named = {name.removeprefix("model."): one for name, one in weights.items()}
    left = model.load_state_dict(named, strict=False)
    assert set(left.missing_keys) <= {"lm_head.weight"} and not left.unexpected_keys, left
    positions_BL = (attention_BL.cumsum(-1) - 1).clamp_min(0)
    logits_BLV = model(ids_BL, attention_mask=attention_BL, position_ids=positions_BL).logits
    all_BTV = logits_BLV[:, -num_response - 1 : -1].log_softmax(-1)
    return all_BTV.gather(-1, ids_BL[:, -num_response:, None])[..., 0]
