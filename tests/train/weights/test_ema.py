"""Moving averages: the recurrence, the loan to an evaluation, and which weights sample and set the
anchor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.errors import RLTrainError
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.ema import EmaShadow, decay_at, local_part
from schemas.recipe import EmaFullConfig, EmaLoraConfig
from schemas.sections.policy import EmaConfig, EmaWarmup
from tests.train.jobs import LORA, Setup, batch, log_probs, make_both, same_bits, train_steps
from tests.train.ranks import Ranks

AVERAGES: dict[str, dict[str, Any]] = {
    "shadow": {"ema": EmaFullConfig(decay=0.9)},
    "mirror": {"ema": EmaFullConfig(decay=0.9, mirror=True)},
    "adapter": {"ema": EmaLoraConfig(decay=0.9), "lora": LORA},
    "shadow of adapter": {"ema": EmaFullConfig(decay=0.9), "lora": LORA},
}
each_average = pytest.mark.parametrize("average", AVERAGES)


@pytest.mark.parametrize(
    ("config", "decays"),
    [
        (EmaConfig(decay=0.9), [0.9, 0.9, 0.9]),
        (EmaConfig(decay=0.2, warmup=EmaWarmup.RATIO), [1 / 10, 2 / 11, 0.2]),
        (EmaConfig(decay=0.5, warmup=EmaWarmup.RAMP, ramp_step=0.3), [0.0, 0.3, 0.5]),
    ],
    ids=["none", "ratio", "ramp"],
)
def test_the_decay_by_hand(config: EmaConfig, decays: list[float]) -> None:
    assert [decay_at(config, n) for n in range(3)] == pytest.approx(decays)


def test_the_average_by_hand() -> None:
    live = torch.tensor([1.0])
    ema = EmaShadow(EmaConfig(decay=0.75), {"w": live})
    for value in (5.0, 9.0):
        live.fill_(value)
        ema.update()
    # 1 -> 0.75 * 1 + 0.25 * 5 = 2 -> 0.75 * 2 + 0.25 * 9 = 3.75
    assert ema.shadow["w"].tolist() == [3.75]


def test_small_steps_reach_the_average_of_bfloat16_weights() -> None:
    live = torch.ones(1, dtype=torch.bfloat16)
    ema = EmaShadow(EmaConfig(decay=0.999), {"w": live})
    live.fill_(1.0078125)
    for _ in range(10):
        ema.update()
    assert ema.shadow["w"].item() == pytest.approx(1 + 0.0078125 * (1 - 0.999**10), rel=1e-6)


def whole(backend: FSDPBackend, tensors: dict[str, Any]) -> dict[str, Tensor]:
    full = {}
    for name, tensor in tensors.items():
        value = tensor.detach()
        full[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    return full


def followed(rank_info: RankInfo, setup: Setup) -> float:
    """Largest difference between the backend's average and the recurrence computed beside it."""
    backend, stack = make_both(rank_info, setup)
    assert backend.ema is not None
    expected = whole(backend, backend.trainable)
    for step in range(3):
        train_steps(stack, rank_info, [step])
        weights = whole(backend, backend.trainable)
        expected = {name: 0.9 * expected[name] + 0.1 * weights[name] for name in expected}
    average = whole(backend, backend.ema.shadow)
    assert expected.keys() == average.keys()
    assert any((weights[name] - average[name]).abs().max() > 1e-4 for name in average), (
        "nothing was averaged"
    )
    return max(float((expected[name] - average[name]).abs().max()) for name in expected)


@each_average
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_kind_of_average_follows_the_recurrence(
    ranks: Ranks, tiny_model_dir: Path, average: str, world_size: int
) -> None:
    setup = Setup(str(tiny_model_dir), **AVERAGES[average])
    assert ranks.run(world_size, followed, setup)[0] < 1e-6


def lent(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """What policies say before, during and after an evaluation with the average, and training
    afterwards."""
    backend, stack = make_both(rank_info, setup)
    assert backend.ema is not None
    train_steps(stack, rank_info, [0, 1])
    before = {name: local_part(value).clone() for name, value in backend.trainable.items()}
    rows = batch(9)
    said: dict[str, Any] = {}
    with backend.gathered() as policy:
        said["live"] = log_probs(policy, rows)
    backend.apply_eval_ema()
    with backend.gathered() as policy:
        said["average"] = log_probs(policy, rows)
    refused = []
    for act in (
        backend.apply_eval_ema,
        lambda: backend.save("nowhere"),
        lambda: train_steps(stack, rank_info, [2]),
    ):
        try:
            act()
        except RLTrainError as error:
            refused.append(str(error))
    backend.zero_grad()
    backend.restore_from_eval()
    with backend.gathered() as policy:
        said["restored"] = log_probs(policy, rows)
    after = {name: local_part(value) for name, value in backend.trainable.items()}
    said["refused"], said["same bits"] = refused, same_bits(before, after)
    said["shadow"] = whole(backend, backend.ema.shadow)
    return said


@each_average
def test_an_evaluation_borrows_the_average_and_gives_the_weights_back_exactly(
    ranks: Ranks, tiny_model_dir: Path, average: str
) -> None:
    said = ranks.run(
        2, lent, Setup(str(tiny_model_dir), fsdp={"fsdp_mode": "grad_op"}, **AVERAGES[average])
    )[0]
    assert said["same bits"]
    assert torch.equal(said["live"], said["restored"])
    assert (said["live"] - said["average"]).abs().max() > 1e-4
    assert len(said["refused"]) == 3
    assert all("average" in message for message in said["refused"])


def sampled(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """Log-probabilities of the policies that sample, anchor and train, and the weights' gradient
    switches."""
    backend, stack = make_both(rank_info, setup)
    train_steps(stack, rank_info, [0, 1])
    rows, said = batch(9), {}
    with backend.rollout_policy() as policy:
        said["rollout"] = log_probs(policy, rows)
    with backend.anchor_policy() as policy:
        said["anchor"] = log_probs(policy, rows)
    with backend.gathered() as policy:
        said["live"] = log_probs(policy, rows)
    backend.apply_eval_ema()
    with backend.gathered() as policy:
        said["average"] = log_probs(policy, rows)
    backend.restore_from_eval()
    said["trainable"] = [
        name for name, value in backend.policy.named_parameters() if value.requires_grad
    ]
    said["expected"] = list(backend.trainable)
    return said


@pytest.mark.parametrize(
    "parts",
    [
        {"ema": EmaLoraConfig(decay=0.9, rollout=True), "lora": LORA},
        {"ema": EmaFullConfig(decay=0.9, mirror=True, rollout=True)},
    ],
    ids=["adapter", "mirror"],
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rollout_under_the_average_is_anchored_to_the_average(
    ranks: Ranks, tiny_model_dir: Path, parts: dict[str, Any], world_size: int
) -> None:
    said = ranks.run(world_size, sampled, Setup(str(tiny_model_dir), **parts))[0]
    torch.testing.assert_close(said["rollout"], said["average"], atol=1e-6, rtol=0)
    torch.testing.assert_close(said["anchor"], said["average"], atol=1e-6, rtol=0)
    assert (said["live"] - said["average"]).abs().max() > 1e-4
    assert said["trainable"] == said["expected"]


def test_a_rollout_under_an_average_without_a_model_is_refused() -> None:
    with pytest.raises(ValueError, match="mirror: true"):
        EmaFullConfig(rollout=True)
