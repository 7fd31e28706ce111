"""What the stack gives algorithms besides log-probabilities: the rollout engine's, the reference's,
squared sums."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.critic import CriticBundle, CriticStack
from rl_core.train.result import TrainStepResult
from schemas.recipe import LoraConfig, ModelConfig
from tests.train.jobs import (
    LORA,
    Setup,
    batch,
    log_probs,
    make_backend,
    make_both,
    make_stack,
    shard_of,
)
from tests.train.ranks import Ranks

CORRECTED = {"name": "grpo", "correction": {"mode": "truncate", "upper": 2.0}}
KL_REWARD = {"name": "grpo", "kl": {"coef": 0.1, "kind": "k1", "place": "reward"}}
OTB = {"name": "grpo", "advantage": {"name": "optimal_token_baseline"}}


def with_engine_off_by(rank_info: RankInfo, setup: Setup, factor: float) -> TrainStepResult:
    """Train on rows whose engine reported log pi - log(factor)."""
    backend, stack = make_both(rank_info, setup)
    rows = batch(0)
    assert rows.batch is not None
    with backend.gathered() as policy:
        said = log_probs(policy, rows)
    rows.batch["rollout_log_probs"] = said - math.log(factor)
    return stack.train(rows)


@pytest.mark.parametrize(("factor", "weight"), [(1.0, 1.0), (0.5, 0.5), (3.0, 2.0)])
def test_the_correction_weighs_by_what_the_engine_reported(
    ranks: Ranks, tiny_model_dir: Path, factor: float, weight: float
) -> None:
    plain = ranks.run(1, with_engine_off_by, Setup(str(tiny_model_dir)), factor)[0]
    found = ranks.run(
        1, with_engine_off_by, Setup(str(tiny_model_dir), algorithm=CORRECTED), factor
    )[0]
    assert found.metrics["correction_weight"].result() == pytest.approx(weight, rel=1e-4)
    # Every action has the same weight, so the gradient is that of the plain loss times the weight.
    assert found.grad_norm == pytest.approx(weight * plain.grad_norm, rel=1e-3)


def measured(rank_info: RankInfo, setup: Setup) -> dict[str, Tensor]:
    backend, stack = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    found = stack.measure(rows)
    assert found is not None and found.batch is not None
    with backend.gathered() as policy:
        said = log_probs(policy, rows)
        logits = policy.language_model(
            rows.tensor("input_ids"),
            rows.tensor("attention_mask"),
            position_ids=rows.tensor("position_ids"),
        ).logits
    squares = (
        (logits.double() / stack.temperature)
        .softmax(-1)
        .square()
        .sum(-1)[:, -said.shape[1] - 1 : -1]
    )
    return {key: value for key, value in found.batch.items()} | {"said": said, "squares": squares}


@pytest.mark.parametrize("world_size", [1, 2])
def test_sums_of_squared_probabilities_are_those_of_the_softmax(
    ranks: Ranks, tiny_model_dir: Path, world_size: int
) -> None:
    for found in ranks.run(world_size, measured, Setup(str(tiny_model_dir), algorithm=OTB)):
        acted = found["said"] != 0
        assert acted.any()
        torch.testing.assert_close(
            found["sum_squared_probs"][acted].double(),
            found["squares"][acted],
            atol=1e-7,
            rtol=1e-4,
        )
        assert not found["sum_squared_probs"][~acted].any()


@pytest.mark.parametrize("lora", [None, LORA], ids=["copy", "lora"])
def test_before_training_the_reference_says_what_the_policy_says(
    ranks: Ranks, tiny_model_dir: Path, lora: LoraConfig | None
) -> None:
    found = ranks.run(1, measured, Setup(str(tiny_model_dir), algorithm=KL_REWARD, lora=lora))[0]
    torch.testing.assert_close(found["old_log_probs"], found["said"], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["ref_log_probs"], found["said"], atol=1e-6, rtol=0)
    assert "sum_squared_probs" not in found


def measured_then_trained(rank_info: RankInfo, setup: Setup, first: bool) -> tuple[float, float]:
    _, stack = make_both(rank_info, setup)
    rows = batch(0)
    if first:
        columns = stack.measure(rows)
        assert columns is not None
        rows = rows.union(columns)
    result = stack.train(rows)
    return result.grad_norm, result.metrics["ratio_mean"].result()


def test_training_on_measured_rows_is_the_same_training(ranks: Ranks, tiny_model_dir: Path) -> None:
    setup = Setup(
        str(tiny_model_dir),
        algorithm=KL_REWARD,
        stack={"num_updates_per_batch": 2, "num_epochs": 2},
    )
    assert ranks.run(1, measured_then_trained, setup, True) == ranks.run(
        1, measured_then_trained, setup, False
    )


def tensors_of(rows: DataProto) -> dict[str, Tensor]:
    assert rows.batch is not None
    return dict(rows.batch.items())


def trained_with_length(rank_info: RankInfo, setup: Setup, width: int) -> float:
    """The gradient of rows with so many more columns of padding."""
    _, stack = make_both(rank_info, setup)
    rows = batch(0)
    padded = {
        key: torch.nn.functional.pad(value, (0, width)) for key, value in tensors_of(rows).items()
    }
    return stack.train(DataProto.from_dict(padded)).grad_norm


def test_the_constant_length_of_dr_grpo_does_not_follow_the_rollout(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    fixed = Setup(str(tiny_model_dir), algorithm={"name": "dr_grpo"}, stack={"max_length": 10})
    norms = [ranks.run(1, trained_with_length, fixed, width)[0] for width in (0, 5)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    doubled = Setup(str(tiny_model_dir), algorithm={"name": "dr_grpo"}, stack={"max_length": 20})
    assert ranks.run(1, trained_with_length, doubled, 0)[0] == pytest.approx(norms[0] / 2, rel=1e-5)


def taught(
    rank_info: RankInfo, setup: Setup, num_steps: int
) -> tuple[Tensor, Tensor, list[float], list[str]]:
    """A critic before and after it learnt that every action returns 1."""
    bundle = CriticBundle(setup.model_dir, ModelConfig(path=setup.model_dir))
    backend = make_backend(rank_info, setup, bundle=bundle)
    stack = CriticStack(backend, make_stack(backend, setup).algorithm, micro_batch_size=2)
    rows = shard_of(rank_info, batch(0))
    mask = rows.tensor("response_mask").float()
    seen, errors = [], []
    for _ in range(num_steps):
        values = stack.values(rows)
        assert values is not None
        seen.append(values.tensor("values"))
        shard = DataProto.from_dict({**tensors_of(rows), "values": seen[-1], "returns": mask})
        errors.append(stack.train(shard).metrics["value_error"].result())
    return seen[0], seen[-1] * mask, errors, list(backend.trainable)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_critic_starts_at_zero_and_learns_the_returns(
    ranks: Ranks, tiny_model_dir: Path, lora: LoraConfig | None
) -> None:
    setup = Setup(str(tiny_model_dir), algorithm={"name": "ppo"}, lora=lora)
    first, last, errors, trainable = ranks.run(1, taught, setup, 30)[0]
    assert not first.any() and errors[0] == 1.0
    assert errors[-1] < 0.5 * errors[0]
    assert last.sum() > 0 and last.shape == first.shape
    assert any("lm_head" in name for name in trainable)


def test_two_ranks_teach_a_critic_what_one_teaches(ranks: Ranks, tiny_model_dir: Path) -> None:
    setup = Setup(str(tiny_model_dir), algorithm={"name": "ppo"})
    one = ranks.run(1, taught, setup, 3)[0]
    two = ranks.run(2, taught, setup, 3)
    torch.testing.assert_close(torch.cat([part[1] for part in two]), one[1], atol=1e-6, rtol=0)
