"""GRPO's loss against numbers worked by hand and against plain loops in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import Aggregation, Denominators, KlKind, StageAlgorithm, algorithms, merge_all, to_floats
from rl_core.errors import RecipeError

B, T = 7, 11


def build(**block: Any) -> StageAlgorithm:
    cls, config = algorithms.resolve({"name": "grpo", **block}, "algorithm")
    return cls(config)


def batch(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    old_BT = -2 * torch.rand(B, T, generator=random, dtype=torch.float64)
    noise = [torch.randn(B, T, generator=random, dtype=torch.float64) for _ in range(3)]
    mask_BT = (torch.rand(B, T, generator=random) < 0.7).double()
    mask_BT[2], mask_BT[4, 1:] = 0, 0
    return {
        "log_probs_BT": old_BT + 0.4 * noise[0],
        "old_log_probs_BT": old_BT,
        "advantages_BT": noise[1] * mask_BT,
        "mask_BT": mask_BT,
        "ref_log_probs_BT": old_BT + 0.5 * noise[2],
        "entropy_BT": old_BT.abs(),
    }


def plain_loss(data: dict[str, Tensor], config: Any, max_length: int) -> float:
    rows: list[list[float]] = []
    for b in range(B):
        row: list[float] = []
        for t in range(T):
            if not data["mask_BT"][b, t]:
                continue
            log_prob, advantage = float(data["log_probs_BT"][b, t]), float(data["advantages_BT"][b, t])
            rho = math.exp(log_prob - float(data["old_log_probs_BT"][b, t]))
            clipped = min(max(rho, 1 - config.clip_low), 1 + config.clip_high)
            loss = max(-advantage * rho, -advantage * clipped)
            if config.dual_clip is not None and advantage < 0:
                loss = min(loss, -advantage * config.dual_clip)
            d = log_prob - float(data["ref_log_probs_BT"][b, t])
            kl = {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": math.exp(-d) + d - 1}[config.kl_kind]
            row.append(loss + config.kl_coef * kl - config.entropy_coef * float(data["entropy_BT"][b, t]))
        if row:
            rows.append(row)
    tokens, total = sum(map(len, rows)), sum(map(sum, rows))
    return {
        "token-mean": total / tokens,
        "token-sum": total,
        "seq-mean-token-sum": total / len(rows),
        "seq-mean-token-sum-norm": total / len(rows) / max_length,
        "seq-mean-token-mean": sum(sum(row) / len(row) for row in rows) / len(rows),
    }[config.aggregation]


@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("kl_kind", list(KlKind))
def test_loss_equals_plain_loops(aggregation: Aggregation, kl_kind: KlKind) -> None:
    algorithm = build(
        aggregation=aggregation, kl_kind=kl_kind, kl_coef=0.3, entropy_coef=0.05, clip_high=0.28, dual_clip=1.5
    )
    data = batch()
    loss, metrics = algorithm.loss(**data, denominators=Denominators.from_mask(data["mask_BT"], 16))
    assert loss.item() == pytest.approx(plain_loss(data, algorithm.config, 16), rel=1e-12)
    assert metrics["loss"].result() == pytest.approx(loss.item(), rel=1e-12)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_gradient_and_metrics_do_not_depend_on_the_number_of_micro_batches(aggregation: Aggregation) -> None:
    algorithm = build(aggregation=aggregation, kl_coef=0.1, entropy_coef=0.01)
    data = batch(seed=3)
    denominators = Denominators.from_mask(data["mask_BT"], 16)
    gradients, logged = [], []
    for num_micro_batches in (1, 2, 4):
        log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
        parts = []
        for rows in torch.arange(B).tensor_split(num_micro_batches):
            micro = {name: tensor[rows] for name, tensor in {**data, "log_probs_BT": log_probs_BT}.items()}
            loss, metrics = algorithm.loss(**micro, denominators=denominators)
            loss.backward()
            parts.append(metrics)
        gradients.append(log_probs_BT.grad)
        logged.append(to_floats(merge_all(parts)))
    for gradient, numbers in zip(gradients[1:], logged[1:], strict=True):
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-12, atol=1e-15)
        assert numbers == pytest.approx(logged[0], rel=1e-12)


def test_what_stands_at_padding_has_no_influence() -> None:
    algorithm = build(kl_coef=0.1, entropy_coef=0.1)
    data = batch(seed=5)
    denominators = Denominators.from_mask(data["mask_BT"])
    clean, clean_metrics = algorithm.loss(**data, denominators=denominators)
    padding_BT = data["mask_BT"] == 0
    dirty = {name: tensor.masked_fill(padding_BT, math.nan) for name, tensor in data.items() if name != "mask_BT"}
    dirty["log_probs_BT"].requires_grad_()
    loss, metrics = algorithm.loss(**dirty, mask_BT=data["mask_BT"], denominators=denominators)
    loss.backward()
    assert loss.item() == clean.item() and metrics == clean_metrics
    gradient = dirty["log_probs_BT"].grad
    assert gradient is not None and gradient.isfinite().all() and (gradient[padding_BT] == 0).all()


def test_metrics_by_hand() -> None:
    ratios = torch.tensor([[1.5, 0.5, 1.5, 9.0]])
    algorithm = build()
    _, metrics = algorithm.loss(
        ratios.log(), torch.zeros(1, 4), torch.tensor([[1.0, 1.0, -1.0, 1.0]]), torch.tensor([[1, 1, 1, 0]]),
        None, None, Denominators(6, 2, 4),
    )  # fmt: skip
    numbers = to_floats(metrics)
    # Only the first action is clipped; the step has six actions, so half of this share's mean of (-1.2 - 0.5 + 1.5).
    assert numbers["policy_loss"] == pytest.approx(-0.2 / 6)
    assert numbers["ratio_mean"] == pytest.approx(3.5 / 3) and numbers["ratio_max"] == pytest.approx(1.5)
    assert numbers["clip_fraction"] == pytest.approx(1 / 3)
    assert numbers["approx_kl"] == pytest.approx((2 * (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 3, rel=1e-5)
    assert set(numbers) == {"loss", "policy_loss", "ratio_mean", "ratio_max", "clip_fraction", "approx_kl"}


def test_dr_grpo_divides_by_constants_alone() -> None:
    algorithm = build(advantage={"name": "grpo", "norm_by_std": False}, aggregation="seq-mean-token-sum-norm")
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages_BT, _ = algorithm.advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), mask_BT)
    zeros_BT = torch.zeros(2, 3)
    loss, _ = algorithm.loss(
        zeros_BT, zeros_BT, advantages_BT, mask_BT, None, None, Denominators.from_mask(mask_BT, 10)
    )
    # -(0.5 * 3 - 0.5 * 1) over 2 rows of constant length 10.
    assert loss.item() == pytest.approx(-0.05)


def test_half_precision_is_computed_in_float32() -> None:
    data = {name: tensor.bfloat16() for name, tensor in batch().items()}
    assert build().loss(**data, denominators=Denominators(1, 1, T))[0].dtype == torch.float32


def test_missing_inputs_and_wrong_shapes_are_named() -> None:
    data = batch()
    denominators = Denominators.from_mask(data["mask_BT"])
    with pytest.raises(ValueError, match="ref_log_probs_BT is required"):
        build(kl_coef=0.1).loss(**{**data, "ref_log_probs_BT": None}, denominators=denominators)
    with pytest.raises(ValueError, match="entropy_BT is required"):
        build(entropy_coef=0.1).loss(**{**data, "entropy_BT": None}, denominators=denominators)
    with pytest.raises(ValueError, match="advantages_BT has shape"):
        build().loss(**{**data, "advantages_BT": torch.zeros(B)}, denominators=denominators)


def test_the_recipe_block_says_what_is_needed() -> None:
    assert not build().needs_reference and build(kl_coef=0.01).needs_reference
    assert build(entropy_coef=0.01).needs_entropy and build().supports_multi_update
    for block in (
        {"clip_hi": 0.28},
        {"kl_kind": "k4"},
        {"advantage": {"name": "grpo", "epsilon": 1}},
        {"dual_clip": 1},
    ):
        with pytest.raises(RecipeError):
            build(**block)
